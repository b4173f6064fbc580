"""Tokens and floating-point operations of one iteration, pass by pass.

A multiplication and an addition count as two. The vision tower, norms and activations are left out,
as are rehearsal, evaluation, and groups played again by dynamic sampling.
"""

from dataclasses import dataclass

from istar_trainer import config as cfg
from istar_trainer.planning.layout import Cast, Layout, Workload
from istar_trainer.planning.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of work.

    Attributes:
        name: What is done.
        model: By which model.
        tokens: Tokens that are computed.
        flops: Floating-point operations.
    """

    name: str
    model: str
    tokens: int
    flops: float


def span_flops(shape: ModelShape, tokens: int, before: int = 0) -> float:
    """Return the operations of one row's tokens in all layers, without the head.

    2 · body for every token, and 4 · layers · query width for every token that it attends to.

    Args:
        shape: The model.
        tokens: Tokens that are computed.
        before: Tokens in front of them whose keys and values are there already.
    """
    attended = tokens * before + tokens * tokens / 2
    return 2.0 * shape.body * tokens + 4.0 * shape.num_layers * shape.query * attended


def head_flops(shape: ModelShape, tokens: int) -> float:
    """Return the operations of the output head."""
    return 2.0 * shape.head * tokens


def prompt_work(shape: ModelShape, workload: Workload, *, shares_prefix: bool) -> Pass:
    """Return the reading of prompts.

    The trajectories of a group begin with the same prompt, which is read once. Where the sampler keeps
    its cache, a growing dialogue is only read from the end of the last reply on.

    Args:
        shape: The policy.
        workload: Trajectories and lengths.
        shares_prefix: Whether the sampler keeps its cache from step to step.
    """
    tokens, flops = 0, 0.0
    for step, prompt in enumerate(workload.prompts):
        count = workload.trajectories if step else workload.groups
        is_kept = step > 0 and workload.grows and shares_prefix
        known = min(workload.prompts[step - 1] + workload.response, prompt) if is_kept else 0
        tokens += count * (prompt - known)
        flops += count * (span_flops(shape, prompt - known, known) + head_flops(shape, 1))
    return Pass("read prompts", "policy", tokens, flops)


def reply_work(shape: ModelShape, workload: Workload) -> Pass:
    """Return the writing of replies, token by token."""
    each = workload.response
    flops = sum(span_flops(shape, each, prompt) + head_flops(shape, each) for prompt in workload.prompts)
    return Pass("write replies", "policy", workload.rows * each, workload.trajectories * flops)


def row_work(name: str, model: str, shape: ModelShape, workload: Workload, *, times: float = 1.0) -> Pass:
    """Return forward passes over all rows; equal rows, which are computed once, count as different.

    Args:
        name: What they are for.
        model: What runs.
        shape: Its shape.
        workload: Rows.
        times: How many forward passes the work amounts to.
    """
    each = sum(span_flops(shape, length) for length in workload.lengths)
    each += head_flops(shape, workload.response * len(workload.prompts))
    tokens = workload.trajectories * sum(workload.lengths)
    return Pass(name, model, round(times * tokens), times * workload.trajectories * each)


def learning_cost(layout: Layout) -> int:
    """Return how many forward passes a learning pass costs.

    The backward pass costs two, one if the weights are frozen under an adapter; checkpointing adds one.
    """
    return (3 if layout.lora is None else 2) + layout.checkpointing


def iteration_work(
    config: cfg.RunConfig,
    policy: ModelShape,
    prm: ModelShape,
    cast: Cast,
    *,
    layout: Layout,
    workload: Workload,
) -> list[Pass]:
    """Return everything that one iteration computes, in its order.

    Args:
        config: Updates, epochs and scores.
        policy: Shape of the policy, its reference and its critic.
        prm: Shape of the process reward model.
        cast: Which models there are.
        layout: Who samples, and what a backward pass costs.
        workload: Trajectories and lengths.
    """
    cost, updates, epochs = learning_cost(layout), config.prm.updates_per_iteration, config.learner.epochs
    found = [
        prompt_work(policy, workload, shares_prefix=layout.sampler == "vllm" or layout.kept_mib > 0),
        reply_work(policy, workload),
        row_work("score", "policy", policy, workload),
    ]
    if cast.reference or cast.follower:
        found.append(row_work("score", "reference", policy, workload))
    if cast.prm:
        compared = (2 * updates + 1 if config.prm.score == "centered_sum" else 1) * cast.centers
        if compared:
            found.append(row_work("compare", "policy", policy, workload, times=compared))
        found.append(row_work("score", "PRM", prm, workload, times=updates + 1))
        found.append(row_work("learn", "PRM", prm, workload, times=cost * updates))
    if cast.critic:
        found.append(row_work("score", "critic", policy, workload))
        found.append(row_work("learn", "critic", policy, workload, times=cost * epochs))
    found.append(row_work("learn", "policy", policy, workload, times=cost * epochs))
    return found
