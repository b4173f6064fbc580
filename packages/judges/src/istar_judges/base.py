"""What a judge is: a callable from ``Episode`` to ``Outcome``; nothing else.

How an outcome is reached is in ``verifiers.py``; what is made of outcomes is in ``pairs.py``.
"""

from typing import Protocol

from istar_envs.episode import Scorer


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
