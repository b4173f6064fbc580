"""The WebShop verifier shops again and believes nothing that the record claims."""

import dataclasses

import gymnasium as gym
import pytest

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.episode import Episode, write_episodes
from istar_envs.errors import ConfigError
from istar_judges import WebShopVerifier, make_verifier, verifier_of
from istar_judges.cli import main
from istar_judges.errors import JudgeError


def play(env: gym.Env, *, goal: int, wrong_last: bool = False) -> Episode:
    """Play a goal by the oracle; with ``wrong_last``, buy without the options."""
    conversation = Conversation(env, template="act-v1")
    conversation.reset(options={"goal": goal})
    conversation.respond("no action at all")
    while not conversation.done:
        action = env.unwrapped.expert_action()
        if wrong_last and env.unwrapped.state.kind == "item":
            action = "click[buy now]"
        conversation.respond(f"<action>{action}</action>")
    return conversation.episode()


def goal_with_options(env: gym.Env) -> int:
    goals = env.unwrapped.shop.goals
    return next(i for i in range(len(goals)) if goals.goal(i).options)


@pytest.fixture(scope="module", params=["istar/WebShop-v0", "istar/WebShop-v1"])
def env(request) -> gym.Env:
    return istar_envs.make(request.param, tagger="light", max_steps=15, page_size=5)


@pytest.fixture
def verifier() -> WebShopVerifier:
    return WebShopVerifier(page_size=5, tagger="light")


def test_a_perfect_purchase_is_a_success(env, verifier):
    episode = play(env, goal=goal_with_options(env))
    outcome = verifier(episode)
    assert (outcome.status, outcome.score, outcome.success, outcome.detail) == ("ok", 1.0, True, "")


def test_the_return_is_the_score_of_the_purchase(env):
    episode = play(env, goal=goal_with_options(env), wrong_last=True)
    outcome = WebShopVerifier("return", page_size=5, tagger="light")(episode)
    assert outcome.score == episode.score == episode.episode_return
    assert 0.0 < outcome.score < 1.0
    assert not outcome.success


def test_a_false_claim_is_named_and_not_believed(env, verifier):
    episode = play(env, goal=goal_with_options(env), wrong_last=True)
    outcome = verifier(dataclasses.replace(episode, success=True, score=1.0))
    assert (outcome.score, outcome.success) == (0.0, False)
    assert outcome.detail == "the record claims success=True"


def test_an_action_that_the_shop_refuses_gives_no_verdict(env, verifier):
    episode = play(env, goal=3)
    steps = list(episode.transitions)
    steps[2] = dataclasses.replace(steps[2], action="click[not there]")
    outcome = verifier(dataclasses.replace(episode, transitions=tuple(steps)))
    assert (outcome.status, outcome.score) == ("invalid", None)
    assert "step 3" in outcome.detail


def test_an_episode_without_a_purchase_fails(env, verifier):
    episode = play(env, goal=3)
    cut = dataclasses.replace(episode, transitions=episode.transitions[:-1], success=False, end="truncated")
    outcome = verifier(cut)
    assert (outcome.score, outcome.detail) == (0.0, "nothing was bought")


def test_a_failed_episode_and_an_unknown_catalogue_give_no_verdict(env, verifier):
    episode = play(env, goal=3)
    failed = verifier(dataclasses.replace(episode, end="failed", error="it broke"))
    assert (failed.status, failed.detail) == ("invalid", "the episode failed: it broke")
    elsewhere = verifier(dataclasses.replace(episode, task_id="no-such-shop/synthetic/strict/0/3"))
    assert elsewhere.status == "invalid"
    assert "no-such-shop" in elsewhere.detail
    beyond = verifier(dataclasses.replace(episode, task_id=episode.task_id + "000000"))
    assert "goals" in beyond.detail


def test_several_actions_of_one_reply_are_taken_apart(env, verifier):
    episode = play(env, goal=3)
    first, *rest = [t for t in episode.transitions if t.action is not None]
    merged = dataclasses.replace(first, action="||".join([first.action, *(t.action for t in rest)]))
    assert verifier(dataclasses.replace(episode, transitions=(merged,))).success


def test_an_episode_of_another_world_is_refused(verifier):
    other = Episode("istar/Sokoban-v0", "x", "", (), False, 0.0, "truncated")
    with pytest.raises(JudgeError, match="came to the WebShop verifier"):
        verifier(other)


def test_verifiers_are_found_by_environment():
    assert verifier_of("istar/WebShop-v1") == "webshop"
    assert verifier_of("istar/VisualSokoban-v0") == "sokoban"
    with pytest.raises(
        ConfigError, match=r"no verifier knows the environment 'Chess-v0'.*sokoban, sotopia, webshop"
    ):
        verifier_of("Chess-v0")
    with pytest.raises(ConfigError, match='Did you mean "success"'):
        WebShopVerifier("sucess")  # type: ignore[arg-type]
    made = make_verifier("webshop", "return", {"page_size": 3, "max_steps": 9})
    assert made == WebShopVerifier("return", page_size=3)


def test_the_command_line_judges_a_file_by_its_environments(tmp_path, capsys):
    env = istar_envs.make("istar/WebShop-v1", max_steps=15)
    write_episodes(tmp_path / "e.jsonl", [play(env, goal=3), play(env, goal=4)])
    assert main(["score", str(tmp_path / "e.jsonl")]) == 0
    assert "2 episodes: 2 ok; 2 successes" in capsys.readouterr().err
