"""The game that other libraries are made to play."""

import istar_envs

SOKOBAN = "istar/Sokoban-v0"


def plan(seed: int) -> tuple[list[str], float]:
    """The expert's moves, and what the game is worth with them."""
    env = istar_envs.make(SOKOBAN)
    env.reset(seed=seed)
    moves, total, is_over = [], 0.0, False
    while not is_over:
        action = env.unwrapped.expert_action()
        moves.append(env.unwrapped.language.name(action))
        _, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        is_over = terminated or truncated
    return moves, total
