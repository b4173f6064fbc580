"""What one iteration leaves in the run folder: metrics, and trajectories with their credit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from istar_trainer.algorithms import OutcomeAdvantages
from istar_trainer.collect import Played
from istar_trainer.credits import BatchOutcomes, StepCredit
from istar_trainer.losses import kl_penalty
from istar_trainer.masked import masked_mean
from istar_trainer.prm import Pairs
from istar_trainer.records import Group, Trajectory
from istar_trainer.state_credit import action_ids, state_auc, variance_shares
from istar_trainer.update import PolicyBatch


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """Everything that was decided in one iteration.

    Attributes:
        iteration: Counted from 0.
        played: Groups and outcomes.
        pairs: What the PRM learnt from.
        data: Rows, old logprobs and advantages.
        outcome_part: A^E of trajectories and tokens.
        credit: Step part.
        update: Metrics of the updates.
    """

    iteration: int
    played: Played
    pairs: Pairs
    data: PolicyBatch
    outcome_part: OutcomeAdvantages
    credit: StepCredit
    update: dict[str, float]

    @property
    def groups(self) -> tuple[Group, ...]:
        """What was played."""
        return self.played.groups

    @property
    def outcomes(self) -> BatchOutcomes:
        """What the judge said."""
        return self.played.outcomes

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories in the order of the batch."""
        return [t for group in self.groups for t in group.trajectories]


def iteration_metrics(record: IterationRecord) -> dict[str, float]:
    """Return what follows from an iteration's records."""
    return {
        **_env_metrics(record.trajectories),
        **_rollout_metrics(record),
        **_outcome_metrics(record),
        **_credit_metrics(record),
        **_drift_metrics(record.data),
        **record.played.metrics,
        **record.outcome_part.metrics,
        **record.credit.metrics,
        **record.update,
    }


def credit_records(record: IterationRecord, count: int) -> Iterator[dict[str, Any]]:
    """Yield some trajectories with the credit of each step, for ``credits.jsonl``.

    Advantages of steps are means over their tokens. A success and a failure of the same task come
    first, since that is where credit shows.
    """
    batch, trajectories = record.data.batch, record.trajectories
    advantages = masked_mean(record.data.advantages, batch.response_mask)
    step_part = masked_mean(record.credit.advantages, batch.response_mask)
    for index in _telling(record.groups)[:count]:
        trajectory = trajectories[index]
        own = (batch.trajectory_index == index).nonzero().squeeze(1)
        rows: list[int] = own[batch.step_index[own].argsort()].tolist()
        has_outcome = bool(record.outcomes.has_outcome[index])
        yield {
            "iteration": record.iteration,
            "group_id": trajectory.group_id,
            "trajectory_id": trajectory.id,
            "outcome": float(record.outcomes.values[index]) if has_outcome else None,
            "outcome_advantage": float(record.outcome_part.trajectories[index]),
            "episode": trajectory.episode.to_dict(),
            "steps": [
                {
                    "implicit_reward": float(record.credit.step_rewards[row]),
                    "credit": float(record.credit.attributed[row]),
                    "step_advantage": float(step_part[row]),
                    "advantage": float(advantages[row]),
                }
                for row in rows
            ],
        }


def _telling(groups: Sequence[Group]) -> list[int]:
    """Order trajectories so that a success and a failure of one task come side by side first."""
    first: list[int] = []
    rest: list[int] = []
    start = 0
    for group in groups:
        playable = [(start + i, t.episode.success) for i, t in enumerate(group.trajectories) if not t.failed]
        start += len(group.trajectories)
        won = [place for place, success in playable if success]
        lost = [place for place, success in playable if not success]
        shown = 1 if won and lost else 0
        first += won[:shown] + lost[:shown]
        rest += won[shown:] + lost[shown:]
    return first + rest


def _env_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    episodes = [t.episode for t in trajectories if not t.failed]
    won = [e for e in episodes if e.success]
    lost = [e for e in episodes if not e.success]
    steps = [t for e in episodes for t in e.transitions]
    return {
        "env/success_rate": len(won) / len(episodes),
        "env/return_mean": _mean([e.episode_return for e in episodes]),
        "env/episode_steps_mean": _mean([len(e.transitions) for e in episodes]),
        "env/episode_steps_success": _mean([len(e.transitions) for e in won]),
        "env/episode_steps_failure": _mean([len(e.transitions) for e in lost]),
        "env/invalid_rate": _mean([not t.valid for t in steps]),
    }


def _rollout_metrics(record: IterationRecord) -> dict[str, float]:
    trajectories = record.trajectories
    steps = [s for t in trajectories for s in t.steps]
    return {
        "rollout/trajectories": len(trajectories),
        "rollout/steps": len(steps),
        "rollout/failed_frac": _mean([t.failed for t in trajectories]),
        "rollout/truncated_frac": _mean([t.episode.end == "truncated" for t in trajectories]),
        "rollout/tokens_generated": sum(len(s.response_ids) for s in steps),
        "rollout/response_tokens_mean": _mean([len(s.response_ids) for s in steps]),
        "rollout/response_tokens_success": _response_tokens(t for t in trajectories if t.episode.success),
        "rollout/response_tokens_failure": _response_tokens(t for t in trajectories if not t.episode.success),
        "rollout/unique_prompt_frac": len({s.prompt_key for s in steps}) / len(steps),
        "rollout/snapshot_id": record.data.batch.snapshot_id,
    }


def _outcome_metrics(record: IterationRecord) -> dict[str, float]:
    judged = record.outcomes.values[record.outcomes.has_outcome]
    with_pairs = set(record.outcomes.groups[record.pairs.preferred].tolist())
    counted = record.data.weights > 0
    mask = record.data.batch.response_mask[counted]
    advantages = masked_mean(record.data.advantages[counted].double(), mask)
    step_part = masked_mean(record.credit.advantages[counted].double(), mask)
    variance = float(advantages.var(correction=0))
    return {
        "judge/no_verdict_frac": 1 - len(judged) / len(record.outcomes),
        "judge/outcome_mean": float(judged.mean()) if len(judged) else float("nan"),
        "pairs/num": len(record.pairs),
        "pairs/group_frac": len(with_pairs) / len(record.groups),
        "adv/share_step": float(step_part.var(correction=0)) / variance if variance > 0 else 0.0,
    }


def _credit_metrics(record: IterationRecord) -> dict[str, float]:
    """Say whether credit is about actions or about states; nothing where there is no credit."""
    batch, credit = record.data.batch, record.credit.attributed
    if not credit.any():
        return {}
    actions = action_ids(batch.input_ids, batch.response_mask)
    counted = record.data.weights > 0
    won = record.outcomes.successes[batch.trajectory_index]
    shares = variance_shares(credit, batch.observation_ids, actions, counted)
    return {
        "credit/compared_frac": shares.compared,
        "credit/state_auc": state_auc(credit, batch.observation_ids, actions, won, counted),
        "credit/state_frac": shares.state,
        "credit/action_frac": shares.action,
        "credit/state_std": shares.state_std,
    }


def _drift_metrics(data: PolicyBatch) -> dict[str, float]:
    """Compare the policy with the frozen start policy; nothing where there is none."""
    if data.ref_logprobs is None:
        return {}
    mask = data.batch.response_mask & (data.batch.weights > 0)[:, None]
    drift = kl_penalty(data.old_logprobs, data.ref_logprobs, mask, estimator="k3")
    return {"policy/kl_to_start": float(drift[mask].double().mean())}


def _response_tokens(trajectories: Iterator[Trajectory]) -> float:
    return _mean([len(s.response_ids) for t in trajectories for s in t.steps])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
