"""One page: environment → rollout → outcome → pairs → advantages of outcomes and steps → policy.

Everything that the loop calls is built by ``setup.py``; the loop knows no algorithm, credit method,
sampler or learner by name.
"""

from istar_envs.seeding import derive_seed
from istar_trainer.advantages import combine_advantages
from istar_trainer.batch import collate
from istar_trainer.recording import IterationRecord
from istar_trainer.setup import Run
from istar_trainer.update import PolicyBatch, token_rewards, update_policy


def train(run: Run) -> None:
    """Train from the run's present iteration to its last.

    Args:
        run: Components and state; ``run.iteration`` iterations are done already.

    Raises:
        IstarError: If the run cannot go on; its last checkpoint is intact.
    """
    config, clock, algorithm = run.config, run.clock, run.algorithm
    while run.iteration < config.iterations:
        with clock("iteration"):
            played = run.collect()
            groups, outcomes = played.groups, played.outcomes
            pairs = run.pair(groups, outcomes)
            trajectories = [t for group in groups for t in group.trajectories]
            batch = collate(trajectories, [group.id for group in groups])
            with clock("old_logprobs"):
                old_logprobs = run.old_logprobs(batch)
                ref_logprobs = run.ref_logprobs(batch)
            extra = token_rewards(algorithm.loss.kl, batch, old_logprobs, ref_logprobs)
            outcome_part = algorithm.advantages(batch, outcomes, extra)
            with clock("prm"):
                credit = run.credit.assign(batch, old_logprobs, outcomes, pairs)
            advantages = combine_advantages(
                outcome_part.tokens, credit.advantages, replaces_outcome=credit.replaces_outcome
            )
            weights = batch.weights * outcomes.has_outcome[batch.trajectory_index]
            data = PolicyBatch(batch, old_logprobs, advantages, weights, ref_logprobs)
            with clock("policy"):
                metrics = update_policy(
                    run.policy,
                    data,
                    algorithm.loss,
                    config.learner,
                    seed=derive_seed(config.seed, "update", run.iteration),
                    lr_share=config.learner.lr_share(run.iteration, config.iterations),
                )
                metrics |= algorithm.learn(batch) | run.rehearsal.learn(run.policy, run.iteration)
            run.publish_policy()
        run.finish_iteration(
            IterationRecord(run.iteration, played, pairs, data, outcome_part, credit, metrics)
        )
