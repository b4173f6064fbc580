"""Warm start: behaviour cloning of the environment's expert, stopped at a chosen dev success.

A small model jumps from a tenth to nine tenths of success within a few epochs, so training stops
at a success rate, not after a number of epochs, to leave reinforcement learning something to do.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from jaxtyping import Float, Int
from torch import Tensor

from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.episode import Episode, Transition
from istar_envs.seeding import CounterRng, derive_seed
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config import EnvConfig, WarmStartConfig
from istar_trainer.context import Context, FullContext, Prompt, WindowContext, encode
from istar_trainer.evaluate import expert_action
from istar_trainer.learner import Learner
from istar_trainer.model import Forward
from istar_trainer.records import Step, Trajectory

logger = logging.getLogger(__name__)


def demonstrate(
    env: gym.Env[Any, Any], tokenizer: Any, config: EnvConfig, settings: WarmStartConfig, *, seed: int
) -> list[Step]:
    """Let the demonstrator play training tasks and write its replies down as tokens.

    Args:
        env: Training environment with an expert.
        tokenizer: The policy's tokenizer.
        config: Template and window.
        settings: How many episodes, and who plays.
        seed: Seed of the task draws.

    Returns:
        One step per move of the episodes that succeeded; the sampler logprobs are zeros.
    """
    steps: list[Step] = []
    conversation = Conversation(env, template=config.template, window=config.window)
    cache: dict[str, Prompt] = {}
    for number in range(settings.episodes):
        conversation.reset(seed=derive_seed(seed, "demonstration", number) % 2**31)
        context: Context = (
            FullContext(tokenizer) if config.window is None else WindowContext(tokenizer, cache)
        )
        played: list[Step] = []
        while not conversation.done:
            prompt = context.prompt(conversation.messages())
            reply = format_reply(
                (expert_action(env, settings.demonstrator),), "…" if _needs_thought(conversation) else None
            )
            response = [*encode(tokenizer, reply), tokenizer.eos_token_id]
            played.append(Step(prompt.ids, response, [0.0] * len(response), prompt.pictures))
            context.responded(response)
            conversation.respond(reply)
        steps += played if conversation.episode().success else []
    return steps


def warm_start(
    learner: Learner,
    steps: Sequence[Step],
    config: WarmStartConfig,
    *,
    seed: int,
    dev_success: Callable[[], float],
    report: Callable[[int, dict[str, float]], None],
) -> float:
    """Clone the expert until dev success reaches the target.

    Args:
        learner: The policy, with its own optimizer for this stage.
        steps: Demonstrations.
        config: Batch size, target, limits.
        seed: Seed of the shuffles.
        dev_success: Measures success on dev tasks.
        report: Called at every look with the number of updates and metrics ``sft/…``.

    Returns:
        The last dev success.
    """
    num_updates = math.ceil(config.max_epochs * len(steps) / config.batch_size)
    rng = CounterRng(derive_seed(seed, "warm start"))
    queue: list[int] = []
    losses: list[float] = []
    success = 0.0
    for update in range(1, num_updates + 1):
        while len(queue) < config.batch_size:
            queue += sorted(range(len(steps)), key=lambda _: rng.next_u64())
        chosen, queue = queue[: config.batch_size], queue[config.batch_size :]
        learner.scale_lr(1 - (1 - config.final_lr_frac) * (update - 1) / num_updates)
        losses.append(clone([steps[i] for i in chosen], learner))
        if update % config.eval_every == 0 or update == num_updates:
            success = dev_success()
            report(update, {"sft/loss": sum(losses) / len(losses), "sft/dev_success_rate": success})
            losses.clear()
            if success >= config.target_success:
                return success
    logger.warning(
        "warm start: dev success %.3f is below warm_start.target_success=%.3f after %s epochs",
        success,
        config.target_success,
        config.max_epochs,
    )
    return success


def clone(steps: Sequence[Step], learner: Learner) -> float:
    """Take one optimizer update on the mean token cross-entropy of demonstrations, and return it in nats."""
    batch = demonstration_batch(steps)
    num_tokens = int(batch.response_mask.sum())

    def loss(out: Forward, _rows: Int[Tensor, " some"]) -> Float[Tensor, ""]:
        return -out.logprobs().sum() / num_tokens

    value = learner.backward(batch, loss)
    learner.step()
    return value


def demonstration_batch(steps: Sequence[Step]) -> StepBatch:
    """Lay demonstrations out as rows of one batch."""
    silent = Transition("", "", None, 0.0, False, "")
    episode = Episode("", "", "", (silent,) * len(steps), False, 0.0, "truncated")
    return collate([Trajectory("", "", 0, tuple(steps), episode)], [""])


def _needs_thought(conversation: Conversation) -> bool:
    return conversation.template.grammar == "think_action"
