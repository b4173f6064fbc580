"""Values of a fixed policy on a finite problem with a step limit, by dynamic programming.

Pure arrays; where the numbers come from is in ``boards.py`` and ``replies.py``.
"""

from dataclasses import dataclass

import numpy as np

from istar_trainer.credit_truth.truth import Floats, Ints


@dataclass(frozen=True, slots=True)
class Problem:
    """What every choice in every state leads to; the world is deterministic.

    Attributes:
        successors: State after each choice, int64[states, choices]; −1 where the episode ends.
        rewards: Reward of each choice, float64[states, choices].
    """

    successors: Ints
    rewards: Floats


def policy_values(problem: Problem, policy: Floats, horizon: int) -> Floats:
    """Work out the expected return of a policy from every state, for every number of steps left.

    V₀ = 0 and V_k(s) = Σ_a π(a|s)·(r(s, a) + V_{k−1}(s′)), undiscounted.

    Args:
        problem: The world.
        policy: Probability of each choice in each state, float64[states, choices]; rows sum to 1.
        horizon: Most steps an episode has.

    Returns:
        float64[horizon + 1, states].
    """
    values = np.zeros((horizon + 1, len(policy)))
    for left in range(1, horizon + 1):
        values[left] = (policy * choice_values(problem, values[left - 1])).sum(axis=1)
    return values


def choice_values(problem: Problem, later: Floats) -> Floats:
    """Return r(s, a) + V(s′) of every choice.

    Args:
        problem: The world.
        later: Value of every state with one step less left, float64[states].

    Returns:
        float64[states, choices].
    """
    return np.asarray(problem.rewards + np.append(later, 0.0)[problem.successors], dtype=np.float64)


def error_bounds(problem: Problem, policy: Floats, values: Floats, unknown: Floats) -> Floats:
    """Bound how wrong values can be because some of the policy's choices are not known.

    To first order, a policy that differs with probability u(s) in state s is worth at most
    E Σ u(s_t)·(max_a Q − min_a Q)(s_t) more or less (the performance difference lemma).

    Args:
        problem: The world.
        policy: As given to ``policy_values``.
        values: What that returned.
        unknown: Probability of an unknown choice in each state, float64[states].

    Returns:
        float64[horizon + 1, states].
    """
    bounds = np.zeros_like(values)
    for left in range(1, len(values)):
        gaps = np.ptp(choice_values(problem, values[left - 1]), axis=1)
        later = np.append(bounds[left - 1], 0.0)[problem.successors]
        bounds[left] = unknown * gaps + (policy * later).sum(axis=1)
    return bounds
