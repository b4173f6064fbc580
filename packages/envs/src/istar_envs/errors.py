"""Errors that cross a package boundary: every message says what, where and how to fix it.

Misuse of a pure function raises plain ``ValueError``/``TypeError`` instead; a lost game or an
unreadable reply is an outcome, not an exception.
"""

import difflib
from collections.abc import Iterable


class IstarError(Exception):
    """Base of every error that istar raises on purpose."""


class ConfigError(IstarError):
    """A configuration value is unknown, out of range or contradicts another."""


class EnvError(IstarError):
    """An environment cannot do what it was asked."""


class UnknownEnv(EnvError):
    """No environment is registered under the given id."""


class ResetNeeded(EnvError):
    """``step`` was called before ``reset`` or after the end of the episode."""


class MissingAsset(EnvError):
    """A data file that the environment needs is not there."""


class LevelFormatError(EnvError):
    """A level or solution file breaks its format; the message names the line."""


class LevelGenerationFailed(EnvError):
    """No level fulfils the request within the allowed number of tries."""


class ServerUnreachable(EnvError):
    """A remote environment does not answer."""


class SessionLost(EnvError):
    """A remote episode is gone: it expired, was closed, or its server was restarted."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest to a misspelt one.

    Args:
        name: What the user typed.
        known: Names that exist.

    Returns:
        ``' Did you mean "x"?'`` when something is close, else the list of known names.

    Example:
        >>> suggest("gpro", ["grpo", "rloo"])
        ' Did you mean "grpo"?'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f' Did you mean "{near[0]}"?' if near else f" Known: {', '.join(names)}."


def require_known(option: str, value: str, known: Iterable[str], world: str) -> None:
    """Refuse an option of an environment that is none of its possible values.

    Args:
        option: Its name.
        value: What was given.
        known: Values that exist.
        world: Short name of the environment, for the message.

    Raises:
        EnvError: If the value is unknown.
    """
    names = list(known)
    if value not in names:
        raise EnvError(f"no {option} {value!r} ({world}, option {option}).{suggest(value, names)}")
