"""Shapes of a model, from its configuration alone: it is built on the meta device, without weights."""

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from istar_envs.errors import ConfigError, suggest
from istar_trainer import config as cfg
from istar_trainer.tiny import make_model


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What memory and work depend on; counts are numbers of parameters unless said otherwise.

    Attributes:
        name: Of the folder or the published model.
        num_parameters: All of them, tied ones once.
        body: Weights of the matrices that every token goes through, without embeddings and head.
        head: Weights of the output head.
        layer: One decoder layer.
        num_layers: Decoder layers.
        hidden: Width.
        intermediate: Width inside a layer's feed-forward part.
        num_heads: Attention heads.
        query: Width of all queries of a token.
        key: Width of all keys of a token.
        vocab: Tokens.
        linear: Inputs and outputs of every matrix but the head, with its name's last part.
    """

    name: str
    num_parameters: int
    body: int
    head: int
    layer: int
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    query: int
    key: int
    vocab: int
    linear: tuple[tuple[str, int, int], ...]

    def adapted(self, targets: Collection[str]) -> list[tuple[int, int]]:
        """Return inputs and outputs of the matrices that an adapter is on.

        Args:
            targets: Last parts of their names; empty for all but the head.
        """
        return [(inputs, outputs) for name, inputs, outputs in self.linear if not targets or name in targets]

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Count the parameters of a LoRA adapter: rank · (inputs + outputs) of every matrix it is on."""
        return sum(rank * (inputs + outputs) for inputs, outputs in self.adapted(targets))


def published_models() -> dict[str, dict[str, Any]]:
    """Return the shipped configurations by folder name."""
    text = resources.files("istar_trainer.planning").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def shape_of_run(config: cfg.ModelConfig) -> ModelShape:
    """Return the shape of the policy that a configuration names, or of its tiny model.

    The tiny model's vocabulary is taken as large as ``model.vocab_size`` allows.

    Raises:
        ConfigError: If the model is neither on disk nor among the published ones.
    """
    if config.path is not None:
        return shape_of(Path(config.path))
    with torch.device("meta"):
        model = make_model(
            config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            rope_theta=config.rope_theta,
            eos_token_id=2,
            seed=0,
        )
    return _measure("tiny", model)


def shape_of(path: Path) -> ModelShape:
    """Return the shape of the model in a folder; one that is not there must be a published one by its name.

    Raises:
        ConfigError: If the folder holds no configuration that can be read, or nothing is known of it.
    """
    file = path / "config.json"
    if file.is_file():
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from error
        return shape_from(path.name, values, str(file))
    known, name = published_models(), path.name.lower()
    if name not in known:
        raise ConfigError(
            f"no model in {path}, and no published model {name!r} is known.{suggest(name, known)} "
            "Give model.path a folder that holds at least the model's config.json."
        )
    return shape_from(name, known[name], name)


def shape_from(name: str, values: Mapping[str, Any], where: str) -> ModelShape:
    """Return the shape that the keys of a ``config.json`` describe.

    Args:
        name: What the model is called.
        values: The keys.
        where: What they are from, for the message.

    Raises:
        ConfigError: If the installed transformers do not know the architecture, or the keys do not fit it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    keys = dict(values)
    try:
        config = AutoConfig.for_model(keys.pop("model_type"), **keys)
        is_text = type(config) in AutoModelForCausalLM._model_mapping
        kind: Any = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
        with torch.device("meta"):
            model = kind.from_config(config)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot tell the shape of the model in {where}: {error}") from error
    return _measure(name, model)


def _measure(name: str, model: Any) -> ModelShape:
    text = model.config.get_text_config()
    head = model.get_output_embeddings()
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    decoder = model.get_decoder()
    own = {id(module) for module in decoder.modules()}
    per_head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        name=name,
        num_parameters=sum(p.numel() for p in model.parameters()),
        body=sum(m.weight.numel() for _, m in linear if id(m) in own),
        head=head.weight.numel(),
        layer=sum(p.numel() for p in decoder.layers[0].parameters()),
        num_layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        num_heads=text.num_attention_heads,
        query=per_head * text.num_attention_heads,
        key=per_head * text.num_key_value_heads,
        vocab=text.vocab_size,
        linear=tuple((n.rpartition(".")[2], m.in_features, m.out_features) for n, m in linear),
    )
