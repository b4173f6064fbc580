"""Episodes plus what a language model needs: token ids, sampler logprobs and the snapshot id.

A row of a batch is one ``Step``; it is found by its keys (group, trajectory, step), never by its
position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from istar_envs.episode import Episode
from istar_trainer.pictures import PlacedPicture


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of one environment step.

    Attributes:
        prompt_ids: Token ids that the policy was conditioned on.
        response_ids: Token ids that the sampler drew, end-of-sequence included when drawn.
        sampler_logprobs: Log-probability of each response token as the sampler reported it, nats.
        pictures: What the prompt shows; equal pictures are one object.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    sampler_logprobs: Sequence[float]
    pictures: tuple[PlacedPicture, ...] = ()

    @property
    def prompt_key(self) -> tuple[Sequence[int], tuple[PlacedPicture, ...]]:
        """Equal for steps that were asked the same."""
        return tuple(self.prompt_ids), self.pictures


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode of a task with its tokens.

    Attributes:
        id: Unique in the run.
        group_id: Task that the trajectory shares with its group.
        snapshot_id: Version of the weights that sampled it; of its first step, if later ones came between.
        steps: One per transition of the episode.
        episode: What happened, as the environment and a judge see it.
        mixed_snapshot_ids: Version of each step, if not all are equal.
    """

    id: str
    group_id: str
    snapshot_id: int
    steps: tuple[Step, ...]
    episode: Episode
    mixed_snapshot_ids: tuple[int, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Version of the weights that sampled each step."""
        return self.mixed_snapshot_ids or (self.snapshot_id,) * len(self.steps)

    @property
    def failed(self) -> bool:
        """Whether something broke; a failed trajectory keeps its place and weighs nothing."""
        return self.episode.end == "failed"

    @property
    def content_key(self) -> str:
        """Equal for trajectories with the same tokens and pictures."""
        return repr([(s.prompt_key, tuple(s.response_ids)) for s in self.steps])


@dataclass(frozen=True, slots=True)
class Group:
    """N trajectories of one task from identical starts.

    Attributes:
        id: Unique in the run.
        task_seed: Seed that the environment was reset with.
        trajectories: The N attempts.
    """

    id: str
    task_seed: int
    trajectories: tuple[Trajectory, ...]
