"""How likely a policy is to make each choice, from the replies that stand for it.

A reply has as many spellings as there are token sequences, so those that were recorded and the plain
ones are scored, and what is left over is reported as unknown.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.sokoban.board import ACTION_NAMES
from istar_trainer.context import encode
from istar_trainer.credit_truth.boards import INVALID
from istar_trainer.credit_truth.truth import Floats, played
from istar_trainer.learner import Learner
from istar_trainer.records import Group, Step
from istar_trainer.sft import demonstration_batch

Reply = tuple[int, ...]

_MOST_SCORED: Final = 8
"""Recorded replies that are scored, the most frequent first."""
_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Choices:
    """What a policy does at some prompts.

    Attributes:
        probabilities: Of each move and of an invalid reply, float64[prompts, choices]; rows sum to 1, what
            is unknown counting as invalid.
        unknown: Probability of a reply that was not scored, float64[prompts].
    """

    probabilities: Floats
    unknown: Floats


def known_replies(
    groups: Sequence[Group], conversation: Conversation, tokenizer: Any, *, max_new_tokens: int
) -> dict[Reply, int]:
    """Collect replies and the choice that each stands for.

    Args:
        groups: Recorded play; its most frequent replies are taken, if they occur more than once.
        conversation: A Sokoban conversation, to read replies with; its episode is lost.
        tokenizer: Hugging Face tokenizer of the policy.
        max_new_tokens: Longest reply that the policy can give.
    """
    recorded = Counter(tuple(step.response_ids) for _, t in played(groups) for step in t.steps)
    plain = [(*encode(tokenizer, format_reply((name,))), tokenizer.eos_token_id) for name in ACTION_NAMES]
    replies = [*plain, *(reply for reply, count in recorded.most_common(_MOST_SCORED) if count > 1)]
    return {
        reply: _choice(conversation, str(tokenizer.decode(reply, skip_special_tokens=True)))
        for reply in replies
        if len(reply) <= max_new_tokens
    }


def score_choices(prompts: Sequence[Sequence[int]], replies: Mapping[Reply, int], policy: Learner) -> Choices:
    """Work out what a policy does at each prompt.

    Args:
        prompts: Token ids.
        replies: Choice that each reply stands for, as ``known_replies`` returns them.
        policy: Its logprobs are at the temperature of the rollouts.
    """
    found = np.zeros((len(prompts), INVALID + 1))
    choices = np.array(list(replies.values()))
    chunk = max(1, _ROWS // len(replies))
    for start in range(0, len(prompts), chunk):
        some = prompts[start : start + chunk]
        steps = [Step(prompt, reply, [0.0] * len(reply)) for prompt in some for reply in replies]
        logprobs = policy.logprobs(demonstration_batch(steps)).double().sum(dim=1)
        shares = logprobs.exp().numpy().reshape(len(some), len(replies))
        for choice in range(INVALID + 1):
            found[start : start + len(some), choice] = shares[:, choices == choice].sum(axis=1)
    unknown = np.maximum(0.0, 1.0 - found.sum(axis=1))
    found[:, INVALID] += unknown
    return Choices(found / found.sum(axis=1, keepdims=True), unknown)


def _choice(conversation: Conversation, text: str) -> int:
    conversation.reset(seed=0)
    action = conversation.respond(text).action
    return INVALID if action is None else ACTION_NAMES.index(action)
