"""A thousand random steps on pictures, as any Gymnasium-based trainer takes them: no wrapper needed.

`gym.make_vec` gives 8 boards stepped in this process; episodes that end are replaced by themselves.
"""

import time

import gymnasium as gym
import numpy as np

import istar_envs
from istar_envs.sokoban.render import png_bytes

gym.register_envs(istar_envs)


def main() -> None:
    """Play, count, and say how fast it went."""
    envs = gym.make_vec("istar/VisualSokoban-v0", num_envs=8, tile_size=16, coordinates=True)
    observations, infos = envs.reset(seed=0)
    envs.action_space.seed(0)
    solved = ended = 0
    earned = 0.0
    start = time.perf_counter()
    for _ in range(1_000):
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        earned += float(rewards.sum())
        solved += int(np.sum(infos["success"]))
        ended += int(np.sum(terminated | truncated))
    seconds = time.perf_counter() - start
    print(f"{observations.shape} {observations.dtype}: {8_000 / seconds:,.0f} steps/s")
    print(f"random play solved {solved} of {ended} episodes and earned {earned / ended:.2f} in each")
    print(f"a board is {len(png_bytes(observations[0])):,} bytes of PNG")
    envs.close()


if __name__ == "__main__":
    main()
