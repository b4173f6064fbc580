"""The outcome side: one class per algorithm, chosen by ``type``, whose defaults are its recipe.

Every algorithm states its loss, and may replace groups that teach nothing (``dynamic_sampling``).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from istar_trainer.config_base import BARE_WORD, Section


class KlConfig(Section):
    """Penalty on leaving the frozen policy that reinforcement learning started from."""

    coef: float = Field(default=0.001, gt=0)
    """Weight of the penalty, per nat and token."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence at each token."""
    place: Literal["loss", "reward"] = "loss"
    """Added to the loss, or subtracted from the tokens' rewards before advantages are computed."""


class CorrectionConfig(Section):
    """Correction for a sampler whose probabilities are not the learner's, by the ratio w = π_old / π_sampler.

    Weights and rejection are independent of each other. Ratios may be of a token, or of its step as a product
    or geometric mean; what is rejected leaves the loss's numerator and denominator.
    """

    weight: Literal["token", "step_product", "step_geo"] | None = "token"
    """Ratio that multiplies each token's loss, cut at ``weight_cap`` (Yao et al. 2025); null for none."""
    weight_cap: float = Field(default=2.0, gt=0)
    """Largest weight."""
    reject: Literal["token", "step_product", "step_geo"] | None = None
    """Ratio that must lie in ``reject_low`` … ``reject_high`` for a token (Ling Team 2025), or its whole step
    (Liu et al. 2025), to be learnt from; null rejects nothing."""
    reject_low: float = Field(default=0.5, ge=0, lt=1)
    """Smallest accepted ratio."""
    reject_high: float = Field(default=2.0, gt=1)
    """Largest accepted ratio."""


class LossConfig(Section):
    """The policy loss."""

    ratio: Literal["token", "step_product", "step_geo"] = "token"
    """Importance ratio: per token, product over a step (the paper's formula), or its geometric mean."""
    aggregation: Literal["step_mean", "token_mean", "trajectory_mean", "constant"] = "step_mean"
    """How per-token losses are averaged; ``step_mean`` is the paper's 1/(N·T)."""
    constant_length: int = Field(default=1, ge=1)
    """Divisor of ``aggregation: constant``, in tokens."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """ε below 1."""
    clip_high: float = Field(default=0.2, gt=0)
    """ε above 1."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Cap c·|A| on the loss of negative advantages; null for none."""
    kl: KlConfig | None = None
    """Penalty on leaving the start policy; null, as in the paper, keeps no reference model."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus, per nat and token."""
    correction: CorrectionConfig | None = None
    """Correction for a sampler that disagrees with the learner; null, as published, trusts it."""


class DynamicSampling(Section):
    """Groups that teach nothing are replaced by newly played ones (Yu et al. 2025; Cui et al. 2025)."""

    low: float | None = Field(default=None, ge=0, lt=1)
    """Keep groups whose success rate is above this; without a range, groups of unequal outcomes are kept."""
    high: float | None = Field(default=None, gt=0, le=1)
    """Keep groups whose success rate is below this. PRIME keeps 0.2 to 0.8."""
    max_batches: int = Field(default=10, ge=1)
    """Batches of ``rollout.num_tasks`` tasks played at most; the other groups fill what is still missing."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "DynamicSampling":
        if (self.low is None) != (self.high is None):
            raise ValueError(f"low: {self.low} and high: {self.high} belong together; set both or neither")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low: {self.low} must be below high: {self.high}")
        return self


class RlooConfig(Section):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): own outcome minus the mean of the others."""

    type: Literal["rloo"] = "rloo"
    loss: LossConfig = LossConfig()
    dynamic_sampling: DynamicSampling | None = None


class GrpoConfig(Section):
    """Group-relative policy optimization (Shao et al. 2024): outcomes standardized in the group.

    ``std: none`` with ``loss.aggregation: constant`` is Dr. GRPO (Liu et al. 2025).
    """

    type: Literal["grpo"] = "grpo"
    loss: LossConfig = LossConfig()
    dynamic_sampling: DynamicSampling | None = None
    std: Literal["population", "unbiased", "none"] = "unbiased"
    """Divisor: standard deviation of the group's outcomes, or none (Dr. GRPO)."""
    episode_stat: Literal["trajectories", "steps"] = "trajectories"
    """Whether mean and deviation count each trajectory once, or once per step."""


class ReinforcePpConfig(Section):
    """REINFORCE++ (Hu et al. 2025): rewards to go of each token, whitened over the batch."""

    type: Literal["reinforce_pp"] = "reinforce_pp"
    loss: LossConfig = LossConfig()
    dynamic_sampling: DynamicSampling | None = None
    baseline: Literal["none", "group"] = "none"
    """Whether the group's mean outcome is subtracted first (REINFORCE++-baseline)."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token."""


class CriticConfig(Section):
    """The critic's optimizer; passes and minibatches are those of the policy."""

    lr: float = Field(default=1e-5, gt=0)
    """AdamW learning rate; the published value for 7B models."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW weight decay."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""


class PpoConfig(Section):
    """Proximal policy optimization (Schulman et al. 2017): advantages from a learned critic."""

    type: Literal["ppo"] = "ppo"
    loss: LossConfig = LossConfig()
    dynamic_sampling: DynamicSampling | None = None
    gae_scope: Literal["row", "step", "token_across_steps", "bilevel"] = "row"
    """What follows what: tokens inside one step, which is rewarded with the outcome (the published baseline);
    steps; the trajectory's tokens; or its tokens with a discount of their own between steps."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one token, or step with ``gae_scope: step``, to the next."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """λ of generalized advantage estimation from one token or step to the next."""
    gamma_turn: float = Field(default=1.0, ge=0, le=1)
    """Discount across the border of two steps with ``gae_scope: bilevel``."""
    lam_turn: float = Field(default=1.0, ge=0, le=1)
    """λ across the border of two steps with ``gae_scope: bilevel``."""
    whiten: bool = True
    """Whether advantages are whitened over the batch."""
    value_clip: float | None = Field(default=0.5, gt=0)
    """How far a value may move from its old one before its gradient stops; null for no limit."""
    critic: CriticConfig = CriticConfig()

    @model_validator(mode="after")
    def _turns_belong_to_bilevel(self) -> "PpoConfig":
        if self.gae_scope != "bilevel" and (self.gamma_turn, self.lam_turn) != (1.0, 1.0):
            raise ValueError(
                f"gamma_turn: {self.gamma_turn} and lam_turn: {self.lam_turn} need gae_scope: bilevel, "
                f"not {self.gae_scope}"
            )
        return self


class OverlongConfig(Section):
    """Soft penalty on replies that come near ``rollout.max_response_tokens``."""

    buffer: int = Field(default=4096, ge=1)
    """Width of the ramp below the limit, in tokens."""
    factor: float = Field(default=1.0, ge=0)
    """Penalty at the limit, in units of the outcome."""


class DapoLoss(LossConfig):
    """The loss of DAPO: clip-higher, mean over all tokens, dual clip at 10."""

    aggregation: Literal["step_mean", "token_mean", "trajectory_mean", "constant"] = "token_mean"
    """How per-token losses are averaged."""
    clip_high: float = Field(default=0.28, gt=0)
    """ε above 1."""
    dual_clip: float | None = Field(default=10.0, gt=1)
    """Cap c·|A| on the loss of negative advantages; null for none."""


class DapoConfig(Section):
    """DAPO (Yu et al. 2025): GRPO with clip-higher, dynamic sampling, token mean and overlong shaping."""

    type: Literal["dapo"] = "dapo"
    loss: DapoLoss = DapoLoss()
    dynamic_sampling: DynamicSampling | None = DynamicSampling()
    std: Literal["population", "unbiased", "none"] = "unbiased"
    """Divisor: standard deviation of the group's outcomes, or none."""
    episode_stat: Literal["trajectories", "steps"] = "trajectories"
    """Whether mean and deviation count each trajectory once, or once per step."""
    overlong: OverlongConfig | None = None
    """Penalty on long replies; null for none. The recipe's buffer of 4096 fits a limit of 20480 tokens."""


AlgorithmConfig = Annotated[
    RlooConfig | GrpoConfig | ReinforcePpConfig | PpoConfig | DapoConfig,
    Field(discriminator="type"),
    BARE_WORD,
]
