"""A result as people and programs read it: a table for the terminal, Markdown and JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from rich.box import SIMPLE
from rich.table import Table

from istar_judges.agreement.formats import number
from istar_judges.budget import Budget
from istar_trainer.social.summary import Measure, Row

_HEAD: Final = ("scenarios", "seat", "n", "episodes", "failed", "goal", "success")
_EXPLAINED: Final = (
    "n: scenarios. Goals go from 0 to 10; above 6 is a success. ( … ): 95% interval by bootstrap over "
    "scenarios, where they differ. [ … ]: the mean if all failures had the lowest or the highest value."
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        facts: What was evaluated, in words, by name.
        rows: The numbers.
        spent: What endpoints spent, by who was asked.
        notes: What a reader must know besides.
    """

    facts: Mapping[str, str]
    rows: tuple[Row, ...]
    spent: Mapping[str, Budget]
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """Return the table for a terminal."""
        title = "\n".join(f"{name}: {value}" for name, value in self.facts.items())
        caption = "\n".join(self._captions())
        table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
        table.box, table.pad_edge, table.collapse_padding = SIMPLE, False, True
        for place, name in enumerate(_HEAD):
            table.add_column(name, justify="right" if place > 1 else "left", no_wrap=place not in (0, 4))
        shown = ""
        for row in self.rows:
            name, *cells = _cells(row)
            table.add_row("" if name == shown else name, *cells)
            shown = name
        return table

    def markdown(self) -> str:
        """Return a page with facts, table and notes."""
        facts = [f"- {name}: {_plain(value)}" for name, value in self.facts.items()]
        rows = [_HEAD, ("---",) * len(_HEAD), *map(_cells, self.rows)]
        lines = [f"| {' | '.join(map(_plain, cells))} |" for cells in rows]
        notes = [f"{note}  " for note in self._captions()]
        return "\n".join(["# istar/Sotopia-v0", "", *facts, "", *lines, "", *notes]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; what is unknown is None."""
        return {
            **self.facts,
            "rows": [_known(asdict(row)) for row in self.rows],
            "spent": {who: _spent(budget) for who, budget in self.spent.items()},
            "notes": list(self.notes),
        }

    def _captions(self) -> list[str]:
        spent = [f"{who}: {_told(budget)}" for who, budget in self.spent.items()]
        return [_EXPLAINED, *self.notes, *spent]


def _cells(row: Row) -> tuple[str, ...]:
    has_failures = bool(row.failures)
    return (
        row.group,
        str(row.seat),
        str(row.num_scenarios),
        str(row.num_episodes),
        "\n".join(f"{count} {cause}" for cause, count in row.failures.items()) or "0",
        _cell(row.goal, "", has_failures=has_failures),
        _cell(row.success, "%", has_failures=has_failures),
    )


def _cell(measure: Measure, unit: Literal["", "%"], *, has_failures: bool) -> str:
    """Write a mean, its interval, and on a second line what failures leave open."""

    def write(value: float) -> str:
        """Write a value in the unit."""
        return number(100 * value, 0) if unit else number(value)

    mean = measure.mean
    text = write(mean.value) + (unit if math.isfinite(mean.value) else "")
    if math.isfinite(mean.low):
        text += f" ({write(mean.low)} … {write(mean.high)})"
    return f"{text}\n[{write(measure.worst)} … {write(measure.best)}]" if has_failures else text


def _spent(budget: Budget) -> dict[str, float]:
    spent = budget.spent
    return {
        "calls": spent.calls,
        "calls_of_unknown_cost": spent.unknown_calls,
        "prompt_tokens": spent.usage.prompt_tokens,
        "completion_tokens": spent.usage.completion_tokens,
        "cost": spent.cost,
    }


def _told(budget: Budget) -> str:
    spent = budget.spent
    tokens = f"{spent.usage.prompt_tokens:,} + {spent.usage.completion_tokens:,} tokens"
    unknown = f" ({spent.unknown_calls} counted in full)" if spent.unknown_calls else ""
    cost = f", cost {spent.cost:.4g}" if spent.cost else ""
    return f"{spent.calls:,} calls{unknown}, {tokens}{cost}"


def _known(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items()}
    return value


def _plain(cell: str) -> str:
    """Write text so that Markdown takes it as it is."""
    return cell.replace("|", "\\|").replace("\n", "<br>")
