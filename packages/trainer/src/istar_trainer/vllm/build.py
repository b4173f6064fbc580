"""Makes the vLLM sampler of a run from its configuration."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.devices import device_of
from istar_trainer.lora import AdaptedModel
from istar_trainer.pictures import PlacedPicture
from istar_trainer.vision import Shown, place_pictures, reads_pictures, rope_positions, showing
from istar_trainer.vllm.broadcast import BroadcastTransfer
from istar_trainer.vllm.engine import VllmEngine
from istar_trainer.vllm.files import FileTransfer
from istar_trainer.vllm.process import ServerProcess
from istar_trainer.vllm.sampler import Backend, Transfer, VllmSampler
from istar_trainer.vllm.server import VllmServer
from istar_trainer.vllm.snapshots import is_tied, snapshot_tensors, write_snapshot
from istar_trainer.vllm.wire import engine_arguments

_COARSE = 0.1
_PROBE_BANDS = {"float32": 1e-3}
"""Mean |Δ logprob| in nats that arithmetic alone explains; measured 3e-7 in fp32 and 0.01 in bf16."""

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM can be made ready for."""


def make_vllm_sampler(
    config: VllmSamplerConfig,
    model: nn.Module,
    model_path: Path,
    run_dir: Path,
    *,
    weights: Callable[[], dict[str, Tensor]],
    eos_token_id: int,
    max_prompt_tokens: int,
    max_new_tokens: int,
) -> VllmSampler:
    """Make a sampler that follows a learner's model.

    Args:
        config: The section ``sampler``.
        model: The learner's model; one with an adapter hands over that only.
        model_path: Folder that it was loaded from, with the tokenizer.
        run_dir: Run folder, for the server's log and, by default, the snapshots.
        weights: Returns the learner's weights, whole.
        eos_token_id: Token that ends a reply.
        max_prompt_tokens: Longest prompt.
        max_new_tokens: Longest reply.
    """
    if isinstance(model, AdaptedModel):
        ready_for = next(rank for rank in _LORA_RANKS if rank >= max(model.rank, config.max_lora_rank))
        config = config.model_copy(update={"max_lora_rank": ready_for})
    arguments = partial(
        engine_arguments,
        config,
        tokenizer=model_path,
        max_tokens=max_prompt_tokens + max_new_tokens,
        sees_pictures=reads_pictures(model),
    )
    backend, transfer = _make_backend(config, model, model_path.resolve(), run_dir, arguments)
    sampler = VllmSampler(
        backend,
        transfer,
        score=partial(text_logprobs, model),
        eos_token_id=eos_token_id,
        max_new_tokens=max_new_tokens,
        probe_band=config.probe_band or _PROBE_BANDS.get(config.dtype, _COARSE),
        max_restarts=config.max_restarts,
        sleeps=config.sleep,
    )
    if config.transfer == "broadcast" or is_tied(model):
        sampler.load(weights(), 0)
    return sampler


def _make_backend(
    config: VllmSamplerConfig,
    model: nn.Module,
    model_path: Path,
    run_dir: Path,
    arguments: Callable[[Path], dict[str, Any]],
) -> tuple[Backend, Transfer]:
    """Make a server or an engine, and the way by which weights reach it."""
    pixels = torch.float32 if config.dtype == "auto" else getattr(torch, config.dtype)
    if config.transfer == "broadcast":
        server = _make_server(config, arguments, run_dir, pixels)
        transfer = BroadcastTransfer(
            server,
            model_path,
            partial(snapshot_tensors, model),
            device=device_of(model),
            dtype=None if config.dtype == "auto" else pixels,
            join_timeout_s=config.start_timeout_s,
            timeout_s=config.request_timeout_s,
        )
        return server, transfer
    backend = (
        VllmEngine(arguments, pixels=pixels)
        if config.mode == "engine"
        else _make_server(config, arguments, run_dir, pixels)
    )
    write = partial(write_snapshot, model, beside=model_path, dtype=config.dtype)
    return backend, FileTransfer(backend, model_path, snapshot_folder(config.sync_dir, run_dir), write)


def _make_server(
    config: VllmSamplerConfig,
    arguments: Callable[[Path], dict[str, Any]],
    run_dir: Path,
    pixels: torch.dtype,
) -> VllmServer:
    def start_process(flags: list[str]) -> ServerProcess:
        return ServerProcess(config.python, flags, config.env, log=run_dir / "vllm.log")

    return VllmServer(
        arguments,
        start_process=start_process if config.url is None else None,
        url=config.url,
        pixels=pixels,
        concurrency=config.concurrency,
        start_timeout_s=config.start_timeout_s,
        request_timeout_s=config.request_timeout_s,
    )


def snapshot_folder(sync_dir: Path | None, run_dir: Path) -> Path:
    """Return the folder of a run's snapshots: its own, however many runs share ``sync_dir``."""
    run = run_dir.resolve()
    return run / "snapshots" if sync_dir is None else sync_dir.resolve() / "-".join(run.parts[1:])


@torch.no_grad()
def text_logprobs(model: Any, ids: Sequence[int], pictures: Sequence[PlacedPicture] = ()) -> list[float]:
    """Logprob of every token of a text but the first, at temperature 1, fp32 log-softmax.

    Args:
        model: Causal LM.
        ids: The text.
        pictures: What it shows.
    """
    tokens = torch.tensor([list(ids)])
    album, places = place_pictures([pictures], [0])
    shown = Shown.of(places, album)
    positions, _ = rope_positions(torch.ones_like(tokens), shown)
    device = device_of(model)
    tokens, positions = tokens.to(device), (positions[0] if shown is None else positions).to(device)
    with showing(model, shown):
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    logprobs = logits[0, :-1].float().log_softmax(dim=-1)
    values: list[float] = logprobs.gather(1, tokens[0, 1:, None])[:, 0].tolist()
    return values
