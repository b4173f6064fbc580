"""A finished or running run, opened to look at: its policy plays and is judged, and nothing is written.

Everything is built by ``setup.make_run`` in a scratch folder that only sees the run's checkpoints.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from istar_envs.agent import Conversation
from istar_envs.errors import ConfigError
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Task
from istar_trainer.batch import StepBatch, collate
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.config import RunConfig
from istar_trainer.config_credits import NoCredit
from istar_trainer.config_files import validated
from istar_trainer.credit_truth.truth import Floats
from istar_trainer.credits import BatchOutcomes, CreditParts
from istar_trainer.factories import load_reference, make_env, make_learner
from istar_trainer.folder import RunFolder
from istar_trainer.learner import Learner, Optimization
from istar_trainer.prm import Pairs
from istar_trainer.progress import Progress
from istar_trainer.records import Group
from istar_trainer.rollout import require_enough
from istar_trainer.setup import Run, make_run
from istar_trainer.weights import load_model


@dataclass(frozen=True, slots=True)
class Recorded:
    """Groups that the policy played, with everything that credit is assigned from.

    Attributes:
        groups: What was played.
        outcomes: What the judge said.
        pairs: Preferences inside the groups.
        batch: All steps.
        old_logprobs: Their logprobs under the policy.
    """

    groups: tuple[Group, ...]
    outcomes: BatchOutcomes
    pairs: Pairs
    batch: StepBatch
    old_logprobs: Float[Tensor, "rows seq"]


@dataclass(frozen=True, slots=True)
class Session:
    """An opened run.

    Attributes:
        config: Its configuration, credit included.
        run: Policy, players and algorithm as of the newest checkpoint; without credit.
        parts: What credit methods are built from.
        learned: Weights and optimizer of every model in the checkpoint, by name; empty without one.
        tokenizer: Tokenizer of the policy.
    """

    config: RunConfig
    run: Run
    parts: CreditParts
    learned: dict[str, Any]
    tokenizer: Any

    def record(self, num_groups: int, group_size: int, *, seed: int) -> Recorded:
        """Play fresh training tasks with the policy, at the run's own temperature.

        Args:
            num_groups: How many tasks.
            group_size: Trajectories of each.
            seed: Seed of tasks and draws.
        """
        rollout = self.config.rollout
        tasks = [
            Task(f"{seed}/{number}", derive_seed(seed, "credit truth", number) % 2**31)
            for number in range(num_groups)
        ]
        groups = self.run.players["train"].play(
            tasks, self.run.sampler, group_size=group_size, seed=seed, temperature=rollout.temperature
        )
        require_enough(groups, rollout.max_failed_frac)
        outcomes = self.run.judge(groups)
        trajectories = [t for group in groups for t in group.trajectories]
        batch = collate(trajectories, [group.id for group in groups])
        return Recorded(
            groups, outcomes, self.run.pair(groups, outcomes), batch, self.run.old_logprobs(batch)
        )

    def judge(self, groups: Sequence[Group]) -> Floats:
        """Return the outcome of every trajectory, NaN without a verdict."""
        outcomes = self.run.judge(groups)
        return np.where(outcomes.has_outcome.numpy(), outcomes.values.double().numpy(), np.nan)

    def conversation(self) -> Conversation:
        """Make the environment that is trained on, as a conversation."""
        env = make_env(self.config.env, "train")
        return Conversation(env, template=self.config.env.template, window=self.config.env.window)


@contextmanager
def open_run(run_dir: Path) -> Iterator[Session]:
    """Open a run folder; it is left as it is.

    Args:
        run_dir: Folder that ``istar train`` wrote.

    Raises:
        ConfigError: If there is no run, or its start policy is gone.
    """
    config = _read_config(run_dir)
    start = _start_policy(run_dir, config)
    with TemporaryDirectory() as name, Progress() as quiet:
        scratch = Path(name)
        (scratch / "checkpoints").mkdir()
        for path in list_checkpoints(run_dir / "checkpoints"):
            (scratch / "checkpoints" / path.name).symlink_to(path.resolve())
        plain = config.model_copy(update={"credit": NoCredit(), "tensorboard": False})
        run = make_run(plain, RunFolder(scratch, plain, resume=True), start, quiet, resume=True)
        found = list_checkpoints(scratch / "checkpoints")
        learned = load_checkpoint(found[-1])[1]["learners"] if found else {}
        try:
            yield Session(config, run, _parts(run, start), learned, load_model(start)[1])
        finally:
            run.close()


def _parts(run: Run, start: Path) -> CreditParts:
    def new_learner(optimization: Optimization, path: str | None) -> Learner:
        return make_learner(Path(path) if path else start, run.config, optimization)[0]

    reference: Callable[[], Any] = cache(partial(load_reference, start, run.config))
    new_env = partial(make_env, run.config.env, "train")
    return CreditParts(run.policy, run.config.prm, new_learner, reference, new_env)


def _read_config(run_dir: Path) -> RunConfig:
    path = run_dir / "config.json"
    try:
        return validated(RunConfig, json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise ConfigError(
            f"no run in {run_dir}: cannot read config.json ({error.strerror}). Give the folder that istar "
            "train wrote."
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}. Restore the file.") from error


def _start_policy(run_dir: Path, config: RunConfig) -> Path:
    """Return the folder of the policy that reinforcement learning started from."""
    if config.warm_start.enabled:
        start = run_dir / "warm_start"
    else:
        start = Path(config.model.path) if config.model.path else run_dir / "model"
    if not start.is_dir():
        raise ConfigError(
            f"the start policy of {run_dir} is not there ({start}). Finish the warm start with istar train "
            "--resume, or restore the folder."
        )
    return start
