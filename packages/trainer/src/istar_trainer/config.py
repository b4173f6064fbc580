"""The whole configuration of a run as one frozen tree; no torch here.

Order: defaults < YAML < command line. ``algorithm`` and ``credit`` are chosen by ``type``; a bare
word (``credit: istar``) means that type with its defaults. Every default is the published value
unless its text says otherwise.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from istar_trainer.config_algorithms import AlgorithmConfig, DapoConfig, RlooConfig
from istar_trainer.config_base import Section
from istar_trainer.config_credits import CreditConfig, IstarCredit, PrmConfig
from istar_trainer.config_distributed import DeepSpeedConfig
from istar_trainer.config_judge import JudgeConfig
from istar_trainer.config_lora import LoraConfig
from istar_trainer.config_sampler import LocalSamplerConfig, SamplerConfig, VllmSamplerConfig


class EnvConfig(Section):
    """What is played and how it is told."""

    id: str = "istar/Sokoban-v0"
    """Registered environment id."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
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
    device: Literal["cpu", "cuda"] = "cpu"
    """Where models live; with ``cuda``, each process of a machine takes the GPU of its number."""
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
    vision_layers: int = Field(default=1, ge=1)
    """Layers of the tiny model's vision tower, if the environment shows pictures (ignored with ``path``)."""
    freeze_vision: bool = False
    """Leave the vision tower as it is, in every model of the run. A tiny one of random weights tells tiles
    apart from the start, and unlearns it at the rates that tiny models want."""
    rope_theta: float = Field(default=30.0, gt=1)
    """Base of the tiny model's rotary wavelengths, about 4 × base tokens at most (ignored with ``path``)."""
    lora: LoraConfig | None = None
    """Learn adapters on frozen weights, in every stage and every model; null to learn all weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers. With ``lora``, frozen weights are held in it too; whatever learns is held,
    and updated, in fp32."""
    gradient_checkpointing: bool = False
    """Whether backward computes each layer again instead of holding its activations."""


class WarmStartConfig(Section):
    """Behaviour cloning of a demonstrator before reinforcement learning, and between its updates."""

    enabled: bool = True
    """Whether to clone the demonstrator first."""
    demonstrator: Literal["expert", "rule"] = "expert"
    """Who shows: the expert, or a follower of simple rules without its knowledge where there is one."""
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
    rehearsal_updates: int = Field(default=0, ge=0)
    """Cloning updates that follow each policy update in reinforcement learning, at the policy's rate."""


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
    env_threads: int = Field(default=0, ge=0)
    """Environments that may be waited for at a time, each in a thread: for servers, partners and judges with
    slow calls. 0 steps one after the other."""
    min_ready_frac: float = Field(default=0.25, gt=0, le=1)
    """With ``env_threads``, replies are drawn as soon as such a share of the trajectories in play is ready. 1
    waits for all, so that batches, and results to the last bit, do not depend on timing."""
    spare_tasks: int = Field(default=0, ge=0)
    """Groups in play beyond ``num_tasks``, so that an iteration can leave its slowest for a later one."""
    max_lag: int = Field(default=0, ge=0)
    """Updates that a group may be late; then it is waited for. Needs ``spare_tasks`` and
    ``algorithm.loss.correction``; 0 plays every group to its end at once."""

    @model_validator(mode="after")
    def _spare_groups_may_be_late(self) -> "RolloutConfig":
        if (self.max_lag > 0) != (self.spare_tasks > 0) or self.spare_tasks > self.num_tasks:
            raise ValueError(
                f"max_lag: {self.max_lag} with spare_tasks: {self.spare_tasks}; groups can be late if and "
                f"only if there are some to spare, and at most num_tasks: {self.num_tasks} of them"
            )
        return self


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
    """Tokens per forward pass, padding included unless rows are packed; a memory knob that changes no result
    beyond rounding."""
    packing: bool = False
    """Whether rows are laid end to end instead of padded; changes no result beyond rounding."""
    merge_prefixes: bool = True
    """Whether steps of a full dialogue (``env.window: null``), which later steps repeat and go on from, are
    computed as part of the last one; changes no result beyond rounding. Other rows are not concerned."""
    logits_mib: int = Field(default=512, ge=1)
    """Largest fp32 logits held at once, in MiB; where they are more, backward computes them again by pieces.
    A memory knob too: 512 is 883 tokens of Qwen2.5's vocabulary."""
    backend: Literal["torch", "deepspeed"] = "torch"
    """What updates weights: torch, with the whole model in every process, or DeepSpeed's ZeRO."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    """ZeRO's settings (ignored with ``backend: torch``)."""
    watchdog_s: float = Field(default=1800, gt=0)
    """Seconds that one of many processes may go without progress before the run is ended; longer than the
    longest rollout, judging or evaluation."""

    def lr_share(self, iteration: int, iterations: int) -> float:
        """Return the share of ``lr`` that an iteration uses, of so many iterations in all."""
        rise = min(1.0, (iteration + 1) / (self.warm_up_iterations + 1))
        return rise * (1.0 - (1.0 - self.final_lr_frac) * iteration / iterations)


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
    sampler: SamplerConfig = LocalSamplerConfig()
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
    def _shared_backbone_has_adapters(self) -> "RunConfig":
        if self.prm.backbone == "shared" and self.learner.backend == "deepspeed":
            raise ValueError(
                "prm.backbone: shared is one model with two learners, and not two engines of DeepSpeed; "
                "use learner.backend: torch or prm.backbone: separate"
            )
        if self.prm.backbone == "shared" and (self.model.lora is None or self.prm.init is not None):
            raise ValueError(
                "prm.backbone: shared makes the reward model an adapter on the policy's frozen weights: it "
                "needs model.lora and cannot go with prm.init"
            )
        return self

    @model_validator(mode="after")
    def _adapters_have_a_whole_base(self) -> "RunConfig":
        learner = self.learner
        if self.model.lora is not None and (learner.backend, learner.deepspeed.stage) == ("deepspeed", 3):
            raise ValueError(
                "model.lora adapts a whole base in every process, which learner.deepspeed.stage: 3 divides; "
                "use stage 1 or 2, or learner.backend: torch"
            )
        return self

    @model_validator(mode="after")
    def _adapters_are_read_from_files(self) -> "RunConfig":
        is_sent = isinstance(self.sampler, VllmSamplerConfig) and self.sampler.transfer == "broadcast"
        if self.model.lora is not None and is_sent:
            raise ValueError(
                "sampler.transfer: broadcast sends whole models, but with model.lora vLLM reads the adapter, "
                "which is small, from a folder: use sampler.transfer: files"
            )
        return self

    @model_validator(mode="after")
    def _vision_is_frozen_once(self) -> "RunConfig":
        if self.model.freeze_vision and self.model.lora is not None:
            raise ValueError(
                "model.freeze_vision with model.lora: adapters leave all weights as they are and go where "
                "model.lora.target_modules says; name layers there that the vision tower does not have"
            )
        return self

    @model_validator(mode="after")
    def _judge_has_a_model(self) -> "RunConfig":
        if (self.verifier == "llm") != bool(self.judge.model):
            raise ValueError(
                f"verifier: {self.verifier} with judge.model: {self.judge.model!r}; a model judges with "
                "verifier: llm and judge.model set, and not otherwise"
            )
        return self

    @model_validator(mode="after")
    def _late_groups_are_corrected(self) -> "RunConfig":
        lag, correction = self.rollout.max_lag, self.algorithm.loss.correction
        is_corrected = correction is not None and (correction.weight or correction.reject) is not None
        if lag and (not is_corrected or self.algorithm.dynamic_sampling is not None):
            raise ValueError(
                f"rollout.max_lag: {lag} lets older weights play: it needs algorithm.loss.correction, such "
                "as {weight: token}, and cannot go with algorithm.dynamic_sampling"
            )
        return self

    @model_validator(mode="after")
    def _overlong_ramp_fits(self) -> "RunConfig":
        limit = self.rollout.max_response_tokens
        overlong = self.algorithm.overlong if isinstance(self.algorithm, DapoConfig) else None
        if overlong is not None and overlong.buffer > limit:
            raise ValueError(
                f"algorithm.overlong.buffer: {overlong.buffer} is wider than "
                f"rollout.max_response_tokens: {limit}"
            )
        return self
