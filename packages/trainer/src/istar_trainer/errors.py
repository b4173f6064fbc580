"""Rollout and training branches of the error tree (``istar_envs.errors``)."""

from istar_envs.errors import IstarError


class RolloutError(IstarError):
    """The agent–environment loop cannot go on."""


class PromptTooLong(RolloutError):
    """A prompt exceeds the limit; the trajectory ends as truncated, not as failed."""


class SamplerFailed(RolloutError):
    """The sampler gave no usable answer."""


class TrainingError(IstarError):
    """An update cannot be made."""


class StaleSnapshot(TrainingError):
    """A batch was sampled by other weights than those that score it."""


class NonFiniteLoss(TrainingError):
    """A loss or gradient is NaN or infinite; the weights were not touched."""


class CheckpointMismatch(TrainingError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


class DiskFailed(TrainingError):
    """A disk is full, broken or closed to us; what was written before is intact."""


class OutOfMemory(TrainingError):
    """Memory, the machine's or a GPU's, did not suffice."""


class RankLost(TrainingError):
    """Another process of the run cannot be reached any more."""
