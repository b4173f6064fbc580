"""Play a Sokoban level in the terminal: `python examples/01_play_sokoban.py [up left ...]`.

With action words as arguments those are played, without any the expert plays. Words that are no
action are invalid steps: they cost a step, say why, and change nothing.
"""

import sys

import gymnasium as gym

import istar_envs
from istar_envs.language import InvalidAction
from istar_envs.sokoban.expert import expert_plan

gym.register_envs(istar_envs)  # registration happens at import; this line says so


def main(words: list[str]) -> None:
    """Play one level and print every board."""
    env = gym.make("istar/Sokoban-v0", levels="istar-6x6-2", render_mode="ansi")
    _, info = env.reset(seed=7)
    world = env.unwrapped
    print(f"{info['task']} Level {info['level_id']}, solvable in {info['optimal_left']} moves.\n")
    print(env.render(), "\n")
    if not words:
        plan = expert_plan(world.level.layout, world.board_state)
        words = [world.language.name(action) for action in plan]
    earned = 0.0
    for word in words:
        action = world.language.action(word, info)
        if isinstance(action, InvalidAction):
            _, reward, terminated, truncated, info = world.invalid_step(action.reason)
        else:
            _, reward, terminated, truncated, info = env.step(action)
        earned += reward
        note = info["invalid_reason"] or (
            "deadlocked" if info["deadlocked"] else f"{info['optimal_left']} moves to go"
        )
        print(f"{word}: reward {reward:+.1f}, {note}\n{env.render()}\n")
        if terminated or truncated:
            break
    print(
        f"{'Solved' if info['success'] else 'Not solved'} after {info['steps']} steps, return {earned:.1f}."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
