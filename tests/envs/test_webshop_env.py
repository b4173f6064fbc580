"""The text environments as their users meet them: tasks, rewards, ends, experts and errors."""

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator

import gymnasium as gym
import pytest

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.webshop.env import OBSERVATIONS, WebShopEnv
from istar_envs.webshop.session import PageKind

HOSTILE = (
    "",
    "\x00\x1b[31m",
    "search[",
    "search]",
    "search[]",
    "click[[[]]]]",
    "click[search]",
    "search[<r>]",
    "search[<c> beauty]",
    "search[<q> lamp]",
    "search[<a> soft]",
    "search[two\nlines]",
    "search[" + "a" * 1_000_000 + "]",
    "click[" + "[" * 1_000_000,
    "кликни[купить]",
    "click[买]",
    "\ud800",
    "think[nothing]",
    "Buy Now",
)


def make(env_id: str = "istar/WebShop-v1", **options: object) -> WebShopEnv:
    env = istar_envs.make(env_id, **options).unwrapped
    assert isinstance(env, WebShopEnv)
    return env


def finish(env: WebShopEnv, act: str = "expert_action") -> tuple[float, bool, dict]:
    while True:
        _, reward, terminated, truncated, info = env.step(getattr(env, act)())
        if terminated or truncated:
            return reward, terminated, info


def test_the_ids_differ_in_scoring_and_splits() -> None:
    v0, v1 = make("istar/WebShop-v0"), make("istar/WebShop-v1")
    assert (v0.shop.scoring, v1.shop.scoring) == ("compat", "strict")
    assert v0.task_ids()[0].endswith("compat/0/1500")
    assert v1.task_ids()[0] != v0.task_ids()[0]


def test_an_episode_begins_on_the_search_page_and_ends_with_the_purchase() -> None:
    env = make(split="dev")
    observation, info = env.reset(seed=3)
    assert info["task"] in observation
    assert info["admissible_actions"] == ["search[your query]"]
    reward, terminated, info = finish(env)
    assert terminated
    assert reward == info["score"] == 1.0
    assert info["success"]
    assert info["exact_product"]
    assert info["admissible_actions"] == []
    with pytest.raises(ResetNeeded, match="has ended"):
        env.step("search[again]")


def test_rewards_are_zero_before_the_purchase() -> None:
    env = make(max_steps=30)
    env.reset(seed=1)
    while True:
        _, reward, terminated, _, info = env.step(env.expert_action())
        if terminated:
            break
        assert reward == info["score"] == info["r_type"] == 0.0
    assert reward > 0.0


def test_without_a_purchase_the_episode_is_truncated_and_scores_nothing() -> None:
    env = make(max_steps=3)
    env.reset(seed=0)
    results = [env.step("click[back to search]") for _ in range(3)]
    assert [r[3] for r in results] == [False, False, True]
    assert [r[1] for r in results] == [0.0, 0.0, 0.0]
    assert not results[-1][4]["success"]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_hostile_text_is_an_invalid_step_that_changes_nothing(text: str) -> None:
    env = make(max_steps=30)
    env.reset(seed=0)
    while True:
        before = env.state
        if before.kind is PageKind.SEARCH or not text.startswith("search[a"):
            _, reward, terminated, _, info = env.step(text)
            assert (info["valid"], reward, terminated) == (False, 0.0, False)
            assert info["invalid_reason"]
            assert len(info["invalid_reason"]) < 2000
            assert env.state == before
        if env.step(env.expert_action())[2]:
            break


def test_a_goal_can_be_chosen_by_number_or_task_id() -> None:
    env = make("istar/WebShop-v0")
    _, first = env.reset(options={"goal": 7})
    _, again = env.reset(options={"task_id": first["task_id"]})
    assert first == again
    assert first["goal"] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": -1}, "no goal -1.*numbered from 0 to"),
        ({"goal": 10**9}, "no goal 1000000000"),
        ({"goal": True}, "no goal True"),
        ({"task_id": "generated/synthetic/strict/0/x"}, "unknown task_id"),
        (
            {"task_id": "another/synthetic/strict/0/1"},
            "This environment's ids are generated/synthetic/strict",
        ),
        ({"gaol": 1}, 'Did you mean "goal"'),
    ],
)
def test_an_unknown_task_is_refused_with_what_exists(options: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make().reset(options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring": "stirct"}, 'Did you mean "strict"'),
        ({"goals": "humans"}, 'Did you mean "human"'),
        ({"search": "bm52"}, 'Did you mean "bm25"'),
        ({"observation": "txt"}, 'Did you mean "text"'),
        ({"split": "tests"}, "test"),
        ({"split_scheme": "istar", "split": "dev"}, "dev"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"page_size": 0}, "page_size must be at least 1"),
        ({"sampling": "weight"}, 'Did you mean "weighted"'),
        ({"catalogue": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_a_wrong_option_is_answered_with_what_exists(options: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make(**options)


def test_every_observation_mode_shows_the_instruction_or_the_place() -> None:
    for mode in OBSERVATIONS:
        env = make("istar/WebShop-v0", observation=mode)
        observation, info = env.reset(seed=0)
        shown = env.language.text(observation, info)
        assert env.observation_space.contains(observation)
        assert mode == "url" or info["task"] in shown
        if mode == "structured":
            assert json.loads(shown) == observation


def test_chosen_options_are_shown_unless_switched_off() -> None:
    for shown in (True, False):
        env = make("istar/WebShop-v0", show_chosen=shown, max_steps=30)
        for goal in range(100):
            env.reset(options={"goal": goal})
            if env.goal.options:
                break
        while not env.state.chosen:
            observation, *_ = env.step(env.expert_action())
        name, value = env.state.chosen[0]
        assert (f"You have chosen {name}: {value}" in observation) is shown


def test_the_oracle_wins_every_goal_of_the_corrected_scoring() -> None:
    for split in ("train", "dev", "test"):
        env = make(split=split, max_steps=20)
        ids = env.task_ids()
        for task_id in [ids[i] for i in range(0, len(ids), max(1, len(ids) // 60))]:
            env.reset(options={"task_id": task_id})
            assert finish(env)[2]["success"], task_id


def test_human_goals_are_winnable_too() -> None:
    env = make(goals="human", max_steps=20)
    for task_id in env.task_ids():
        env.reset(options={"task_id": task_id})
        assert finish(env)[2]["success"], task_id


def test_the_rule_shopper_wins_some_and_loses_some() -> None:
    env = make(split="test", max_steps=20)
    wins = []
    for task_id in env.task_ids()[:100]:
        env.reset(options={"task_id": task_id})
        wins.append(finish(env, "rule_action")[2]["success"])
    assert 0.2 < sum(wins) / len(wins) < 0.95


def test_weighted_draws_follow_the_published_weights() -> None:
    env = make("istar/WebShop-v0", sampling="weighted")
    weights = env.shop.goals.weights
    env.reset(seed=0)
    drawn = [env.reset()[1]["goal"] for _ in range(400)]
    mean = sum(float(weights[goal]) for goal in drawn) / len(drawn)
    assert mean > 1.2 * float(weights[1500:].mean())


def test_equal_seeds_give_equal_goals_and_prices_in_another_process() -> None:
    code = (
        "import istar_envs; env = istar_envs.make('istar/WebShop-v0').unwrapped; env.reset(seed=5); "
        "print([env.reset()[1]['task'] for _ in range(20)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    env = make("istar/WebShop-v0")
    env.reset(seed=5)
    assert done.stdout.strip() == str([env.reset()[1]["task"] for _ in range(20)])


def test_another_price_seed_changes_caps_but_not_goals() -> None:
    first, second = make("istar/WebShop-v0"), make("istar/WebShop-v0", price_seed=1)
    pairs = [(first.shop.goals.goal(i), second.shop.goals.goal(i)) for i in range(200)]
    assert all(a.target == b.target and a.options == b.options for a, b in pairs)
    assert any(a.price_upper != b.price_upper for a, b in pairs)


def walk(env: WebShopEnv, goal: int) -> Iterator[tuple]:
    """Play a goal half by the oracle and half at random; what reset and each step return."""
    rng = random.Random(goal)
    _, info = result = env.reset(options={"goal": goal})
    yield result
    while True:
        actions = [env.expert_action(), rng.choice(info["admissible_actions"])]
        *_, terminated, truncated, info = result = env.step(rng.choice(actions))
        yield result
        if terminated or truncated:
            return


def test_a_thousand_interleaved_sessions_equal_the_same_sessions_run_alone() -> None:
    num_sessions = 1000
    env = make("istar/WebShop-v0")
    alone = [list(walk(env, goal)) for goal in range(num_sessions)]
    together: list[list] = [[] for _ in range(num_sessions)]
    walks = [walk(make("istar/WebShop-v0"), goal) for goal in range(num_sessions)]
    live, order = list(range(num_sessions)), random.Random(0)
    while live:
        session = order.choice(live)
        result = next(walks[session], None)
        if result is None:
            live.remove(session)
        else:
            together[session].append(result)
    assert together == alone


def test_environments_share_one_shop_and_a_session_is_small() -> None:
    first, second = make("istar/WebShop-v0"), make("istar/WebShop-v0")
    assert first.shop is second.shop
    first.reset(seed=0)
    assert len(pickle.dumps(first.clone_state())) < 16_000


def test_a_conversation_plays_to_the_end_and_records_it() -> None:
    env = gym.make("istar/WebShop-v1", split="dev")
    conversation = Conversation(env, template="act-v1")
    conversation.reset(seed=0)
    conversation.respond("I would like to browse")
    while not conversation.done:
        conversation.respond(f"<action>{env.unwrapped.expert_action()}</action>")
    episode = conversation.episode()
    assert episode.success
    assert episode.end == "terminated"
    assert [t.valid for t in episode.transitions][:2] == [False, True]


def test_random_actions_of_the_space_reach_products() -> None:
    env = make("istar/WebShop-v0", max_steps=50)
    env.action_space.seed(0)
    kinds = set()
    for seed in range(40):
        env.reset(seed=seed)
        while True:
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            kinds.add(info["page"])
            if terminated or truncated:
                break
    assert {"search", "results"} <= kinds
