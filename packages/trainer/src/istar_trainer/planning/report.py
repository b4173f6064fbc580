"""A plan as tables."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from istar_trainer.planning.plan import GIB, Plan


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan: models, memory of a GPU, work of an iteration, and what does not fit."""
    console.print(*_headlines(plan), sep="\n", soft_wrap=True)
    console.print(memory_table(plan), work_table(plan))
    for text in plan.problems:
        console.print(f"Does not fit: {text}.", soft_wrap=True)
    if not plan.problems:
        console.print("Fits.")
    for text, peak in plan.alternatives.items():
        verdict = "fits" if peak <= plan.gpu_bytes else "too much"
        console.print(f"  with {text}: {peak / GIB:.1f} GiB, {verdict}", soft_wrap=True)


def _headlines(plan: Plan) -> Iterator[str]:
    yield f"policy: {plan.policy.name}, {plan.policy.num_parameters:,} parameters"
    if plan.cast.prm:
        where = "an adapter on the policy's base" if plan.layout.shared_prm else "a model of its own"
        yield f"PRM: {plan.prm.name}, {where}"
    work, limits = plan.workload, plan.limits
    yield (
        f"iteration: {work.groups} tasks, {work.trajectories} trajectories of {len(work.prompts)} steps; "
        f"{max(work.prompts):,} + {work.response:,} tokens a step, "
        f"{limits.longest:,} at most"
    )


def memory_table(plan: Plan) -> Table:
    """Lay out what one GPU holds; the moments of an iteration follow each other, so the largest counts."""
    table = Table(title=f"GiB on each of {plan.learner_gpus} learner GPUs", title_justify="left")
    for column in ("", "weights", "gradients", "optimizer", "sum"):
        table.add_column(column, justify="left" if not column else "right")
    for name, held in plan.memory.models.items():
        parts = (held.weights, held.gradients, held.optimizer, held.total)
        table.add_row(name, *(_gib(part) for part in parts))
    for name, size in plan.memory.moments.items():
        table.add_row(f"while {name}", "", "", "", _gib(size))
    if plan.memory.sampler:
        table.add_row("vLLM's share", "", "", "", _gib(plan.memory.sampler))
    table.add_section()
    table.add_row("peak", "", "", "", _gib(plan.memory.peak))
    table.add_row("usable", "", "", "", _gib(plan.gpu_bytes))
    if plan.room is not None:
        table.caption = (
            f"vLLM: {_gib(plan.room.weights)} GiB of weights in {_gib(plan.room.share)}; room for "
            f"{plan.room.sequences} full sequences of {plan.room.wanted} played at a time"
        )
    return table


def work_table(plan: Plan) -> Table:
    """Lay out the passes of one iteration."""
    table = Table(title="One iteration", title_justify="left")
    for column in ("", "model", "tokens", "TFLOP", "share"):
        table.add_column(column, justify="left" if column in ("", "model") else "right")
    total = sum(part.flops for part in plan.work)
    for part in plan.work:
        share = f"{part.flops / total:.0%}"
        table.add_row(part.name, part.model, f"{part.tokens:,}", _tflop(part.flops), share)
    table.add_section()
    table.add_row("sum", "", f"{sum(part.tokens for part in plan.work):,}", _tflop(total), "")
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"


def _tflop(flops: float) -> str:
    return f"{flops / 1e12:,.3g}" if flops < 1e15 else f"{flops / 1e12:,.0f}"
