"""Train a model that calls tools to play Sokoban, with TRL's GRPOTrainer and its environment_factory.

Needs TRL and a model whose chat template takes tools. It can play in containers, too, by ``istar/Remote-v0``.
Run: python examples/with_trl/sokoban_grpo.py Qwen/Qwen3-0.6B
"""

import sys
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import istar_envs

TASK = "Push every box ($) onto a target (.) by calling move. You are @.\n\n"


class Sokoban:
    """One board; its public methods but reset and get_reward are the model's tools."""

    def __init__(self) -> None:
        self._env = istar_envs.make("istar/Sokoban-v0")
        self._world: Any = self._env.unwrapped
        self._total, self._is_over = 0.0, True

    def reset(self, seed: int, **_: Any) -> str:
        """Start the episode of a row; returns the board."""
        board, info = self._env.reset(seed=seed)
        self._total, self._is_over = 0.0, False
        return self._world.language.text(board, info)

    def move(self, direction: str) -> str:
        """Move one cell, pushing a box that is in the way.

        Args:
            direction: up, down, left or right.

        Returns:
            The board after the move.
        """
        if self._is_over:
            return "The game is over."
        action = self._world.language.action(direction, {})
        is_move = isinstance(action, int)
        step = self._env.step(action) if is_move else self._world.invalid_step(action.reason)
        board, reward, terminated, truncated, info = step
        self._total += float(reward)
        self._is_over = terminated or truncated
        return self._world.language.text(board, info)

    def get_reward(self) -> float:
        """Return what the episode was worth."""
        return self._total


def trainer(model: Any, processing_class: Any = None, **settings: Any) -> GRPOTrainer:
    """Return TRL's trainer on boards by seed; settings go to GRPOConfig."""
    rows = [{"prompt": [{"role": "user", "content": TASK}], "seed": seed} for seed in range(1000)]
    config = GRPOConfig(output_dir="runs/trl-sokoban", max_tool_calling_iterations=20, **settings)
    return GRPOTrainer(
        model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=processing_class,
        environment_factory=Sokoban,
    )


if __name__ == "__main__":
    trainer(sys.argv[1], num_generations=8, max_completion_length=2048).train()
