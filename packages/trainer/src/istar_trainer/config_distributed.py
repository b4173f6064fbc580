"""How weights are divided among processes: the section ``learner.deepspeed``."""

from typing import Any, Literal

from pydantic import Field

from istar_trainer.config_base import Section


class DeepSpeedConfig(Section):
    """What DeepSpeed's ZeRO divides among processes; no choice changes results beyond rounding."""

    stage: Literal[1, 2, 3] = 3
    """1 divides the optimizer's state, 2 the gradients too, 3 the weights too."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in main memory instead of the GPU's: nothing, the optimizer's state, or the weights too
    (``stage: 3`` only)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further settings in DeepSpeed's own words, laid over those that are made from the rest."""
