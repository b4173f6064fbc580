"""``istar-judge score | pairs | agreement``: judge files of episodes, make preference pairs, trust or not."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from istar_envs.errors import IstarError
from istar_judges.cli.agreement import Agreement
from istar_judges.cli.judging import say
from istar_judges.cli.pairs import Pairs
from istar_judges.cli.score import Score

__all__ = ["Agreement", "Pairs", "Score", "main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: Arguments without the program's name; those of the process if None.

    Returns:
        The exit code: 0, or 2 after an error that the user can fix.
    """
    command: Score | Pairs | Agreement = tyro.cli(
        Annotated[Score, tyro.conf.subcommand("score")]
        | Annotated[Pairs, tyro.conf.subcommand("pairs")]
        | Annotated[Agreement, tyro.conf.subcommand("agreement")],
        prog="istar-judge",
        description="Judge files of episodes, make preference pairs, say how far to trust a judge.",
        args=args,
    )
    try:
        command.run()
    except IstarError as error:
        say(f"istar-judge: {error}")
        return 2
    except BrokenPipeError:  # the reader of standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
