"""A world whose calls take as long as a test says, and players of it."""

import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym

import istar_envs
from istar_trainer.rollout import Player
from istar_trainer.sampler import Request


class Waiting(gym.Wrapper):
    """Waits before each reset and step; the number of its calls that wait at once is counted over all."""

    lock = threading.Lock()
    num_waiting = 0
    most_waiting = 0

    def __init__(self, env: gym.Env, wait: Callable[[int, int], None]) -> None:
        super().__init__(env)
        self.wait, self.level, self.position = wait, 0, 0

    def reset(self, *, seed=None, options=None):
        self.level, self.position = seed, 0
        return self._waited(lambda: self.env.reset(seed=seed, options=options))

    def step(self, action):
        self.position += 1
        return self._waited(lambda: self.env.step(action))

    def _waited(self, call: Callable[[], Any]) -> Any:
        with Waiting.lock:
            Waiting.num_waiting += 1
            Waiting.most_waiting = max(Waiting.most_waiting, Waiting.num_waiting)
        try:
            self.wait(self.level, self.position)
            return call()
        finally:
            with Waiting.lock:
                Waiting.num_waiting -= 1


def make_player(tokenizer, wait: Callable[[int, int], None] = lambda *_: None, **options) -> Player:
    """A player of small levels, given what each call waits for, by seed of the level and step (0: reset)."""
    settings = {"template": "bare-v1", "window": 0, "max_prompt_tokens": 1024, **options}
    return Player(
        lambda: Waiting(istar_envs.make("istar/Sokoban-v0", max_moves=3, max_steps=4), wait),
        tokenizer,
        **settings,
    )


def random_mover(request: Request) -> str:
    return f"<action>{('up', 'down', 'left', 'right')[request.seed % 4]}</action>"


def doze(delays) -> Callable[[int, int], None]:
    """Waits of random lengths below two milliseconds, other ones at each call."""
    return lambda _level, _position: time.sleep(delays.random() * 0.002)
