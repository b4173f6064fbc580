"""Tokens that a pass over a batch computes. Run with `python -m pytest benchmarks/bench_tokens.py -s`.

The rows are those of groups of eight games that a demonstrator plays, every fifth action of whom is a random
one, with the whole dialogue in the prompt and with two past steps.
"""

import time
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.seeding import CounterRng
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config import RunConfig
from istar_trainer.config_files import read_tree
from istar_trainer.context import FullContext, WindowContext, encode
from istar_trainer.evaluate import expert_action
from istar_trainer.factories import make_env
from istar_trainer.learner import TorchModel
from istar_trainer.records import Step, Trajectory
from istar_trainer.tiny import init_tiny
from istar_trainer.weights import load_model

ROOT = Path(__file__).parents[1]
TASKS, GROUP = 4, 8
A_PASS = 16_384


def configure(name: str, window: int | None) -> RunConfig:
    tree = read_tree(ROOT / f"configs/{name}.yaml")
    tree["env"]["window"] = window
    return RunConfig.model_validate(tree)


def play(env: gym.Env, tokenizer, config: RunConfig) -> StepBatch:
    """Let the demonstrator play groups of games from equal starts."""
    rng, trajectories = CounterRng(0), []
    env.action_space.seed(0)
    language = env.unwrapped.language  # type: ignore[attr-defined]
    conversation = Conversation(env, template=config.env.template, window=config.env.window)
    for number in range(TASKS * GROUP):
        conversation.reset(seed=number // GROUP)
        context = FullContext(tokenizer) if config.env.window is None else WindowContext(tokenizer, {})
        steps = []
        while not conversation.done:
            prompt = context.prompt(conversation.messages())
            action = expert_action(env, config.warm_start.demonstrator)
            if rng.random() < 0.2:
                action = language.name(env.action_space.sample())
            response = [*encode(tokenizer, format_reply((action,))), tokenizer.eos_token_id]
            steps.append(Step(prompt.ids, response, [0.0] * len(response)))
            context.responded(response)
            conversation.respond(format_reply((action,)))
        group = f"g{number // GROUP}"
        trajectories.append(Trajectory(str(number), group, 0, tuple(steps), conversation.episode()))
    return collate(trajectories, [f"g{n}" for n in range(TASKS)])


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("name", ["tiny_cpu", "webshop_istar_tiny"])
def test_tokens_computed_with_and_without_merging(name, window, tmp_path):
    config = configure(name, window)
    env = make_env(config.env, "train")
    sizes = {"hidden_size": 64, "num_layers": 3, "num_heads": 2}
    options = {"template": config.env.template, "window": window, "episodes": 50, "seed": 0}
    model, tokenizer = load_model(init_tiny(env, tmp_path / "model", **options, **sizes))
    batch = play(env, tokenizer, config)
    env.close()
    computed = 0

    def count(_model, _arguments, options):
        nonlocal computed
        computed += options["input_ids"].numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    lengths = batch.attention_mask.sum(dim=1)
    families = batch.families() or [[row] for row in range(len(batch))]
    print(f"\n{name}, window {window}: {len(batch)} rows, {len(families)} families, {lengths.sum()} tokens")
    reference = None
    for merge_prefixes in (False, True):
        for packing in (False, True):
            options = {"packing": packing, "merge_prefixes": merge_prefixes}
            reader = TorchModel(model, temperature=1.0, micro_batch_tokens=A_PASS, **options)
            computed, start = 0, time.process_time()
            logprobs = reader.logprobs(batch)
            taken = time.process_time() - start
            start = time.process_time()
            list(reader.parts(batch))
            dealing = time.process_time() - start
            reference = logprobs if reference is None else reference
            torch.testing.assert_close(logprobs, reference, rtol=0, atol=1e-4)
            print(f"  {options}: {computed} computed, {taken:.2f} s, dealing {dealing * 1000:.0f} ms")
