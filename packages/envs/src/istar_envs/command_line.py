"""What command lines of istar share: exit codes, mistakes in one line, usage, kinds of options."""

import argparse
import ipaddress
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from istar_envs.errors import IstarError, suggest

Command = Callable[[list[str]], int | None]
"""Carries out its arguments; returns its exit code, None for 0. The docstring is its line of the usage."""


def carry_out(program: str, work: Callable[[], int | None], *, on_interrupt: str = "") -> int:
    """Do the work of a command and turn what may happen into an exit code.

    Args:
        program: What the user called, for messages.
        work: Does it; returns its exit code, None for 0.
        on_interrupt: What to tell somebody who pressed Ctrl-C.

    Returns:
        The work's code; 2 on a mistake, which is told in one line; 130 when interrupted; 0 if the reader of
        standard output, such as ``head``, has seen enough.
    """
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except IstarError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: {on_interrupt}\n" if on_interrupt else "\n")
        return 130
    return code or 0


def run_command(
    program: str, argv: Sequence[str], commands: Mapping[str, Command], *, on_interrupt: str = ""
) -> int:
    """Carry out the command that the first argument names.

    Args:
        program: Name of the program.
        argv: Arguments without it; ``-h`` or nothing prints the usage.
        commands: By name, in the order of the usage.
        on_interrupt: As for ``carry_out``.

    Returns:
        As ``carry_out``; 2 for an unknown command or none.
    """
    name, rest = (argv[0] if argv else ""), list(argv[1:])
    if name in commands:
        return carry_out(f"{program} {name}", lambda: commands[name](rest), on_interrupt=on_interrupt)
    if name in ("", "-h", "--help"):
        return carry_out(program, lambda: _print_usage(program, commands)) or (0 if name else 2)
    sys.stderr.write(f"{program}: unknown command {name!r}.{suggest(name, commands)}\n")
    return 2


def whole_number(highest: int) -> Callable[[str], int]:
    """Return what reads an option that is a whole number from 1 on.

    Args:
        highest: Largest number that is taken.
    """

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:12]) <= highest):
            raise argparse.ArgumentTypeError(f"{text} is no number from 1 to {highest}")
        return int(text)

    return read


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print_usage(program: str, commands: Mapping[str, Command]) -> None:
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {(command.__doc__ or '').strip()}" for name, command in commands.items()]
    sys.stdout.write("\n".join([f"usage: {program} COMMAND …", "", *lines]) + "\n")
