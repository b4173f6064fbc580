"""A learner whose optimizer state, gradients or weights are divided among processes by DeepSpeed's ZeRO.

Policy, process reward model and critic are engines of their own. Snapshots and states are whole and in
the layout of the one-process learner, so a checkpoint suits any backend and any number of processes.
"""

import functools
import logging
import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from istar_envs.errors import ConfigError
from istar_trainer.config_distributed import DeepSpeedConfig
from istar_trainer.distributed.ranks import at, num_ranks, own_rank
from istar_trainer.distributed.sharded import ShardedLearner
from istar_trainer.errors import NonFiniteLoss
from istar_trainer.learner import Optimization
from istar_trainer.weights import num_parameters

_MOMENTS = ("exp_avg", "exp_avg_sq")
_LARGEST_BUCKET = 500_000_000
"""Gradients that are summed in one go, as DeepSpeed has it by default."""


class DeepSpeedLearner(ShardedLearner):
    """A model and AdamW divided among processes.

    Args:
        model: Causal LM with fp32 weights; equal in every process.
        optimization: Learning rate and friends.
        config: What is divided, and what waits in main memory.
        options: As for ``TorchLearner``.

    Raises:
        ConfigError: If DeepSpeed is not installed or refuses its settings.
    """

    def __init__(
        self,
        model: nn.Module,
        optimization: Optimization,
        config: DeepSpeedConfig,
        **options: Any,
    ) -> None:
        super().__init__(model, optimization, **options)
        self._stage = config.stage
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._has_gradient = False
        settings = zero_settings(config, optimization, num_parameters(model))
        with at("start of an engine"):
            self._engine = _start_engine(model, self.optimizer, settings)
        self._divided = self._engine.optimizer
        self._reset_moments()

    def accumulate(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a part of the loss to what is there; the engine averages over processes."""
        self._engine.backward(loss * num_ranks())
        self._has_gradient = True

    def step(self) -> float:
        """Clip, update the weights and clear the gradient.

        Returns:
            The gradient norm before clipping.

        Raises:
            NonFiniteLoss: If the gradient is NaN or infinite; weights untouched.
        """
        if not self._has_gradient:
            return 0.0
        self._has_gradient = False
        with at("step of the optimizer"):
            self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        if not torch.isfinite(torch.tensor(norm)):
            raise NonFiniteLoss(f"the gradient norm is {norm}. The weights were not changed.")
        return norm

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of the whole weights, in main memory; every process takes part and gets it.

        Tied weights stay one tensor under several names.
        """
        whole: dict[int, Tensor] = {}
        with at("gathering of weights"), torch.no_grad():
            for _, value in self._named_tensors():
                if id(value) not in whole:
                    whole[id(value)] = self._whole(value)
        return {name: whole[id(value)] for name, value in self._named_tensors()}

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to read from; a copy where this process holds only its share of them."""
        return self.snapshot() if self._stage == 3 else super().weights()

    def sampling_model(self) -> nn.Module:
        """Return a model that generates with ``weights``: one of its own where weights are divided."""
        if self._stage < 3:
            return self.model
        copy = cast(Any, type(self.model))(cast(Any, self.model).config)
        copy.load_state_dict(self.snapshot())
        return cast(nn.Module, copy.train(False).requires_grad_(False))

    def load(self, weights: dict[str, Tensor]) -> None:
        """Replace the weights; the optimizer state stays."""
        with at("spreading of weights"), torch.no_grad():
            for name, value in self._named_tensors():
                with _gathered(value):
                    value.copy_(weights[name])
            for name, value in self._named_tensors():
                self._set_share(value, weights[name])

    def state(self) -> dict[str, Any]:
        """Return the whole optimizer's state for a checkpoint, as the one-process learner does."""
        from deepspeed.utils import safe_get_full_optimizer_state

        group = {k: v for k, v in self._divided.param_groups[0].items() if k != "params"}
        updates = self._updates()
        moments: dict[int, dict[str, Tensor]] = {}
        with at("gathering of the optimizer's state"):
            for number, parameter in enumerate(self._trained if updates else []):
                moments[number] = {"step": torch.tensor(float(updates))} | {
                    key: safe_get_full_optimizer_state(parameter, key).cpu() for key in _MOMENTS
                }
        return {"state": moments, "param_groups": [{**group, "params": list(range(len(self._trained)))}]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state."""
        self._reset_moments()
        updates = max((float(each["step"]) for each in state["state"].values()), default=0.0)
        for flat in self._flat_parts():
            self._divided.optimizer.state[flat]["step"].fill_(updates)
        with at("spreading of the optimizer's state"), torch.no_grad():
            for number, moments in state["state"].items():
                for key in _MOMENTS:
                    self._set_share(self._trained[number], moments[key], key)
        kept = {k: v for k, v in state["param_groups"][0].items() if k != "params"}
        for group in self._divided.param_groups:
            group.update(kept)

    def scale_lr(self, share: float) -> None:
        """Use a share of the configured learning rate from the next step on."""
        for group in self._divided.param_groups:
            group["lr"] = self.optimization.lr * share

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.state_dict(keep_vars=True).items()

    def _whole(self, value: Tensor) -> Tensor:
        """Return a whole copy of one weight or buffer, at full precision where it is trained."""
        from deepspeed.utils import safe_get_full_fp32_param

        full = safe_get_full_fp32_param(value) if value.requires_grad else None
        if full is None:
            with _gathered(value):
                full = value.detach().clone()
        return full.cpu()

    def _set_share(self, parameter: Tensor, value: Tensor, moment: str | None = None) -> None:
        """Write this process's share of a trained weight at full precision, or of one of its moments."""
        if not parameter.requires_grad:
            return
        if self._stage == 3:
            from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

            size = cast(Any, parameter).ds_tensor.ds_numel
            flat = nn.functional.pad(value.flatten(), (0, size * num_ranks() - value.numel()))
            share = flat[size * own_rank() :][:size]
            if moment is None:
                safe_set_local_fp32_param(parameter, share)
            else:
                safe_set_local_optimizer_state(parameter, share, moment)
            return
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if moment is None:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, moment)

    def _flat_parts(self) -> list[Tensor]:
        """Return this process's parts of the trained weights, which AdamW's state belongs to."""
        name = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        return list(getattr(self._divided, name))

    def _updates(self) -> int:
        return int(self._divided.optimizer.state[self._flat_parts()[0]]["step"])

    def _reset_moments(self) -> None:
        """Give AdamW the state that it would make at its first step, so that it can be set before."""
        for flat in self._flat_parts():
            moments = {key: torch.zeros_like(flat) for key in _MOMENTS}
            self._divided.optimizer.state[flat] = {"step": torch.tensor(0.0), **moments}
        if self._stage < 3:
            self._divided._hp_optimizer_states_linked = False
            self._divided._lazy_init_hp_params_optimizer_state()


def zero_settings(config: DeepSpeedConfig, optimization: Optimization, num_trained: int) -> dict[str, Any]:
    """Say it in DeepSpeed's words.

    Args:
        config: What is divided, and what waits in main memory.
        optimization: For the clipping of gradients.
        num_trained: Trained parameters; buffers need not be larger.
    """
    bucket = min(num_trained, _LARGEST_BUCKET)
    zero: dict[str, Any] = {"stage": config.stage, "overlap_comm": False, "reduce_bucket_size": bucket}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    ours = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimization.grad_clip,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    further = dict(config.settings)
    zero.update(further.pop("zero_optimization", {}))
    return ours | further


def _start_engine(model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> Any:
    """Let DeepSpeed divide a model and its optimizer among the processes.

    Raises:
        ConfigError: If it is not installed or refuses the settings.
    """
    deepspeed = _deepspeed()
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    except (ValueError, AssertionError, KeyError) as error:
        raise ConfigError(f"DeepSpeed refuses learner.deepspeed: {error}. Settings: {settings}") from error


@functools.cache
def _deepspeed() -> Any:
    """Import DeepSpeed, quietly, without its all-reduce in shared memory, which never gives a peer up."""
    try:
        import deepspeed
        from deepspeed import ops
    except ImportError as error:
        raise ConfigError(
            "learner.backend: deepspeed needs the package deepspeed. Run pip install "
            '"istar-trainer[deepspeed]", or use learner.backend: torch.'
        ) from error
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*torch.distributed.* is deprecated", FutureWarning)  # its own calls
    return deepspeed


def _gathered(value: Tensor) -> Any:
    """Hold one weight whole while inside; what is written to it there by all processes alike stays."""
    deepspeed = _deepspeed()
    divided = [value] if hasattr(value, "ds_id") else []
    return deepspeed.zero.GatheredParameters(divided, modifier_rank=0)
