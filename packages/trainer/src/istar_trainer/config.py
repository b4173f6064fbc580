"""The whole configuration of a run as one frozen tree; no torch here.

Order: defaults < YAML < command line. ``algorithm`` and ``credit`` are chosen by ``type``; a bare
word (``credit: istar``) means that type with its defaults. Every default is the published value
unless its text says otherwise.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from istar_judges.pairs import PairRule
from istar_trainer.config_base import BARE_WORD, Section
from istar_trainer.config_judge import JudgeConfig


class EnvConfig(Section):
    """What is played and how it is told."""

    id: str = "istar/Sokoban-v0"
    """Registered environment id."""
    kwargs: dict[str, Any] = Field(default={})
    """Keyword arguments of the environment, except ``split``."""
    template: str = "bare-v1"
    """Prompt template: a shipped name or the path of a .toml file."""
    window: int | None = Field(default=0, ge=0)
    """Past steps repeated in each prompt; null for the full dialogue. The paper uses 2."""
    train_split: str = "train"
    """Split that rollouts and demonstrations come from."""


class ModelConfig(Section):
    """The policy's starting weights."""

    path: str | None = None
    """Folder in Hugging Face layout; null builds a tiny model for the environment in the run folder."""
    vocab_size: int = Field(default=512, ge=264)
    """Largest vocabulary of the tiny model's tokenizer (ignored with ``path``)."""
    tokenizer_episodes: int = Field(default=50, ge=1)
    """Episodes whose text the tiny model's tokenizer is made from (ignored with ``path``)."""
    hidden_size: int = Field(default=64, ge=8)
    """Width of the tiny model (ignored with ``path``)."""
    num_layers: int = Field(default=4, ge=1)
    """Layers of the tiny model (ignored with ``path``)."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads of the tiny model (ignored with ``path``)."""
    rope_theta: float = Field(default=30.0, gt=1)
    """Base of the tiny model's rotary wavelengths, about 4 × base tokens at most (ignored with ``path``)."""


class WarmStartConfig(Section):
    """Behaviour cloning of the expert before reinforcement learning."""

    enabled: bool = True
    """Whether to clone the expert first."""
    episodes: int = Field(default=2000, ge=1)
    """Demonstrations, drawn from the training split."""
    batch_size: int = Field(default=128, ge=1)
    """Steps per optimizer update."""
    max_epochs: float = Field(default=30, gt=0)
    """Stop at the latest after so many passes over the demonstrations."""
    lr: float = Field(default=2e-3, gt=0)
    """AdamW learning rate."""
    final_lr_frac: float = Field(default=1.0, ge=0, le=1)
    """Share of ``lr`` left after ``max_epochs``, reached linearly; 1 keeps it constant."""
    target_success: float = Field(default=0.4, gt=0, le=1)
    """Stop once success on the dev split reaches this share, so that RL has room."""
    eval_every: int = Field(default=40, ge=1)
    """Optimizer updates between looks at dev success."""
    eval_tasks: int = Field(default=200, ge=1)
    """Dev tasks per look."""


class RolloutConfig(Section):
    """How the policy plays."""

    num_tasks: int = Field(default=16, ge=1)
    """Tasks (groups) per iteration; the paper uses 16 (WebShop) or 32 (Sokoban)."""
    group_size: int = Field(default=8, ge=1)
    """Trajectories per task; the paper uses 8."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; also divides the logits wherever logprobs are compared."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """A longer prompt ends the trajectory as truncated."""
    max_response_tokens: int = Field(default=8, ge=1)
    """Tokens per reply; the paper uses 512."""
    max_failed_frac: float = Field(default=0.25, ge=0, le=1)
    """Stop the run if a larger share of an iteration's trajectories broke."""
    invalid_penalty: float = Field(default=0.1, ge=0)
    """Subtracted from the outcome for each invalid step, and shown in the episode's records."""


class LearnerConfig(Section):
    """The policy's optimizer."""

    lr: float = Field(default=5e-7, ge=0)
    """AdamW learning rate; the paper's value for 7B models. Tiny models want about 1e-3."""
    final_lr_frac: float = Field(default=1.0, ge=0, le=1)
    """Share of ``lr`` left at the end, reached linearly; 1 keeps it constant, as in the paper."""
    warm_up_iterations: int = Field(default=0, ge=0)
    """Iterations in which the rate first rises to ``lr``: AdamW's first steps are its largest. Paper: 0."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW weight decay."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per pass; groups are dealt out whole."""
    micro_batch_tokens: int = Field(default=65536, ge=1)
    """Padded tokens per forward pass; a memory knob that changes no result beyond rounding."""

    def lr_share(self, iteration: int, iterations: int) -> float:
        """Return the share of ``lr`` that an iteration uses, of so many iterations in all."""
        rise = min(1.0, (iteration + 1) / (self.warm_up_iterations + 1))
        return rise * (1.0 - (1.0 - self.final_lr_frac) * iteration / iterations)


class LossConfig(Section):
    """The policy loss (shared by all algorithms)."""

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


class RlooConfig(Section):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): own outcome minus the mean of the others."""

    type: Literal["rloo"] = "rloo"
    loss: LossConfig = LossConfig()


class GrpoConfig(Section):
    """Group-relative policy optimization (Shao et al. 2024): outcomes standardized in the group."""

    type: Literal["grpo"] = "grpo"
    loss: LossConfig = LossConfig()
    std: Literal["population", "unbiased", "none"] = "unbiased"
    """Divisor: standard deviation of the group's outcomes, or none (Dr. GRPO)."""


class NoCredit(Section):
    """Outcome advantages only."""

    type: Literal["none"] = "none"


class WarmUp(Section):
    """When the step advantage may speak (spec: α warm-up)."""

    pair_acc: float = Field(default=0.55, ge=0, le=1)
    """Prequential pair accuracy that the PRM must reach."""
    window: int = Field(default=5, ge=1)
    """Iterations over which it must hold."""
    start_at: int = Field(default=0, ge=0)
    """Not before this iteration."""


class IstarCredit(Section):
    """iStar: implicit step rewards of an online PRM (Eq. 1–5)."""

    type: Literal["istar"] = "istar"
    step_adv_coef: float = Field(default=1.0, ge=0)
    """α, weight of the step advantage."""
    attribution: Literal["as_published", "shifted", "shifted_to_go"] = "as_published"
    """Which step receives what: r_t itself, or its action part plus the offset of the state it led to."""
    gamma: float = Field(default=0.9, ge=0, le=1)
    """Discount of ``shifted_to_go``."""
    center: Literal["none", "policy_kl"] = "none"
    """Whether the state offset c(h) = −β KL(π_old‖π_φ) is split off; required by both shifted forms."""
    groups: Literal["all", "with_pairs"] = "all"
    """Which groups receive step advantages."""
    norm: Literal["mean_std", "rloo", "maxabs", "none"] = "mean_std"
    """Normalization of step rewards."""
    scope: Literal["group", "batch"] = "group"
    """Steps that a step is compared with."""
    on_degenerate_groups: bool = True
    """Whether groups whose outcomes are all equal still receive step advantages."""
    floor_factor: float = Field(default=10.0, ge=0)
    """The smallest standard deviation taken seriously, in multiples of the measured noise."""
    warm_up: WarmUp | None = None
    """α is 0 until the PRM has shown itself; null switches it on at once, as in the paper."""

    @model_validator(mode="after")
    def _shifted_needs_center(self) -> "IstarCredit":
        if self.attribution != "as_published" and self.center == "none":
            raise ValueError(
                f"attribution: {self.attribution} moves the state offset, so it needs center: policy_kl"
            )
        return self


class PrmConfig(Section):
    """The implicit process reward model."""

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
    """What happens to π_φ between iterations: nothing, back to π_old, or a step towards π_old."""
    ema: float = Field(default=0.9, ge=0, le=1)
    """Share of itself that π_φ keeps with ``anchor: ema``."""
    score: Literal["sum", "mean", "centered_sum", "token_norm"] = "sum"
    """Trajectory score of the pair loss: sum over steps (Eq. 2), their mean, centred sum, or per token."""
    pair_rule: PairRule = PairRule()
    """How outcomes become pairs."""
    pair_weight: Literal["group", "pair"] = "group"
    """Whether groups or pairs weigh the same."""


class EvalConfig(Section):
    """Held-out evaluation on fixed task lists."""

    every: int = Field(default=10, ge=1)
    """Iterations between looks at dev success."""
    dev_tasks: int = Field(default=100, ge=1)
    """Tasks of the dev split per look, always the first ones."""
    test_tasks: int = Field(default=512, ge=0)
    """Tasks of the test split, before and after training."""
    temperature: float = Field(default=0.4, ge=0)
    """Sampling temperature; 0 is greedy. The paper uses 0.4."""
    seed: int = 20_000
    """Seed of the evaluation's sampling, the same every time."""


class CheckpointConfig(Section):
    """What is kept on disk."""

    every: int = Field(default=10, ge=1)
    """Iterations between checkpoints."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""


AlgorithmConfig = Annotated[RlooConfig | GrpoConfig, Field(discriminator="type"), BARE_WORD]
CreditConfig = Annotated[NoCredit | IstarCredit, Field(discriminator="type"), BARE_WORD]


class RunConfig(Section):
    """Everything that decides a run."""

    run_dir: Path = Path("runs/istar")
    """Folder of the run; must be new or empty unless resuming."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random in training."""
    iterations: int = Field(default=200, ge=0)
    """Training iterations."""
    threads: int = Field(default=0, ge=0)
    """Torch threads; 0 leaves torch's own choice."""
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    verifier: str | None = None
    """Which verifier judges the episodes (``istar_judges.verifiers``), or ``llm`` for the model of ``judge``;
    null for the environment's own verifier."""
    judge: JudgeConfig = JudgeConfig()
    outcome: Literal["success", "return"] = "success"
    """Episode outcome r_o: 1 for success and 0 otherwise, or the sum of the environment's rewards (the
    verified or judged score in SOTOPIA; pair by ``prm.pair_rule.label: success`` then)."""
    algorithm: AlgorithmConfig = RlooConfig()
    credit: CreditConfig = IstarCredit()
    learner: LearnerConfig = LearnerConfig()
    prm: PrmConfig = PrmConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tensorboard: bool = False
    """Also write TensorBoard event files (extra ``istar-trainer[tensorboard]``)."""
    shown_trajectories: int = Field(default=4, ge=0)
    """Trajectories per evaluation point whose credit is kept for the report."""

    @model_validator(mode="after")
    def _judge_has_a_model(self) -> "RunConfig":
        if (self.verifier == "llm") != bool(self.judge.model):
            raise ValueError(
                f"verifier: {self.verifier} with judge.model: {self.judge.model!r}; a model judges with "
                "verifier: llm and judge.model set, and not otherwise"
            )
        return self
