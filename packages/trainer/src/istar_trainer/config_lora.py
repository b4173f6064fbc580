"""The configuration's section ``model.lora``; no torch here."""

from pydantic import Field

from istar_trainer.config_base import Section


class LoraConfig(Section):
    """Low-rank adapters on frozen weights (Hu et al. 2021), without dropout.

    Dropout would make the ratio before the first update differ from 1 and the two passes of the
    process reward model disagree.
    """

    rank: int = Field(default=16, ge=1)
    """Rank of each adapted layer's change."""
    alpha: float = Field(default=32.0, gt=0)
    """The change is scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt, such as q_proj; empty for all of them except the output head."""
