"""Adapters on frozen weights: several models that learn, one base in memory.

A ``Backbone`` holds the base; each ``AdaptedModel`` is the base with an adapter of its own, or with
none. To the rest of the trainer it is a model like any other, whose weights are the adapter's alone.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from istar_envs.errors import ConfigError
from istar_trainer.config_lora import LoraConfig
from istar_trainer.head import head_of


class Backbone:
    """A frozen base model and the adapters on it; at most one of them is active at a time.

    Args:
        model: Causal LM; its linear layers are replaced by adapted ones in place.
        config: Size and places of the adapters.
        seed: Seed of the adapters' first weights, the same for all, so that all start as the base.
    """

    def __init__(self, model: nn.Module, config: LoraConfig, *, seed: int) -> None:
        self.model = model
        self._config = config
        self._seed = seed
        self._names: list[str] = []
        self._active: str | None = None

    def adapted(self) -> "AdaptedModel":
        """Return the base with a new adapter, which changes nothing yet.

        Raises:
            ConfigError: If ``model.lora.target_modules`` names no layer, or the output head.
        """
        self._require_no_head()
        peft = _peft()
        description = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=self._config.rank,
            lora_alpha=self._config.alpha,
            target_modules=list(self._config.target_modules) or "all-linear",
        )
        name = f"adapter{len(self._names)}"
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", message="Already found a `peft_config` attribute")
            torch.manual_seed(self._seed)
            try:
                peft.inject_adapter_in_model(description, self.model, name)
            except ValueError as error:
                names = ", ".join(self._config.target_modules)
                raise ConfigError(
                    f"model.lora.target_modules: [{names}] cannot be adapted: {error}"
                ) from error
        self._names.append(name)
        for full_name, parameter in self.model.named_parameters():
            if name in full_name.split("."):
                parameter.data = parameter.data.float()
        self._active = None
        self.use(name)
        return AdaptedModel(self, name)

    def bare(self) -> "AdaptedModel":
        """Return the base as it is, whatever adapters it has got."""
        return AdaptedModel(self, None)

    def use(self, name: str | None) -> None:
        """Let the base compute with an adapter, or with none; every adapter stays trainable."""
        if name == self._active and self._names:
            return
        for _, layer in self._layers():
            layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(name)
            for parameter_name, parameter in layer.named_parameters():
                parameter.requires_grad_("lora_" in parameter_name)
        self._active = name

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Compute with an adapter for a while."""
        before = self._active
        self.use(name)
        try:
            yield
        finally:
            self.use(before)

    def as_now(self) -> Any:
        """Return a context in which the adapter that is active now is active again."""
        return self.using(self._active)

    def own(self, name: str | None) -> dict[str, nn.Parameter]:
        """Return the parameters that make up one model, named alike whichever adapter it has."""
        others = {f".{other}." for other in self._names if other != name}
        return {
            full_name.replace(f".{name}.", "."): parameter
            for full_name, parameter in self.model.named_parameters()
            if not any(other in full_name for other in others)
        }

    def merged(self, name: str | None) -> dict[str, Tensor]:
        """Return the weights of the base with an adapter worked in, named as the base's own."""
        weights = {
            key.replace(".base_layer.", "."): value
            for key, value in self.model.state_dict().items()
            if ".lora_" not in key
        }
        for path, layer in self._layers() if name is not None else ():
            base: Tensor = weights[f"{path}.weight"]
            weights[f"{path}.weight"] = (base.float() + layer.get_delta_weight(name)).to(base.dtype)
        return weights

    def _require_no_head(self) -> None:
        heads = (head_of(self.model), cast(Any, self.model).get_input_embeddings())
        ends = {name.split(".")[-1] for name, m in self.model.named_modules() if any(m is h for h in heads)}
        if found := ends & set(self._config.target_modules):
            raise ConfigError(
                f"model.lora.target_modules: {', '.join(found)} cannot be adapted, since embedding and "
                "output head stay as they are. Leave it out."
            )

    def _layers(self) -> list[tuple[str, Any]]:
        from peft.tuners.lora import LoraLayer

        return [(name, m) for name, m in self.model.named_modules() if isinstance(m, LoraLayer)]


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            'model.lora is set but peft is not installed. Run pip install "istar-trainer[peft]".'
        ) from error
    return peft


class AdaptedModel(nn.Module):
    """The base with one adapter, or with none: a causal LM whose weights are the adapter's.

    Args:
        backbone: Base and adapters.
        name: The adapter; None for the bare base.
    """

    def __init__(self, backbone: Backbone, name: str | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.name = name
        self.base = backbone.model
        self.train(False)

        @functools.wraps(self.base.forward)  # keeps the signature, which tells how the cache is called
        def run(*inputs: Any, **options: Any) -> Any:
            backbone.use(name)
            return backbone.model(*inputs, **options)

        self.forward = run

    @property
    def config(self) -> Any:
        """The base's configuration."""
        return self.base.config

    def get_output_embeddings(self) -> nn.Module:
        """Return the output head, which no adapter changes."""
        return cast(nn.Module, cast(Any, self.base).get_output_embeddings())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the base's parameters and the adapter's own, without those of other adapters."""
        for name, parameter in self.backbone.own(self.name).items():
            yield f"{prefix}.{name}" if prefix else name, parameter

    def state_dict(self, *_args: Any, **_options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the weights that can move: the adapter's, and no frozen ones."""
        return {n: p.data for n, p in self.backbone.own(self.name).items() if p.requires_grad}

    def save_pretrained(self, out: str | Path) -> None:
        """Save the whole model with the adapter worked in, and the adapter by itself in ``adapter/``."""
        cast(Any, self.base).save_pretrained(out, state_dict=self.backbone.merged(self.name))
        if self.name is not None:
            self.save_adapter(Path(out) / "adapter")

    @property
    def rank(self) -> int:
        """The adapter's rank."""
        return int(cast(Any, self.base).peft_config[self.name].r)

    def save_adapter(self, out: str | Path, state: dict[str, Any] | None = None) -> None:
        """Save the adapter alone in the layout of peft, with weights of another moment if they are given."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        config = cast(Any, self.base).peft_config[self.name]
        config.save_pretrained(folder)
        weights = {f"base_model.model.{n}": v.contiguous() for n, v in (state or self.state_dict()).items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
