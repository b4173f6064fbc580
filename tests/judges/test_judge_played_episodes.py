import random
import runpy
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest

import istar_envs  # noqa: F401  (registers the environments)
from istar_envs.agent import Conversation
from istar_judges import SokobanVerifier

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.parametrize("env_id", ["istar/Sokoban-v0", "istar/VisualSokoban-v0"])
def test_the_verifier_agrees_with_the_environment_on_played_episodes(env_id):
    conversation = Conversation(gym.make(env_id), template="act-v1")
    player, judge, results = random.Random(1), SokobanVerifier(), set()
    for seed in range(40):
        conversation.reset(seed=seed)
        while not conversation.done:
            conversation.respond(f"<action>{player.choice(['up', 'down', 'left', 'right', 'jump'])}</action>")
        episode = conversation.episode()
        outcome = judge(episode)
        assert (outcome.status, outcome.success, outcome.detail) == ("ok", episode.success, "")
        assert judge(replace(episode, success=not episode.success)).success is episode.success
        results.add(outcome.success)
    assert results == {True, False}


@pytest.mark.integration
def test_the_example_judges_and_pairs(capsys):
    runpy.run_path(str(REPOSITORY / "examples" / "02_judge_an_episode.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "episode-7: ok" in out
    assert "pairs on level" in out
    assert "chosen:   <action>" in out
