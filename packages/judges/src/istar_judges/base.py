"""What a judge is: a callable from ``Episode`` to ``Outcome``; nothing else.

How an outcome is reached is in ``sokoban.py``, ``webshop.py``; what is made of outcomes is in ``pairs.py``.
"""

from typing import Literal, Protocol, get_args

from istar_envs.episode import Scorer
from istar_envs.errors import ConfigError, suggest

Scale = Literal["success", "return"]
"""``success``: 1.0 if the goal was reached, else 0.0; ``return``: the sum of the environment's rewards."""


def require_scale(scale: str, who: str) -> None:
    """Refuse an unknown scale.

    Raises:
        ConfigError: If ``scale`` is not one of ``Scale``.
    """
    if scale not in get_args(Scale):
        raise ConfigError(f"unknown scale {scale!r} ({who}).{suggest(scale, get_args(Scale))}")


class Judge(Scorer, Protocol):
    """Anything that says how an episode went, rule or model.

    A judge that cannot tell returns an outcome with a status other than ``ok`` and no number. It
    raises ``JudgeError`` only if it was asked for something that it never can judge.
    """

    @property
    def name(self) -> str:
        """Name with version; it becomes ``Outcome.source``."""
        ...

    @property
    def score_range(self) -> tuple[float, float]:
        """Smallest and largest score that this judge may give."""
        ...


class Verifier(Judge, Protocol):
    """A judge by rule: equal episodes get equal outcomes, on every machine, without a network."""
