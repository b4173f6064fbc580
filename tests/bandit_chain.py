"""A chain of choices of which exactly one decides success; what is seen tells nothing but the step."""

from typing import Any

import gymnasium as gym

from istar_envs.language import InvalidAction

WORDS = ("a", "b")


class BanditChain(gym.Env[int, int]):
    """``length`` steps of two actions each; the episode is won iff step ``key`` took action b."""

    def __init__(self, length: int = 4, key: int = 2) -> None:
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Discrete(length + 1)
        self.language = _Words()
        self.length, self.key = length, key
        self._taken: list[int | None] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._taken = []
        return 0, self._info(None)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self._take(action, None)

    def invalid_step(self, reason: str) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self._take(None, reason)

    def task_ids(self) -> None:
        """Every seed is a task."""

    def expert_action(self) -> int:
        return int(len(self._taken) == self.key)

    def _take(self, action: int | None, reason: str | None) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._taken.append(action)
        ended = len(self._taken) == self.length
        won = ended and self._taken[self.key] == 1
        return len(self._taken), float(won), ended, False, self._info(reason)

    def _info(self, reason: str | None) -> dict[str, Any]:
        won = len(self._taken) == self.length and self._taken[self.key] == 1
        return {
            "task": "choose",
            "task_id": "chain",
            "success": won,
            "score": float(won),
            "valid": reason is None,
            "invalid_reason": reason,
            "admissible_actions": list(WORDS),
            "state_key": str(len(self._taken)),
        }


class _Words:
    role = "Choose a or b."

    def text(self, observation: int, info: dict[str, Any]) -> str:
        return str(observation)

    def image(self, observation: int, info: dict[str, Any]) -> None:
        return None

    def action(self, text: str, info: dict[str, Any]) -> int | InvalidAction:
        return WORDS.index(text) if text in WORDS else InvalidAction(f"{text!r} is neither a nor b")

    def name(self, action: int) -> str:
        return WORDS[action]
