"""Builds a run from its configuration and keeps its state between the lines of ``train.py``."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from istar_envs.errors import ConfigError
from istar_envs.seeding import derive_seed
from istar_judges.pairs import make_pairs, weigh_pairs
from istar_trainer import config as cfg
from istar_trainer.algorithms import Algorithm, AlgorithmParts, make_algorithm
from istar_trainer.backlog import Backlog, lag_metrics, make_backlog, task_of
from istar_trainer.batch import StepBatch
from istar_trainer.checkpoint import load_checkpoint, newest_intact, save_checkpoint
from istar_trainer.collect import Played, Verdicts, collect_telling, outcomes_of
from istar_trainer.credits import BatchOutcomes, Credit, CreditParts, make_credit
from istar_trainer.distributed.ranks import from_main
from istar_trainer.distributed.sharing import MainJudging, open_log
from istar_trainer.errors import StaleSnapshot
from istar_trainer.evaluate import Evaluation, evaluate, listed_tasks
from istar_trainer.factories import (
    load_critic_learner,
    make_env,
    make_learner,
    make_players,
    make_policy_sampler,
    policy_optimization,
    share_backbone,
    start_policy,
)
from istar_trainer.folder import RunFolder
from istar_trainer.judging import Judging
from istar_trainer.learner import LanguageModel, Learner, Optimization, TorchLearner
from istar_trainer.metrics import MetricsLog, warn_if_contradictory
from istar_trainer.model import Forward
from istar_trainer.prm import Pairs
from istar_trainer.progress import Progress
from istar_trainer.recording import IterationRecord, credit_records, iteration_metrics
from istar_trainer.records import Group
from istar_trainer.rehearsal import Rehearsal, make_rehearsal
from istar_trainer.rollout import Player, require_enough
from istar_trainer.sampler import PolicySampler
from istar_trainer.timing import Clock

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Run:
    """A run's components and its state.

    Attributes:
        config: Everything that decides the run.
        folder: Where it is recorded.
        policy: The policy's learner.
        sampler: Draws replies from the policy.
        players: Plays the environment, by split.
        backlog: Plays training's groups over several iterations; None if each plays its own to the end.
        judging: Says how episodes went.
        algorithm: Outcome advantages and loss.
        credit: Step credit.
        reference: The frozen start policy; None if the loss does not ask for it.
        rehearsal: Demonstrations between updates.
        log: Metrics sink.
        progress: Display.
        clock: Times of the iteration's parts.
        iteration: Iterations done.
    """

    config: cfg.RunConfig
    folder: RunFolder
    policy: TorchLearner
    sampler: PolicySampler
    players: dict[str, Player]
    backlog: Backlog | None
    judging: Judging
    algorithm: Algorithm
    credit: Credit
    reference: LanguageModel | None
    rehearsal: Rehearsal
    log: MetricsLog
    progress: Progress
    clock: Clock = field(default_factory=Clock)
    iteration: int = 0
    entropy: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)

    @property
    def learners(self) -> dict[str, Learner]:
        """All models that learn, by name; checkpoints hold them."""
        return {"policy": self.policy, **self.algorithm.learners, **self.credit.learners}

    def collect(self) -> Played:
        """Play and judge the iteration's groups; dull ones are replaced if the algorithm says so."""
        rollout, rule = self.config.rollout, self.algorithm.dynamic_sampling
        if rule is None:
            groups = self.play()
            played = Played(groups, self.judge(groups))
        else:
            played = collect_telling(
                self.play,
                self.verify,
                rule,
                num_groups=rollout.num_tasks,
                invalid_penalty=rollout.invalid_penalty,
            )
        lag = lag_metrics(played.groups, self.sampler.snapshot_id, max_lag=rollout.max_lag)
        return replace(played, metrics=played.metrics | lag)

    def play(self, batch_number: int = 0) -> tuple[Group, ...]:
        """Sample a batch of the iteration's groups with the present policy; each number has its own tasks."""
        with self.clock("rollout"):
            if self.backlog is not None:
                groups = self.backlog.play(self.iteration, self.sampler)
            else:
                groups = self._play_to_the_end(batch_number)
        require_enough(groups, self.config.rollout.max_failed_frac)
        return groups

    def verify(self, groups: Sequence[Group]) -> Verdicts:
        """Let the judge say how every trajectory went."""
        played = [t for group in groups for t in group.trajectories]
        with self.clock("judge"):
            verdicts = self.judging.outcomes([t.episode for t in played], self.iteration)
        return {t.id: verdict for t, verdict in zip(played, verdicts, strict=True)}

    def judge(self, groups: Sequence[Group]) -> BatchOutcomes:
        """Judge every trajectory; invalid steps cost ``rollout.invalid_penalty`` each."""
        penalty = self.config.rollout.invalid_penalty
        return outcomes_of(groups, self.verify(groups), invalid_penalty=penalty)

    def pair(self, groups: Sequence[Group], outcomes: BatchOutcomes) -> Pairs:
        """Form preference pairs inside each group, weighted over the whole batch."""
        trajectory_ids = [t.id for group in groups for t in group.trajectories]
        verdicts = dict(zip(trajectory_ids, outcomes.verdicts, strict=True))
        found = [
            make_pairs(
                {t.id: verdicts[t.id] for t in group.trajectories},
                group_id=group.id,
                rule=self.config.prm.pair_rule,
                content_keys={t.id: t.content_key for t in group.trajectories},
            )
            for group in groups
        ]
        pairs = weigh_pairs(found, self.config.prm.pair_weight)
        return Pairs.of(pairs, trajectory_ids)

    def old_logprobs(self, batch: StepBatch) -> Float[Tensor, "rows seq"]:
        """Score a batch with the policy that sampled it, and note its entropy.

        Raises:
            StaleSnapshot: If the batch was sampled by weights that are older than ``rollout.max_lag`` allows.
        """
        lag, max_lag = self.sampler.snapshot_id - batch.snapshot_id, self.config.rollout.max_lag
        if not 0 <= lag <= max_lag:
            raise StaleSnapshot(
                f"the batch was sampled by snapshot {batch.snapshot_id}, but the policy is at "
                f"{self.sampler.snapshot_id}, and rollout.max_lag is {max_lag}. Sample again, or allow and "
                "correct for it with rollout.max_lag, rollout.spare_tasks and "
                "algorithm.loss.correction: {weight: token}."
            )
        self.sampler.rest()
        entropy = torch.zeros(batch.input_ids.shape)

        def value(out: Forward, rows: Int[Tensor, " some"]) -> Float[Tensor, "some seq"]:
            entropy[rows] = out.entropy()
            return out.logprobs()

        logprobs = self.policy.token_values(batch, value)
        self.entropy = float(self.policy.complete(entropy)[batch.response_mask].double().mean())
        return logprobs

    def ref_logprobs(self, batch: StepBatch) -> Float[Tensor, "rows seq"] | None:
        """Score a batch with the frozen start policy, if the loss asks for it."""
        return None if self.reference is None else self.reference.logprobs(batch)

    def publish_policy(self) -> None:
        """Hand the updated weights to the sampler under the next snapshot id."""
        self.sampler.load(self.policy.weights(), self.sampler.snapshot_id + 1)

    def finish_iteration(self, record: IterationRecord) -> None:
        """Record the iteration, evaluate and checkpoint when it is time, and count it."""
        with self.clock("judge"):
            watched = self.judging.watch(record.iteration)
        values = {**iteration_metrics(record), **watched, "policy/entropy": self.entropy}
        self.iteration += 1
        is_last = self.iteration == self.config.iterations
        if self.iteration % self.config.eval.every == 0 or is_last:
            shown = list(credit_records(record, self.config.shown_trajectories))
            self.folder.append("credits.jsonl", shown)
            seen = (t["image"] for line in shown for t in line["episode"]["transitions"])
            self.folder.keep_images(seen, self.players["train"].images)
            with self.clock("eval"):
                values |= self.evaluate_dev()
        values |= self.clock.read()
        self.log.write(record.iteration, values)
        self._warn(values)
        self.progress.update(record.iteration, values)
        if self.iteration % self.config.checkpoint.every == 0 or is_last:
            self.save()

    def evaluate_dev(self) -> dict[str, float]:
        """Measure success on the dev list; recorded in ``eval.jsonl`` too."""
        result = self.evaluate("dev", self.config.eval.dev_tasks)
        low, high = result.interval
        self.record_evaluation(result, "dev", "dev", {})
        return {
            "eval/success_rate": result.success_rate,
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/num": result.num,
        }

    def evaluate(self, split: str, count: int) -> Evaluation:
        """Play the first tasks of a split with the present policy."""
        env = make_env(self.config.env, split)
        result = evaluate(
            self.players[split],
            self.sampler,
            listed_tasks(env, count),
            temperature=self.config.eval.temperature,
            seed=self.config.eval.seed,
        )
        env.close()
        return result

    def record_evaluation(
        self, result: Evaluation, split: str, label: str, baselines: dict[str, float]
    ) -> dict[str, Any]:
        """Append a result to ``eval.jsonl`` and return the line."""
        line = {
            "iteration": self.iteration,
            "split": split,
            "label": label,
            "success": result.successes,
            "n": result.num,
            "mean_steps": result.mean_steps,
            "mean_score": result.mean_score,
            "score_interval": result.score_interval,
            "baselines": baselines,
        }
        self.folder.append("eval.jsonl", [line])
        return line

    def save(self) -> None:
        """Write a checkpoint of the present state."""
        state = {
            "learners": {
                n: {"weights": x.snapshot(), "optimizer": x.state()} for n, x in self.learners.items()
            },
            "credit": self.credit.state(),
            "backlog": None if self.backlog is None else self.backlog.state(),
        }
        path, keep = self.folder.path / "checkpoints", self.config.checkpoint.keep
        from_main(lambda: save_checkpoint(path, self.iteration, state, keep=keep), "writing a checkpoint")

    def restore(self) -> bool:
        """Go back to the newest intact checkpoint, if there is one."""
        path = self.folder.path / "checkpoints"
        found = from_main(lambda: newest_intact(path), "looking for checkpoints")
        if found is not None:
            self.iteration, state = load_checkpoint(found, is_checked=True)
            for name, learner in self.learners.items():
                learner.load(state["learners"][name]["weights"])
                learner.load_state(state["learners"][name]["optimizer"])
            self.credit.load_state(state["credit"])
            if self.backlog is not None:
                self.backlog.load_state(state["backlog"])
            self.sampler.load(self.policy.weights(), self.iteration)
        return found is not None

    def close(self) -> None:
        """Close sampler, environments, judge and files."""
        self.sampler.close()
        self.judging.close()
        for player in self.players.values():
            player.close()
        self.log.close()

    def _play_to_the_end(self, batch_number: int) -> tuple[Group, ...]:
        rollout = self.config.rollout
        first = batch_number * rollout.num_tasks
        numbers = range(first, first + rollout.num_tasks)
        return self.players["train"].play(
            [task_of(self.config.seed, self.iteration, number) for number in numbers],
            self.sampler,
            group_size=rollout.group_size,
            seed=derive_seed(self.config.seed, "rollout", self.iteration),
            temperature=rollout.temperature,
        )

    def _warn(self, values: dict[str, float]) -> None:
        for text in warn_if_contradictory(values, self.history):
            name = text.split(":", 1)[0]
            if name not in self.warned:
                logger.warning(text)
                self.warned.add(name)
        self.history = [*self.history[-50:], values]


def make_run(
    config: cfg.RunConfig, folder: RunFolder, model_path: Path, progress: Progress, *, resume: bool
) -> Run:
    """Build a run.

    Args:
        config: The configuration.
        folder: Its folder.
        model_path: Weights that the policy and every other model start from.
        progress: Display.
        resume: Go on from the newest checkpoint.
    """
    policy, tokenizer = make_learner(model_path, config, policy_optimization(config))

    def new_learner(optimization: Optimization, path: str | None) -> TorchLearner:
        if config.prm.backbone == "shared":
            learner, own = share_backbone(policy, config, optimization), tokenizer
        else:
            learner, own = make_learner(Path(path) if path else model_path, config, optimization)
        if own.get_vocab() != tokenizer.get_vocab():
            raise ConfigError(
                f"the tokenizer in {path} (prm.init) is not the policy's. Choose weights with it."
            )
        learner.sees_pictures = config.prm.sees_images
        return learner

    reference = cache(partial(start_policy, policy, model_path, config))
    new_env = partial(make_env, config.env, "train")
    parts = CreditParts(policy, config.prm, new_learner, reference, new_env)
    limit = config.rollout.max_response_tokens
    critic = partial(load_critic_learner, model_path, config)
    algorithm = make_algorithm(config.algorithm, AlgorithmParts(critic, config.learner, limit, config.seed))
    players = make_players(config, tokenizer)
    run = Run(
        config=config,
        folder=folder,
        policy=policy,
        sampler=make_policy_sampler(config, policy, tokenizer, model_path),
        players=players,
        backlog=make_backlog(config, players["train"]),
        judging=MainJudging(config, folder),
        algorithm=algorithm,
        credit=make_credit(config.credit, parts),
        reference=reference() if algorithm.loss.kl is not None else None,
        rehearsal=make_rehearsal(config, tokenizer, new_env),
        log=open_log(folder.path, config.tensorboard),
        progress=progress,
    )
    if resume and run.restore():
        run.log.close()
    if resume:
        folder.rewind(run.iteration)
        run.log = open_log(folder.path, config.tensorboard, resume_at=run.iteration)
        run.history = []
    return run
