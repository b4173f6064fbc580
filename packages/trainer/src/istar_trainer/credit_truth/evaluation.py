"""The whole comparison: play, find the truth, let every method credit the steps, measure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from istar_envs.seeding import derive_seed
from istar_judges.agreement.statistics import Estimate
from istar_trainer.credit_truth.boards import Payment
from istar_trainer.credit_truth.exact import ExactValues, NotExactError
from istar_trainer.credit_truth.methods import Credited, credit_steps
from istar_trainer.credit_truth.optimal import optimal_advantages
from istar_trainer.credit_truth.options import Options
from istar_trainer.credit_truth.sampled import Budget, SampledValues
from istar_trainer.credit_truth.session import Recorded, Session, open_run
from istar_trainer.credit_truth.statistics import MEASURES, draws, estimate, resamples
from istar_trainer.credit_truth.truth import StepKeys, StepTruth

NOISE: Final = "random numbers"


@dataclass(frozen=True, slots=True)
class Score:
    """How true one credit is.

    Attributes:
        credit: The credit.
        values: Each measure by name.
        gains: Each measure minus that of the outcome advantage alone, on the same resamples.
    """

    credit: Credited
    values: dict[str, Estimate]
    gains: dict[str, Estimate]


@dataclass(frozen=True, slots=True)
class CreditTruth:
    """What was found.

    Attributes:
        facts: What was played and how the truth was found, JSON-ready.
        scores: Every credit, outcome only first and random numbers last.
        left_out: Methods that could not be compared, each with the reason.
        truth: True advantages of the steps.
        recorded: What was played.
    """

    facts: dict[str, Any]
    scores: tuple[Score, ...]
    left_out: dict[str, str]
    truth: StepTruth
    recorded: Recorded = field(repr=False)


def evaluate_credit(run_dir: Path, options: Options, note: Callable[[str], None]) -> CreditTruth:
    """Compare every credit method with the true advantage of what a run's policy does.

    Args:
        run_dir: A run folder; it is left as it is.
        options: What is compared with what.
        note: Told how far it is.

    Raises:
        ConfigError: If the run cannot be opened, or its environment does not know its optimum.
        RolloutError: If too many episodes broke, or the truth can be neither computed nor estimated.
    """
    with open_run(run_dir) as session:
        note(f"playing {options.groups} tasks, {options.group_size} times each")
        recorded = _record(session, options, "measured")
        truth = find_truth(session, recorded, options, note)
        note(f"truth: {truth.source}")
        lessons = [_record(session, options, "lesson", n) for n in range(options.prm_batches)]
        credits, left_out = credit_steps(session, recorded, lessons, note)
        noise = np.random.default_rng(options.seed).normal(size=len(truth.advantages))
        credits.append(Credited(NOISE, "step part", noise))
        keys = StepKeys.of(recorded.groups)
        facts = {"run": str(run_dir), "iteration": session.run.iteration, "env": session.config.env.id}
        facts |= _facts(recorded, truth, keys, options)
        return CreditTruth(facts, score_credits(credits, truth, keys), left_out, truth, recorded)


def find_truth(
    session: Session, recorded: Recorded, options: Options, note: Callable[[str], None]
) -> StepTruth:
    """Compute the advantages of recorded steps where that can be done, else estimate them."""
    if options.truth == "optimal":
        return optimal_advantages(recorded.groups, session.parts.new_env())
    config = session.config
    payment = Payment(config.outcome == "success", config.rollout.invalid_penalty)
    try:
        truth = ExactValues(
            session.conversation(),
            session.run.policy,
            session.tokenizer,
            payment,
            max_new_tokens=config.rollout.max_response_tokens,
        ).advantages(recorded.groups)
        error = float(np.sqrt(np.square(truth.errors).mean()))
        if error > options.max_error:
            raise NotExactError(f"replies that were not scored may matter by {error:.3f}")
    except NotExactError as reason:
        note(f"the truth has to be estimated: {reason}")
    else:
        return truth
    return SampledValues(
        session.run.players["train"],
        session.run.sampler,
        session.judge,
        temperature=config.rollout.temperature,
        seed=derive_seed(options.seed, "continuations"),
        note=note,
    ).advantages(recorded.groups, Budget(options.max_error, options.continuations))


def score_credits(credits: list[Credited], truth: StepTruth, keys: StepKeys) -> tuple[Score, ...]:
    """Measure credits against the truth; the first one is what the others are compared with."""
    counts = resamples(int(keys.groups.max()) + 1)
    drawn = [
        {name: draws(measure, credit.values, truth, keys, counts) for name, measure in MEASURES.items()}
        for credit in credits
    ]
    num = len(truth.advantages)
    return tuple(
        Score(
            credit,
            {name: estimate(values, num) for name, values in own.items()},
            {name: estimate(values - drawn[0][name], num) for name, values in own.items()},
        )
        for credit, own in zip(credits, drawn, strict=True)
    )


def _record(session: Session, options: Options, *names: str | int) -> Recorded:
    return session.record(options.groups, options.group_size, seed=derive_seed(options.seed, *names) % 2**31)


def _facts(recorded: Recorded, truth: StepTruth, keys: StepKeys, options: Options) -> dict[str, Any]:
    signs = truth.signs
    return {
        "groups": len(np.unique(keys.groups)),
        "trajectories": len(np.unique(keys.trajectories)),
        "steps": len(signs),
        "success_rate": float(recorded.outcomes.successes.double().mean()),
        "truth": truth.source,
        "truth_std": float(truth.advantages.std()),
        "truth_error": float(np.sqrt(np.square(truth.errors).mean())),
        "truth_reliability": truth.reliability,
        "good_steps": int((signs > 0).sum()),
        "bad_steps": int((signs < 0).sum()),
        "prm_batches": options.prm_batches,
        "seed": options.seed,
    }
