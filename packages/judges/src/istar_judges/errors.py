"""The judge branch of the error tree: a judge that could not do its work.

A verdict that could not be reached on one episode is an ``Outcome`` with a status other than
``ok``; these errors are for what a caller has to handle or a user has to fix.
"""

from istar_envs.errors import IstarError


class JudgeError(IstarError):
    """A judge, or what is made of its outcomes, cannot do what it was asked."""


class JudgeUnavailable(JudgeError):
    """The judge did not answer; asking again later may work."""


class JudgeRefused(JudgeError):
    """The judge answered that it will not judge this episode; asking again will not help."""


class VerdictUnreadable(JudgeError):
    """The judge answered, but not in the form of a verdict.

    Attributes:
        kind: Short name for counting: ``no_json``, ``bad_json``, ``missing``, ``unknown``,
            ``duplicate``, ``type``, ``range``, ``cut_off`` or ``oversized``.
    """

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


class CacheMiss(JudgeError):
    """A verdict was to come from the cache alone, and is not there."""
