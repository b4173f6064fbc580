"""Trajectories into one batch of rows with keys.

Layout of a row: left padding, prompt | response, right padding; all rows meet at ``|``, so only the
last columns need logits. Padding rows have weight 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.merging import Family, families_of
from istar_trainer.pictures import Picture
from istar_trainer.records import Step, Trajectory
from istar_trainer.vision import Shown, place_pictures


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Rows = environment steps.

    Attributes:
        input_ids: Token ids, padded with 0.
        attention_mask: True where a real token stands.
        response_mask: True where a sampled, trainable token stands.
        sampler_logprobs: As the sampler reported them, nats; 0 elsewhere.
        trajectory_index: Trajectory of each row, 0 … trajectories-1.
        step_index: Number of the step inside its trajectory.
        group_index: Group of each row, 0 … groups-1.
        weights: 1 for real rows, 0 for padding rows.
        env_rewards: The environment's own reward of each step.
        observation_ids: Equal iff the environment was in equal states before the steps.
        snapshot_id: Version of the weights that sampled; the oldest, if they changed meanwhile.
        pictures: For each row, in order, pairs of a number in ``album`` and the column where that picture
            starts; (−1, −1) beyond the last.
        album: The distinct pictures.
    """

    input_ids: Int[Tensor, "rows seq"]
    attention_mask: Bool[Tensor, "rows seq"]
    response_mask: Bool[Tensor, "rows seq"]
    sampler_logprobs: Float[Tensor, "rows seq"]
    trajectory_index: Int[Tensor, " rows"]
    step_index: Int[Tensor, " rows"]
    group_index: Int[Tensor, " rows"]
    weights: Float[Tensor, " rows"]
    env_rewards: Float[Tensor, " rows"]
    observation_ids: Int[Tensor, " rows"]
    snapshot_id: int
    pictures: Int[Tensor, "rows most 2"]
    album: tuple[Picture, ...]

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def select(self, rows: Int[Tensor, " some"]) -> "StepBatch":
        """Return the given rows, in the given order."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        picked: dict[str, Any] = {k: v[rows] if isinstance(v, Tensor) else v for k, v in values.items()}
        return StepBatch(**picked)

    def families(self) -> list[Family]:
        """Return which rows are the beginning of which; nothing if none is."""
        return families_of(self.input_ids, self.attention_mask, self.pictures)

    def without_pictures(self) -> "StepBatch":
        """Return the same rows with gaps where pictures stand."""
        shown = Shown.of(self.pictures, self.album)
        if shown is None:
            return self
        attention = self.attention_mask.index_put((shown.row, shown.column), torch.tensor(False))
        return replace(self, attention_mask=attention, pictures=self.pictures[:, :0], album=())


def collate(trajectories: Sequence[Trajectory], group_ids: Sequence[str]) -> StepBatch:
    """Lay the steps of trajectories out as rows.

    Args:
        trajectories: In the order that ``trajectory_index`` will count; failed ones get no rows.
        group_ids: In the order that ``group_index`` will count.

    Returns:
        One row per step of every trajectory that did not fail.

    Raises:
        ValueError: If there is no step at all.
    """
    keyed = [
        (trajectory_index, step_index, group_ids.index(trajectory.group_id), step)
        for trajectory_index, trajectory in enumerate(trajectories)
        if not trajectory.failed
        for step_index, step in enumerate(trajectory.steps)
    ]
    if not keyed:
        raise ValueError(f"cannot collate 0 steps of {len(trajectories)} trajectories: all of them failed")
    steps = [step for *_, step in keyed]
    width = max(len(step.prompt_ids) for step in steps)
    starts = [width - len(step.prompt_ids) for step in steps]
    album, pictures = place_pictures([step.pictures for step in steps], starts)
    keys = torch.tensor([key[:3] for key in keyed])
    transitions = [trajectories[number].episode.transitions[step] for number, step, *_ in keyed]
    seen: dict[str, int] = {}
    return StepBatch(
        *pad_steps(steps),
        trajectory_index=keys[:, 0],
        step_index=keys[:, 1],
        group_index=keys[:, 2],
        weights=torch.ones(len(keyed)),
        env_rewards=torch.tensor([t.reward for t in transitions]),
        observation_ids=torch.tensor([seen.setdefault(t.state_key, len(seen)) for t in transitions]),
        snapshot_id=min(t.snapshot_id for t in trajectories if not t.failed),
        pictures=pictures,
        album=album,
    )


def pad_steps(
    steps: Sequence[Step],
) -> tuple[
    Int[Tensor, "rows seq"], Bool[Tensor, "rows seq"], Bool[Tensor, "rows seq"], Float[Tensor, "rows seq"]
]:
    """Pad steps to a rectangle: prompts to the left, responses to the right.

    Returns:
        input_ids, attention_mask, response_mask and sampler_logprobs of ``StepBatch``.
    """
    prompt_width = max(len(s.prompt_ids) for s in steps)
    width = prompt_width + max(len(s.response_ids) for s in steps)
    ids = torch.zeros(len(steps), width, dtype=torch.int64)
    attention = torch.zeros(len(steps), width, dtype=torch.bool)
    response = torch.zeros(len(steps), width, dtype=torch.bool)
    logprobs = torch.zeros(len(steps), width)
    for row, step in enumerate(steps):
        start = prompt_width - len(step.prompt_ids)
        stop = prompt_width + len(step.response_ids)
        ids[row, start:stop] = torch.tensor([*step.prompt_ids, *step.response_ids])
        attention[row, start:stop] = True
        response[row, prompt_width:stop] = True
        logprobs[row, prompt_width:stop] = torch.tensor(list(step.sampler_logprobs))
    return ids, attention, response, logprobs


def micro_batches(
    batch: StepBatch, max_tokens: int, *, packing: bool = False, merge_prefixes: bool = False
) -> Iterator[Int[Tensor, " some"]]:
    """Deal rows into micro-batches of similar length, equal rows side by side.

    Args:
        batch: The rows.
        max_tokens: Padded tokens per micro-batch; a longer row still gets one of its own.
        packing: Whether to count real tokens instead, those of equal rows once.
        merge_prefixes: Whether rows that are the beginning of longer ones come with these and cost nothing.

    Yields:
        Row indices; every row exactly once.
    """
    lengths = batch.attention_mask.sum(dim=1).tolist()
    families = batch.families() if merge_prefixes else []
    repeats: set[int] = set()
    if not families:
        rows = torch.cat([batch.pictures.flatten(1), batch.input_ids], dim=1).tolist()
        order = sorted(range(len(rows)), key=lambda row: (lengths[row], rows[row], row))
        families = [[row] for row in order]
        repeats = {row for before, row in pairwise(order) if rows[before] == rows[row]}
    chunk: list[Family] = []
    num_real = 0
    for family in families:
        row = family[0]
        added = 0 if chunk and row in repeats else lengths[row]
        size = num_real + added if packing else lengths[row] * (len(chunk) + 1)
        if chunk and size > max_tokens:
            yield torch.tensor(list(chain.from_iterable(chunk)))
            chunk, num_real, added = [], 0, lengths[row]
        chunk.append(family)
        num_real += added
    if chunk:
        yield torch.tensor(list(chain.from_iterable(chunk)))
