"""One page: environment → rollout → outcome → pairs → PRM → advantages → policy.

Everything that the loop calls is built by ``setup.py``; the loop knows no algorithm, sampler or
learner by name.
"""

from istar_envs.seeding import derive_seed
from istar_trainer.advantages import combine_advantages
from istar_trainer.batch import collate
from istar_trainer.recording import IterationRecord
from istar_trainer.setup import Run
from istar_trainer.update import PolicyBatch, update_policy


def train(run: Run) -> None:
    """Train from the run's present iteration to its last.

    Args:
        run: Components and state; ``run.iteration`` iterations are done already.

    Raises:
        IstarError: If the run cannot go on; its last checkpoint is intact.
    """
    config, clock = run.config, run.clock
    while run.iteration < config.iterations:
        with clock("iteration"):
            with clock("rollout"):
                groups = run.play()
            outcomes = run.judge(groups)
            pairs = run.pair(groups, outcomes)
            trajectories = [t for group in groups for t in group.trajectories]
            batch = collate(trajectories, [group.id for group in groups])
            with clock("old_logprobs"):
                old_logprobs = run.old_logprobs(batch)
            with clock("prm"):
                credit = run.credit.assign(batch, old_logprobs, outcomes, pairs)
            outcome_advantages = run.algorithm.outcome_advantages(
                outcomes.values, outcomes.groups, outcomes.has_outcome
            )
            advantages = combine_advantages(
                outcome_advantages, credit.advantages, batch.trajectory_index, step_adv_coef=1.0
            )
            weights = batch.weights * outcomes.has_outcome[batch.trajectory_index]
            data = PolicyBatch(batch, old_logprobs, advantages, weights)
            with clock("policy"):
                metrics = update_policy(
                    run.policy,
                    data,
                    run.algorithm.loss,
                    config.learner,
                    seed=derive_seed(config.seed, "update", run.iteration),
                    lr_share=config.learner.lr_share(run.iteration, config.iterations),
                )
            run.publish_policy()
        run.finish_iteration(
            IterationRecord(run.iteration, groups, outcomes, pairs, data, outcome_advantages, credit, metrics)
        )
