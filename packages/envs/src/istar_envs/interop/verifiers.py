"""Any environment as a taskset of verifiers 0.4, with the environment that plays it.

A task is one seed. The world is the user of the conversation: it opens it, and answers every reply until the
episode ends. verifiers finds a taskset by the name of a module without dots, so export this one from yours
(``examples/with_verifiers/istar_taskset.py``). verifiers is in the extra ``verifiers``.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from istar_envs.agent import Conversation
from istar_envs.errors import EnvError
from istar_envs.interop.messages import portable
from istar_envs.registration import make

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise EnvError(
        'istar_envs.interop.verifiers needs verifiers. Run: pip install "istar-envs[verifiers]"'
    ) from error

__all__ = ["IstarConfig", "IstarData", "IstarEnv", "IstarEnvConfig", "IstarTask", "IstarTaskset"]


class IstarConfig(vf.TasksetConfig):  # type: ignore[misc]
    """What is played."""

    env: str = "istar/Sokoban-v0"
    """Id of the environment."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""
    template: str = "think-v1"
    """Prompt template, as for ``Conversation``."""
    first_seed: int = 0
    """Seed of the first task."""
    num_tasks: int = 100
    """Number of tasks."""


class IstarData(vf.TaskData):  # type: ignore[misc]
    """One episode to play."""

    env: str
    """Id of the environment."""
    options: dict[str, Any]
    """Its arguments."""
    template: str
    """Prompt template."""
    seed: int
    """Seed of its reset."""


class IstarTask(vf.Task[IstarData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """A task of these."""


class IstarTaskset(vf.Taskset[IstarTask, IstarConfig]):  # type: ignore[misc]
    """Episodes of one environment, by seeds that follow each other."""

    def load(self) -> Iterator[IstarTask]:
        """Yield the tasks."""
        config = self.config
        for seed in range(config.first_seed, config.first_seed + config.num_tasks):
            shared = {"env": config.env, "options": config.options, "template": config.template}
            yield IstarTask(IstarData(name=f"{config.env}#{seed}", seed=seed, **shared), config.task)


class IstarEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """Who plays."""

    player: vf.AgentConfig = vf.AgentConfig()
    """The model."""


class IstarEnv(vf.Env[IstarEnvConfig]):  # type: ignore[misc]
    """Plays one episode; its reward is the sum of the world's, ``score`` and ``success`` are metrics."""

    async def run(self, task: IstarTask, agents: Any) -> None:
        """Let the player answer the world until the episode ends.

        Args:
            task: What is played.
            agents: Holds the player.
        """
        data = task.data
        game = await asyncio.to_thread(_started, data)
        total = 0.0
        try:
            async with agents.player.interaction(task) as interaction:
                asked = portable(game.messages())
                segment = await interaction.turn(asked)
                while not segment.terminated:
                    transition = await asyncio.to_thread(game.respond, segment.last_reply)
                    total += transition.reward
                    if game.done:
                        break
                    segment = await interaction.turn(portable(game.messages())[-1:])
        finally:
            game.env.close()
        trace = interaction.trace
        trace.record_reward("return", total)
        trace.record_metrics({"score": float(game.info["score"]), "success": float(game.info["success"])})


def _started(data: IstarData) -> Conversation:
    game = Conversation(make(data.env, **data.options), template=data.template, window=None)
    game.reset(seed=data.seed)
    return game
