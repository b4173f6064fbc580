"""What a step gets on top of its trajectory's outcome: one class per method, chosen by ``type``.

The process reward model, which several methods share, has its own section. Every default is the
published value unless its text says otherwise.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from istar_judges.pairs import PairRule
from istar_trainer.config_base import BARE_WORD, Section


class Method(Section):
    """Base of all credit methods."""

    uses_prm: ClassVar[bool] = False
    """Whether the method learns a process reward model, as the section ``prm`` says."""
    replaces_outcome: ClassVar[bool] = False
    """Whether the step advantage is the whole advantage, without the algorithm's outcome part."""


class NoCredit(Method):
    """Outcome advantages only."""

    type: Literal["none"] = "none"


class WarmUp(Section):
    """When the step advantage may speak (spec: α warm-up)."""

    pair_acc: float = Field(default=0.55, ge=0, le=1)
    """Prequential pair accuracy that the PRM must exceed in every iteration of the window."""
    state_auc: float | None = Field(default=None, ge=0, le=1)
    """Also exceed this mean AUC of credit between actions in equal states, on fresh data; null looks at pairs
    only, which says nothing about single steps. 0.5 is chance."""
    window: int = Field(default=5, ge=1)
    """Iterations over which it must hold."""
    start_at: int = Field(default=0, ge=0)
    """Not before this iteration."""


class ImplicitCredit(Method):
    """Base of the methods that add normalized implicit rewards of a PRM."""

    uses_prm: ClassVar[bool] = True
    step_adv_coef: float = Field(default=1.0, ge=0)
    """α, weight of the step advantage."""
    groups: Literal["all", "with_pairs"] = "all"
    """Which groups receive step advantages."""
    on_degenerate_groups: bool = True
    """Whether groups whose outcomes are all equal still receive step advantages."""
    floor_factor: float = Field(default=10.0, ge=0)
    """The smallest standard deviation taken seriously, in multiples of the measured noise."""
    warm_up: WarmUp | None = None
    """α is 0 until the PRM has shown itself; null switches it on at once, as in the paper."""


class StepRewardCredit(ImplicitCredit):
    """Base of the methods that compare implicit step rewards."""

    attribution: Literal["as_published", "shifted", "shifted_to_go"] = "as_published"
    """Which step receives what: r_t itself, or its action part plus the offset of the state it led to."""
    gamma: float = Field(default=0.9, ge=0, le=1)
    """Discount of ``shifted_to_go``."""
    center: Literal["none", "policy_kl"] = "none"
    """Whether the state offset c(h) = −β KL(π_old‖π_φ) is split off; required by both shifted forms."""
    norm: Literal["mean_std", "rloo", "maxabs", "none"] = "mean_std"
    """Normalization of step rewards."""
    scope: Literal["group", "batch"] = "group"
    """Steps that a step is compared with."""

    @model_validator(mode="after")
    def _shifted_needs_center(self) -> "StepRewardCredit":
        if self.attribution != "as_published" and self.center == "none":
            raise ValueError(
                f"attribution: {self.attribution} moves the state offset, so it needs center: policy_kl"
            )
        return self


class IstarCredit(StepRewardCredit):
    """iStar: implicit step rewards of an online PRM (Eq. 1–5)."""

    type: Literal["istar"] = "istar"


class IstarOfficialCredit(Method):
    """iStar as its code was released (for comparison): an untrained PRM and a baseline of first steps."""

    type: Literal["istar_official"] = "istar_official"
    step_adv_coef: float = Field(default=1.0, ge=0)
    """α, weight of the step advantage."""


class ProcessOnlyCredit(StepRewardCredit):
    """iStar without the outcome in the advantage (ablation): the limit of a large α."""

    replaces_outcome: ClassVar[bool] = True
    type: Literal["process_only"] = "process_only"


class TokenPrCredit(ImplicitCredit):
    """Token-level process rewards (ablation): implicit token rewards, normalized over the group's tokens."""

    type: Literal["token_pr"] = "token_pr"


class MergedCredit(Method):
    """Outcome and implicit step reward merged into one number per step (ablation)."""

    uses_prm: ClassVar[bool] = True
    replaces_outcome: ClassVar[bool] = True
    type: Literal["merged"] = "merged"
    step_reward_coef: float = Field(default=0.1, ge=0)
    """Weight of the step reward, scaled to [−1, 1] over the batch, in units of the outcome. The published
    code adds it with weight 1 to outcomes of 0 or 10, which is 0.1 for outcomes of 0 or 1."""
    norm: Literal["rloo", "mean_std"] = "rloo"
    """How merged rewards are compared over the group's steps."""
    floor_factor: float = Field(default=10.0, ge=0)
    """The smallest step reward of a batch taken seriously, in multiples of the measured noise."""


class GigpoCredit(Method):
    """GiGPO (Feng et al. 2025): returns compared between steps of a group that saw the same."""

    type: Literal["gigpo"] = "gigpo"
    step_adv_coef: float = Field(default=1.0, ge=0)
    """ω, weight of the step advantage."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount of the return from a step on."""
    rewards: Literal["env", "outcome"] = "env"
    """What the return adds up: the environment's rewards, or the judged outcome at the last step."""
    std: Literal["none", "unbiased", "population"] = "none"
    """Divisor inside an anchor state; none is the published default."""
    similarity: float | None = Field(default=None, gt=0, le=1)
    """Ratio of matching characters from which two texts count as the same; null asks for equal states.
    The published variant uses 0.95."""


class PrimeCredit(Method):
    """PRIME (Cui et al. 2025): implicit token rewards of a PRM trained on success labels.

    The published recipe also replaces groups whose success rate is outside 0.2 to 0.8
    (``algorithm.dynamic_sampling``).
    """

    uses_prm: ClassVar[bool] = True
    replaces_outcome: ClassVar[bool] = True
    type: Literal["prime"] = "prime"
    outcome_coef: float = Field(default=5.0, ge=0)
    """Weight of the outcome's part."""
    process_coef: float = Field(default=5.0, ge=0)
    """Weight of the token rewards' part."""


class ItpoCredit(Method):
    """ITPO-norm: the outcome, split over the turns by a softmax of their implicit scores."""

    uses_prm: ClassVar[bool] = True
    replaces_outcome: ClassVar[bool] = True
    type: Literal["itpo"] = "itpo"
    temperature: float = Field(default=0.7, gt=0)
    """Temperature of the split, in nats."""
    outcome_coef: float = Field(default=1.0, ge=0)
    """Weight of the outcome's part."""
    process_coef: float = Field(default=1.0, ge=0)
    """Weight of the turn rewards' part."""


class EnvStepsCredit(Method):
    """The environment's own step rewards (ablation), normalized as A^S."""

    type: Literal["env_steps"] = "env_steps"
    step_adv_coef: float = Field(default=1.0, ge=0)
    """α, weight of the step advantage."""


class OracleCredit(Method):
    """The true worth of each step (upper bound), in environments that know their optimum."""

    type: Literal["oracle"] = "oracle"
    step_adv_coef: float = Field(default=1.0, ge=0)
    """α, weight of the step advantage."""


_Single = (
    NoCredit
    | IstarCredit
    | GigpoCredit
    | PrimeCredit
    | EnvStepsCredit
    | MergedCredit
    | TokenPrCredit
    | ProcessOnlyCredit
    | ItpoCredit
    | OracleCredit
    | IstarOfficialCredit
)
SingleCredit = Annotated[_Single, Field(discriminator="type"), BARE_WORD]
"""Every method by itself."""


class SumCredit(Method):
    """Several methods at once: their step advantages are added."""

    type: Literal["sum"] = "sum"
    parts: tuple[SingleCredit, ...] = (IstarCredit(), GigpoCredit())
    """The methods; at most one may have a PRM, and all must leave the outcome part alone."""

    @model_validator(mode="after")
    def _parts_can_be_added(self) -> "SumCredit":
        names = ", ".join(part.type for part in self.parts)
        if len(self.parts) < 2:
            raise ValueError(f"parts: [{names}] must be two or more; write one method without sum")
        whole = [part.type for part in self.parts if part.replaces_outcome]
        if whole:
            raise ValueError(f"parts: {', '.join(whole)} replace the outcome's part and cannot be added")
        if sum(part.uses_prm for part in self.parts) > 1:
            raise ValueError(f"parts: [{names}] need more than one process reward model; keep one of them")
        return self


CreditConfig = Annotated[_Single | SumCredit, Field(discriminator="type"), BARE_WORD]


def methods_of(config: Method) -> tuple[Method, ...]:
    """Return the methods that a configuration adds up, or itself."""
    return config.parts if isinstance(config, SumCredit) else (config,)


class PrmConfig(Section):
    """The implicit process reward model."""

    init: str | None = None
    """Folder of the weights it starts from, with the policy's tokenizer; null for the policy's own."""
    backbone: Literal["separate", "shared"] = "separate"
    """Whether it has frozen weights of its own, or is a second adapter on the policy's (``model.lora``)."""
    sees_images: bool = True
    """Whether the PRM sees the pictures of a prompt too; the paper's PRM for pictures reads text alone."""
    reference: Literal["rolling", "frozen", "ema"] | None = None
    """What rewards are relative to: the policy that sampled, the policy at the start, or a running mean of
    the policies; null for what the credit method publishes (``frozen`` for PRIME, else ``rolling``)."""
    reference_ema: float = Field(default=0.9, ge=0, le=1)
    """Share of itself that the reference keeps in each iteration with ``reference: ema``."""
    beta: float = Field(default=0.05, gt=0)
    """β, temperature of the implicit reward."""
    lr: float = Field(default=1e-6, gt=0)
    """AdamW learning rate; the paper's value for 7B models."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay."""
    grad_clip: float = Field(default=10.0, gt=0)
    """Largest gradient norm."""
    update_order: Literal["before", "after"] = "before"
    """Whether the PRM learns from a batch before or after it scores that batch."""
    updates_per_iteration: int = Field(default=1, ge=1)
    """Optimizer updates on each batch."""
    anchor: Literal["persistent", "reset", "ema"] = "persistent"
    """What happens to π_φ between iterations: nothing, back to π_old, or a step towards π_old. After
    ``reset`` it knows nothing of fresh pairs, so a ``warm_up`` of the step credit never ends."""
    ema: float = Field(default=0.9, ge=0, le=1)
    """Share of itself that π_φ keeps with ``anchor: ema``."""
    score: Literal["sum", "mean", "centered_sum", "token_norm"] = "sum"
    """Trajectory score of the pair loss: sum over steps (Eq. 2), their mean, centred sum, or per token."""
    pair_rule: PairRule = PairRule()
    """How outcomes become pairs."""
    pair_weight: Literal["group", "pair"] = "group"
    """Whether groups or pairs weigh the same."""
