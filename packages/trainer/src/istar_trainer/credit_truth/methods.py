"""What every credit method gives the same recorded steps.

A method whose model the run has trained gets that model from the checkpoint. Other models start from
the start policy, so they have to learn first or their method is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from istar_envs.errors import ConfigError, IstarError
from istar_trainer.advantages import combine_advantages
from istar_trainer.config_credits import (
    IstarCredit,
    Method,
    NoCredit,
    PrimeCredit,
    StepRewardCredit,
    SumCredit,
)
from istar_trainer.credit_truth.session import Recorded, Session
from istar_trainer.credit_truth.truth import Floats
from istar_trainer.credits import CREDITS, Credit, StepCredit, make_credit

Part = Literal["advantage", "step part", "step reward"]
"""What the policy loss would use, what the method adds to the outcome's part, or what it makes that of."""

OUTCOME_ONLY: Final = "outcome only"
_ATTRIBUTIONS: Final = ("as_published", "shifted", "shifted_to_go")


@dataclass(frozen=True, slots=True)
class Credited:
    """What a method gives each recorded step.

    Attributes:
        method: Its name.
        part: What of it.
        values: float64[rows]; the mean over the tokens of a step where they differ.
    """

    method: str
    part: Part
    values: Floats


def methods_of(own: Method) -> dict[str, Method]:
    """Name the methods to compare: the run's own, iStar in every attribution, the others by default.

    Warm-ups are left out, since a method that is still silent cannot be measured.

    Args:
        own: The run's credit; the attributions keep its other settings if it has any.
    """
    mine = {} if isinstance(own, NoCredit) else {f"{_type_of(own)} (this run)": _at_once(own)}
    others: dict[str, Method] = {f"istar {name}": _attributed(own, name) for name in _ATTRIBUTIONS}
    others |= {_type_of(kind()): kind() for kind in CREDITS if kind not in (NoCredit, IstarCredit)}
    return mine | {name: config for name, config in others.items() if config not in mine.values()}


def credit_steps(
    session: Session, recorded: Recorded, lessons: Sequence[Recorded], note: Callable[[str], None]
) -> tuple[list[Credited], dict[str, str]]:
    """Let every method credit the recorded steps, as it would in training.

    Args:
        session: The opened run.
        recorded: What its policy played.
        lessons: What else it played; models learn from this first.
        note: Told which method is at work.

    Returns:
        Credits, outcome only first; and the methods left out, each with the reason.
    """
    nothing = torch.zeros_like(recorded.old_logprobs)
    outcome = session.run.algorithm.advantages(recorded.batch, recorded.outcomes, nothing).tokens
    found = [Credited(OUTCOME_ONLY, "advantage", _per_step(outcome, recorded))]
    left_out: dict[str, str] = {}
    for name, config in methods_of(session.config.credit).items():
        note(f"credit: {name}")
        try:
            credit = _ready_credit(session, config, lessons)
            found += _parts_of(name, _assign(credit, recorded), outcome, recorded)
        except IstarError as error:
            left_out[name] = str(error)
    return found, left_out


def _ready_credit(session: Session, config: Method, lessons: Sequence[Recorded]) -> Credit:
    """Build a method whose models have learnt something."""
    credit = make_credit(config, session.parts)  # type: ignore[arg-type]
    learns_alike = isinstance(config, PrimeCredit) == isinstance(session.config.credit, PrimeCredit)
    is_trained = learns_alike and all(name in session.learned for name in credit.learners)
    if credit.learners and not is_trained and not lessons:
        raise ConfigError("this run has not trained its reward model; let it learn first (--prm-batches)")
    for name, learner in credit.learners.items() if is_trained else ():
        learner.load(session.learned[name]["weights"])
        learner.load_state(session.learned[name]["optimizer"])
    if credit.learners:
        for lesson in lessons:
            _assign(credit, lesson)
    return credit


def _assign(credit: Credit, recorded: Recorded) -> StepCredit:
    return credit.assign(recorded.batch, recorded.old_logprobs, recorded.outcomes, recorded.pairs)


def _parts_of(
    name: str, credit: StepCredit, outcome: Float[Tensor, "rows seq"], recorded: Recorded
) -> list[Credited]:
    whole = combine_advantages(outcome, credit.advantages, replaces_outcome=credit.replaces_outcome)
    parts: dict[Part, Floats] = {"advantage": _per_step(whole, recorded)}
    if not credit.replaces_outcome:
        parts["step part"] = _per_step(credit.advantages, recorded)
    parts["step reward"] = np.asarray(credit.attributed.double().numpy(), dtype=np.float64)
    return [Credited(name, part, values) for part, values in parts.items()]


def _per_step(tokens: Float[Tensor, "rows seq"], recorded: Recorded) -> Floats:
    """Average over each step's tokens."""
    lengths = recorded.batch.response_mask.sum(dim=1).clamp(min=1)
    return np.asarray((tokens.double().sum(dim=1) / lengths).numpy(), dtype=np.float64)


def _attributed(own: Method, attribution: str) -> IstarCredit:
    """Return iStar with another attribution and, where they fit, the settings of the run's credit."""
    base: dict[str, Any] = own.model_dump(exclude={"type"}) if isinstance(own, StepRewardCredit) else {}
    center = "none" if attribution == "as_published" else "policy_kl"
    return IstarCredit.model_validate({**base, "attribution": attribution, "center": center, "warm_up": None})


def _at_once(config: Method) -> Method:
    if isinstance(config, SumCredit):
        return config.model_copy(update={"parts": tuple(_at_once(part) for part in config.parts)})
    return config.model_copy(update={"warm_up": None}) if hasattr(config, "warm_up") else config


def _type_of(config: Method) -> str:
    return str(config.type)  # type: ignore[attr-defined]
