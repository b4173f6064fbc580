"""What a person sees while a comparison runs: bars on a terminal, elsewhere a line per event."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


class Display:
    """Shows how far a comparison is; use it as a context manager.

    Args:
        console: Where to write; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._all: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._title, self._done, self._total = "", 0, 0

    def __enter__(self) -> Self:
        """Return the display itself."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        self._bars.stop()

    def begin(self, title: str, total: int, *, done: int) -> None:
        """Begin a phase of ``total`` jobs, of which ``done`` were there before."""
        self._title, self._done, self._total = title, done, total
        if self._all is not None:
            self._bars.remove_task(self._all)
        self._all = self._bars.add_task(title, total=total, completed=done)
        if done:
            self.note(f"{done} of {total} {title} are there already")

    def started(self, name: str, iterations: int) -> None:
        """Show a job that begins; one that counts no iterations gets a bar without end."""
        self._tasks[name] = self._bars.add_task(f"  {name}", total=iterations or None)

    def advanced(self, name: str, iterations: int) -> None:
        """Show how far a job is."""
        self._bars.update(self._tasks[name], completed=iterations)

    def ended(self, name: str, reason: str | None) -> None:
        """Show a job that ended, with the reason if it failed."""
        self._bars.remove_task(self._tasks.pop(name))
        self._done += 1
        if self._all is not None:
            self._bars.update(self._all, completed=self._done)
        self.note(f"{self._title} {self._done}/{self._total} · {name} · {reason or 'done'}")

    def show(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """Print a table whose first row is its header."""
        header, *lines = rows
        table = Table(title=title, title_justify="left")
        for number, heading in enumerate(header):
            table.add_column(Text(heading), justify="right" if number else "left")
        for line in lines:
            table.add_row(*map(Text, line))
        self._console.print(table)

    def note(self, text: str) -> None:
        """Print a line of its own, above the bars."""
        self._console.print(Text(text), soft_wrap=True)
