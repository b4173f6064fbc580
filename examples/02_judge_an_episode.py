"""Play one Sokoban level eight times, judge every episode and pair the better with the worse.

Run: python examples/02_judge_an_episode.py
"""

import random

import gymnasium as gym

import istar_envs  # noqa: F401  (registers the environments)
from istar_envs.agent import Conversation
from istar_envs.episode import Episode
from istar_judges import PairRule, SokobanVerifier, content_key, make_pairs, preference_example

NUM_EPISODES = 8
LEVEL_SEED = 2


def play(conversation: Conversation, player: random.Random) -> Episode:
    """Play one episode with random moves, written as a model would reply."""
    conversation.reset(seed=LEVEL_SEED)
    while not conversation.done:
        move = player.choice(conversation.info["admissible_actions"])
        conversation.respond(f"<action>{move}</action>")
    return conversation.episode()


def main() -> None:
    """Judge a group of episodes and show its pairs."""
    conversation = Conversation(gym.make("istar/Sokoban-v0", min_moves=2, max_moves=4), template="act-v1")
    player = random.Random(0)
    episodes = {f"episode-{number}": play(conversation, player) for number in range(NUM_EPISODES)}

    verifier = SokobanVerifier()
    outcomes = {key: verifier(episode) for key, episode in episodes.items()}
    for key, outcome in outcomes.items():
        print(f"{key}: {outcome.status}, score {outcome.score}, {len(episodes[key].transitions)} steps")

    content_keys = {key: content_key(episode) for key, episode in episodes.items()}
    pairs = make_pairs(outcomes, group_id=conversation.task_id, rule=PairRule(), content_keys=content_keys)
    print(f"\n{len(pairs)} pairs on level {conversation.task_id}")
    for pair in pairs:
        print(f"  {pair.preferred} over {pair.rejected}, weight {pair.weight:.3f}")

    if pairs:
        example = preference_example(episodes[pairs[0].preferred], episodes[pairs[0].rejected])
        print(f"\nprompt: {example.prompt[0].content}")
        print(f"chosen:   {example.chosen[0].content} … ({len(example.chosen)} messages)")
        print(f"rejected: {example.rejected[0].content} … ({len(example.rejected)} messages)")


if __name__ == "__main__":
    main()
