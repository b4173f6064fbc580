"""What all sections of the configuration share."""

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _tagged(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


BARE_WORD = BeforeValidator(_tagged)
"""Reads a bare word as the section of that ``type`` with its defaults."""
