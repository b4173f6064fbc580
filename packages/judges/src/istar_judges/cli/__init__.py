"""``istar-judge score | pairs | agreement | canaries``: judge episodes, make pairs, trust a judge or not."""

from collections.abc import Sequence
from typing import Annotated

import tyro

from istar_envs.command_line import carry_out
from istar_judges.cli.agreement import Agreement
from istar_judges.cli.canaries import Canaries
from istar_judges.cli.pairs import Pairs
from istar_judges.cli.score import Score

__all__ = ["Agreement", "Canaries", "Pairs", "Score", "main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: Arguments without the program's name; those of the process if None.

    Returns:
        The exit code: 0, 1 if a judge drifted, 2 after an error that the user can fix, 130 when interrupted.
    """
    command: Score | Pairs | Agreement | Canaries = tyro.cli(
        Annotated[Score, tyro.conf.subcommand("score")]
        | Annotated[Pairs, tyro.conf.subcommand("pairs")]
        | Annotated[Agreement, tyro.conf.subcommand("agreement")]
        | Annotated[Canaries, tyro.conf.subcommand("canaries")],
        prog="istar-judge",
        description="Judge files of episodes, make preference pairs, say how far to trust a judge.",
        args=args,
    )
    return carry_out("istar-judge", command.run)
