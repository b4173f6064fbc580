"""The deterministic judges by name: what was done is derived from the record, not from what it claims.

Not here: judges that ask a model, and what is made of outcomes (``pairs.py``).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from istar_envs.errors import ConfigError, suggest
from istar_judges.base import Scale, Verifier
from istar_judges.sokoban import SokobanVerifier
from istar_judges.sotopia import SotopiaVerifier
from istar_judges.webshop import WebShopVerifier

VERIFIERS: Final[Mapping[str, Callable[[Scale, Mapping[str, Any]], Verifier]]] = {
    "sokoban": lambda scale, _options: SokobanVerifier(scale),
    "sotopia": SotopiaVerifier.of_env,
    "webshop": WebShopVerifier.of_env,
}
"""How each verifier is made from a scale and its environment's keyword arguments, by the name that
configurations use."""


def make_verifier(
    name: str, scale: Scale = "success", env_options: Mapping[str, Any] | None = None
) -> Verifier:
    """Make a verifier by name.

    Args:
        name: A key of ``VERIFIERS``.
        scale: What the score is.
        env_options: Keyword arguments of the environment that the episodes come from.

    Raises:
        ConfigError: If the name or the scale is unknown.
    """
    if name not in VERIFIERS:
        raise ConfigError(f"unknown verifier {name!r}.{suggest(name, VERIFIERS)}")
    return VERIFIERS[name](scale, env_options or {})


def verifier_of(env_id: str) -> str:
    """Return the name of the verifier that judges an environment's episodes.

    Args:
        env_id: Registered id, such as ``istar/WebShop-v1``.

    Raises:
        ConfigError: If no verifier knows that world.
    """
    found = next((name for name in VERIFIERS if name in env_id.lower()), None)
    if found is None:
        raise ConfigError(
            f"no verifier knows the environment {env_id!r}. Name one as `verifier`: {', '.join(VERIFIERS)}."
        )
    return found
