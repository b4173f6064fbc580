"""Speed of the local sampler. Run with `python -m pytest benchmarks/bench_sampler.py -s`.

A tiny model that has cloned some games plays the same tasks with the local sampler and with Hugging Face's
`generate`, called for every turn of every environment, or once a turn for all of them. Full dialogues, in
text and in pictures, are played with and without what is kept of earlier turns. Speeds are new tokens per
second of CPU time, and ratios come from one run.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from istar_trainer.attempts import Task
from istar_trainer.config import RunConfig
from istar_trainer.config_files import read_tree
from istar_trainer.factories import make_env
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.rollout import Player
from istar_trainer.sampler import Completion, LocalSampler, Request
from istar_trainer.sft import clone, demonstrate
from istar_trainer.tiny import init_tiny
from istar_trainer.vision import freeze_vision
from istar_trainer.weights import load_model

ROOT = Path(__file__).parents[1]
BAR = 3.0
TASKS, GROUP = 4, 8
TEXT, PICTURES = ["tiny_cpu", "webshop_istar_tiny"], ["visual_sokoban_istar_tiny"]


class Generate:
    """Hugging Face's own generation, for one row or all rows at a time."""

    snapshot_id = 0

    def __init__(self, model: Any, *, eos_token_id: int, max_new_tokens: int, max_rows: int) -> None:
        self.model = model
        self.options = {"eos_token_id": eos_token_id, "max_new_tokens": max_new_tokens, "pad_token_id": 0}
        self.eos_token_id = eos_token_id
        self.max_rows = max_rows

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        done: list[Completion] = []
        for start in range(0, len(requests), self.max_rows):
            done += self._some([list(r.prompt_ids) for r in requests[start : start + self.max_rows]])
        return done

    def _some(self, prompts: list[list[int]]) -> list[Completion]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = self.model.generate(
            input_ids=ids, attention_mask=attention, do_sample=True, top_k=0, top_p=1.0, **self.options
        )
        replies = [row[width:].tolist() for row in out]
        stops = [r.index(self.eos_token_id) + 1 if self.eos_token_id in r else len(r) for r in replies]
        return [Completion(tuple(r[:n]), (0.0,) * n) for r, n in zip(replies, stops, strict=True)]


class Timed:
    """Counts what a sampler draws and how long it takes."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.snapshot_id = sampler, 0
        self.drawn, self.seconds = 0, 0.0

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        start = time.process_time()
        found = self.sampler.generate(requests, temperature=temperature)
        self.seconds += time.process_time() - start
        self.drawn += sum(len(c.response_ids) for c in found)
        return found


@pytest.fixture(scope="module")
def cloned(request, tmp_path_factory) -> tuple[str, dict, nn.Module, Any]:
    """A configuration, and a tiny model that has cloned a few of its demonstrator's games."""
    tree = read_tree(ROOT / f"configs/{request.param}.yaml")
    tree["env"]["window"] = None
    tree["warm_start"]["episodes"] = 60
    config = RunConfig.model_validate(tree)
    env = make_env(config.env, "train")
    folder = init_tiny(
        env,
        tmp_path_factory.mktemp("sampler") / "model",
        template=config.env.template,
        window=None,
        episodes=50,
        hidden_size=64,
        num_layers=4,
        num_heads=8,
        seed=0,
    )
    model, tokenizer = load_model(folder)
    if config.model.freeze_vision:
        freeze_vision(model)
    steps = demonstrate(env, tokenizer, config.env, config.warm_start, seed=0)
    env.close()
    learner = TorchLearner(model, Optimization(2e-3, 0.0, 1.0), temperature=1.0, micro_batch_tokens=8192)
    for update in range(24):
        clone(steps[update * 16 % len(steps) :][:16], learner)
    return request.param, tree, model, tokenizer


def play(cloned: tuple[str, dict, nn.Module, Any], sampler: Any, window: int | None) -> Timed:
    """Play groups with a sampler; new environments, so that every sampler plays the same tasks."""
    _, tree, _, tokenizer = cloned
    config = RunConfig.model_validate({**tree, "env": {**tree["env"], "window": window}})
    player = Player(
        partial(make_env, config.env, "train"),
        tokenizer,
        template=config.env.template,
        window=window,
        max_prompt_tokens=8192,
    )
    timed = Timed(sampler)
    tasks = [Task(str(n), n) for n in range(TASKS)]
    player.play(tasks, timed, group_size=GROUP, seed=0, temperature=1.0)
    player.close()
    return timed


def sampler_options(cloned: tuple[str, dict, nn.Module, Any]) -> dict[str, Any]:
    _, tree, model, tokenizer = cloned
    longest = RunConfig.model_validate(tree).rollout.max_response_tokens
    return {"model": model, "eos_token_id": tokenizer.eos_token_id, "max_new_tokens": longest}


@pytest.mark.parametrize("cloned", TEXT, indirect=True)
def test_the_local_sampler_is_three_times_as_fast_as_generate(cloned):
    options, speeds = sampler_options(cloned), {}
    kinds = {
        "local": LocalSampler(**options),
        "generate, once a turn": Generate(**options, max_rows=512),
        "generate, for each environment": Generate(**options, max_rows=1),
    }
    print()
    for name, sampler in kinds.items():
        timed = play(cloned, sampler, 0)
        speeds[name] = timed.drawn / timed.seconds
        print(f"{cloned[0]}, {name}: {timed.drawn} new tokens, {speeds[name]:.0f}/s")
    ratio = speeds["local"] / speeds["generate, for each environment"]
    print(f"ratio {ratio:.1f} (at least {BAR}), {speeds['local'] / speeds['generate, once a turn']:.2f}")
    assert ratio >= BAR


@pytest.mark.parametrize("cloned", [*TEXT, *PICTURES], indirect=True)
def test_full_dialogues_are_read_from_where_they_go_on(cloned):
    options, found = sampler_options(cloned), []
    computed, looked = 0, 0

    def count(_model, _arguments, options):
        nonlocal computed
        computed += options["input_ids"].numel()

    def look(_tower, _arguments, options):
        nonlocal looked
        looked += len(options["grid_thw"])

    handles = [cloned[2].register_forward_pre_hook(count, with_kwargs=True)]
    towers = [module.visual for module in cloned[2].modules() if hasattr(module, "visual")]
    handles += [tower.register_forward_pre_hook(look, with_kwargs=True) for tower in towers]
    print()
    for kept_mib in (0, 1024):
        computed, looked = 0, 0
        timed = play(cloned, LocalSampler(**options, kept_mib=kept_mib), None)
        found.append(timed.drawn)
        print(
            f"{cloned[0]}, kept_mib {kept_mib}: {timed.drawn} new tokens, {computed} computed, "
            f"{looked} pictures looked at, {timed.drawn / timed.seconds:.0f} new/s"
        )
    for handle in handles:
        handle.remove()
    assert found[0] == found[1]
