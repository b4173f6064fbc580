"""Partners as they are named in options and configuration files."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from istar_envs.chat import ChatClient
from istar_envs.errors import ConfigError, suggest
from istar_envs.sotopia.partners.base import Partner
from istar_envs.sotopia.partners.expert import ScriptedExpert
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.partners.naive import NaivePartner
from istar_envs.sotopia.partners.patient import PatientPartner
from istar_envs.sotopia.partners.scripted import ScriptedPartner

PARTNERS: Final[Mapping[str, Callable[[], Partner]]] = {
    "scripted": ScriptedPartner,
    "expert": ScriptedExpert,
    "naive": NaivePartner,
    "patient": PatientPartner,
}
"""Partners that need nothing but their name."""

_OF_PARTNER: Final = frozenset(inspect.signature(LlmPartner).parameters) - {"chat"}
_OF_CHAT: Final = frozenset(inspect.signature(ChatClient).parameters)


def find_partner(partner: str | Mapping[str, Any] | Partner) -> Partner:
    """Return a partner by its name or description, or the partner itself.

    Args:
        partner: A name; a mapping with ``model``, ``base_url`` and any further options of ``ChatClient`` and
            ``LlmPartner``; or a partner.

    Raises:
        ConfigError: If the name or an option is unknown, or a value cannot be used.
    """
    if isinstance(partner, str):
        if partner not in PARTNERS:
            raise ConfigError(
                f"no partner {partner!r} (Sotopia, option partner).{suggest(partner, PARTNERS)}"
            )
        return PARTNERS[partner]()
    return _model(partner) if isinstance(partner, Mapping) else partner


def _model(options: Mapping[str, Any]) -> LlmPartner:
    for name in options:
        if name not in _OF_PARTNER | _OF_CHAT:
            known = suggest(str(name), _OF_PARTNER | _OF_CHAT)
            raise ConfigError(f"a model as partner has no option {name!r} (Sotopia, option partner).{known}")
    for name in ("model", "base_url"):
        if name not in options:
            raise ConfigError(f"a model as partner needs {name!r} (Sotopia, option partner).")
    chat = ChatClient(**{name: value for name, value in options.items() if name in _OF_CHAT})
    return LlmPartner(chat, **{name: value for name, value in options.items() if name in _OF_PARTNER})
