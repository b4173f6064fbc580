"""Our environments as a taskset of verifiers: with this folder on PYTHONPATH its id is ``istar-taskset``.

vf-eval istar-taskset --env.taskset.env istar/Sokoban-v0 --env.player.harness.id null
"""

from istar_envs.interop.verifiers import (
    IstarConfig,
    IstarData,
    IstarEnv,
    IstarEnvConfig,
    IstarTask,
    IstarTaskset,
)

__all__ = ["IstarConfig", "IstarData", "IstarEnv", "IstarEnvConfig", "IstarTask", "IstarTaskset"]
