"""Many social episodes stepped together: rows as single episodes, partners and scorers asked at once."""

import asyncio
import gc
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sotopia_world import write_world

import istar_envs
from istar_envs.chat import ChatClient
from istar_envs.conformance.play import canonical, row
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import EnvError, IstarError, ResetNeeded
from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, Reply
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.vector import SotopiaVectorEnv

TALK = "say: What would you like?"


def make(num_envs: int, **options: Any) -> SotopiaVectorEnv:
    vector = gym.make_vec("istar/Sotopia-v0", num_envs=num_envs, split="test", **options)
    assert isinstance(vector, SotopiaVectorEnv)
    return vector


class Together:
    """A partner that is asked in many dialogues at once; it fails in some tasks."""

    name = "together"

    def __init__(self, *lost: str) -> None:
        self.lost = lost
        self.asked: list[int] = []

    def act(self, view: PartnerView) -> Reply:
        raise AssertionError("asked one by one")

    def act_many(self, views: Sequence[PartnerView]) -> list[Reply | PartnerFailed]:
        self.asked.append(len(views))
        return [
            PartnerFailed("the line is dead") if view.setting.pk in self.lost else Action("speak", "Hm.")
            for view in views
        ]


def test_rows_play_what_single_environments_with_their_seeds_play() -> None:
    vector = make(4, max_turns=8)
    singles = [istar_envs.make("istar/Sotopia-v0", split="test", max_turns=8) for _ in range(4)]
    observations, infos = vector.reset(seed=5)
    started = [single.reset(seed=5 + number) for number, single in enumerate(singles)]
    assert [(observations[i], canonical(row(infos, i))) for i in range(4)] == [
        (text, canonical(info)) for text, info in started
    ]
    has_ended = [False] * 4
    for step in range(25):
        actions = ["leave" if (step + number) % 6 == 5 else TALK for number in range(4)]
        *columns, infos = vector.step(actions)
        for number, single in enumerate(singles):
            got = (*(column[number] for column in columns), row(infos, number))
            if has_ended[number]:
                text, info = single.reset()
                want: tuple[Any, ...] = (text, 0.0, False, False, info)
            else:
                want = single.step(actions[number])
            assert canonical(got) == canonical(want)
            has_ended[number] = bool(want[2] or want[3])
    assert set(infos) == {name for key in info for name in (key, f"_{key}")}


def test_all_partners_are_asked_at_once() -> None:
    partner = Together()
    vector = make(6, partner=partner)
    ids = vector.task_ids()
    vector.reset(options={"task_ids": ids[:6]})
    assert partner.asked == [3]  # in every second row the partner opens
    vector.step([TALK] * 6)
    assert partner.asked == [3, 6]


class Opener:
    """A partner whose action in one task comes only after it has acted often enough in the others."""

    name = "opener"

    def __init__(self, late: str = "", after: int = 0) -> None:
        self.late, self.after = late, after
        self.asked: Counter[str] = Counter()
        self._enough = asyncio.Event()

    def act(self, view: PartnerView) -> Reply:
        raise AssertionError("asked one by one")

    async def aact(self, view: PartnerView) -> Reply:
        self.asked[view.setting.pk] += 1
        if view.setting.pk == self.late:
            await asyncio.wait_for(self._enough.wait(), 120.0)
        elif self.asked.total() - self.asked[self.late] >= self.after:
            self._enough.set()
        return Action("speak", "Hm.")


def test_a_row_in_which_the_partner_acts_twice_does_not_wait_for_slower_rows() -> None:
    options: dict[str, Any] = {"seat": 0, "order": "random"}
    counting = Opener()
    vector = make(20, partner=counting, **options)
    ids = vector.task_ids()[:20]
    vector.reset(options={"task_ids": ids})
    openings = {pk: counting.asked[pk.removesuffix("/seat0")] for pk in ids}
    once, often = (next(pk for pk in ids if openings[pk] in wanted) for wanted in ((1,), (2, 3, 4)))
    partner = Opener(once.removesuffix("/seat0"), after=openings[often])
    make(2, partner=partner, **options).reset(options={"task_ids": [once, often]})
    assert sorted(partner.asked.values()) == [1, openings[often]]


def test_a_partner_that_fails_ends_its_row_and_no_other() -> None:
    ids = make(1).task_ids()
    lost = ids[0].removesuffix("/seat0")
    vector = make(4, partner=Together(lost))
    vector.reset(seed=0, options={"task_ids": [ids[0], ids[1], ids[2], ids[3]]})
    _, rewards, terminated, truncated, infos = vector.step([TALK] * 4)
    assert [math.isnan(reward) for reward in rewards] == [True, True, False, False]
    assert truncated.tolist() == [True, True, False, False]
    assert not terminated.any()
    assert infos["end_reason"].tolist() == ["agent_failure", "agent_failure", "", ""]
    assert infos["failure"].tolist() == ["the line is dead", "the line is dead", "", ""]
    assert infos["goal"].tolist() == [None] * 4
    _, rewards, _, truncated, infos = vector.step([TALK] * 4)
    assert rewards.tolist() == [0.0] * 4
    assert not truncated.any()
    assert infos["failure"].tolist() == [""] * 4


class ManyScorer:
    """Scores many episodes at once; or fails."""

    def __init__(self, error: IstarError | None = None) -> None:
        self.error = error
        self.asked: list[int] = []

    def __call__(self, episode: Episode) -> Outcome:
        raise AssertionError("asked one by one")

    def outcomes(self, episodes: Sequence[Episode]) -> list[Outcome]:
        self.asked.append(len(episodes))
        if self.error:
            raise self.error
        return [
            Outcome("timeout", "judge-1") if number == 1 else Outcome("ok", "judge-1", number / 10, False)
            for number, _ in enumerate(episodes)
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


def test_a_scorer_is_asked_about_all_ended_rows_at_once(world: Path) -> None:
    scorer = ManyScorer()
    vector = make(5, scenarios=world, partner=Together(), scorer=scorer)
    vector.reset(seed=0)
    vector.step([TALK] * 5)
    _, rewards, _, _, infos = vector.step(["leave", TALK, "leave", "leave", TALK])
    assert scorer.asked == [3]
    assert [str(reward) for reward in rewards] == ["0.0", "0.0", "nan", "0.2", "0.0"]
    assert infos["scored"].tolist() == [True, False, False, True, False]
    assert infos["end_reason"].tolist() == ["left", "", "judge_failure", "left", ""]


def test_a_scorer_that_breaks_gives_no_row_a_number(world: Path) -> None:
    vector = make(2, scenarios=world, partner=Together(), scorer=ManyScorer(IstarError("no key")))
    vector.reset(seed=0)
    _, rewards, _, _, infos = vector.step(["leave", "leave"])
    assert np.isnan(rewards).all()
    assert infos["failure"].tolist() == ["the scorer failed: no key"] * 2


def test_render_shows_every_dialogue() -> None:
    vector = make(2, render_mode="ansi")
    observations, _ = vector.reset(seed=0)
    assert vector.render() == observations
    assert make(2).render() is None


def test_misuse_is_refused_with_a_reason() -> None:
    with pytest.raises(EnvError, match="num_envs must be at least 1"):
        SotopiaVectorEnv(0)
    vector = make(2)
    with pytest.raises(ResetNeeded):
        vector.step([TALK] * 2)
    with pytest.raises(EnvError, match='Did you mean "task_ids"'):
        vector.reset(options={"task_id": "x"})
    with pytest.raises(EnvError, match="1 task_ids for 2 rows"):
        vector.reset(options={"task_ids": ["x"]})
    with pytest.raises(EnvError, match="3 seeds for 2 rows"):
        vector.reset(seed=[1, 2, 3])
    vector.reset(seed=0)
    with pytest.raises(EnvError, match="1 actions for 2 rows"):
        vector.step([TALK])
    with pytest.raises(EnvError, match="is no text"):
        vector.step([TALK, 3])


# Speed


@pytest.fixture
def slow_endpoint() -> Iterator[str]:
    """The address of an endpoint in a process of its own that takes 200 ms for an answer."""
    script = Path(__file__).parents[1] / "bad_endpoint.py"
    process = subprocess.Popen([sys.executable, str(script), "0.2"], stdout=subprocess.PIPE, text=True)
    with process:
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def _only_own_garbage() -> Iterator[None]:
    """Keep the collector from walking through what other tests left behind."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def slow_partner(slow_endpoint: str) -> Iterator[LlmPartner]:
    partner = LlmPartner(ChatClient(slow_endpoint, "m", concurrency=256), protocol="speech")
    yield partner
    partner.close()


ONE_BY_ONE_S = 256 * 10 * 0.2
"""Ten answers of the partner in each of the episodes, one after the other; at the same time they take 2 s,
and how near one comes to that is for the benchmark."""


@pytest.mark.slow
@pytest.mark.usefixtures("_only_own_garbage")
def test_256_episodes_wait_for_a_slow_partner_at_the_same_time(
    slow_partner: LlmPartner,
) -> None:
    envs = [SotopiaEnv(partner=slow_partner, seat=0) for _ in range(256)]

    def play(number: int) -> int:
        envs[number].reset(seed=number)
        for _ in range(10):
            *_, info = envs[number].step(TALK)
        return int(info["turn"])

    def seconds(pool: ThreadPoolExecutor) -> float:
        started = time.perf_counter()
        assert set(pool.map(play, range(256))) == {20}
        return time.perf_counter() - started

    with ThreadPoolExecutor(256) as pool:
        assert seconds(pool) <= ONE_BY_ONE_S / 10


@pytest.mark.slow
@pytest.mark.usefixtures("_only_own_garbage")
def test_256_rows_wait_for_a_slow_partner_at_the_same_time(slow_partner: LlmPartner) -> None:
    vector = make(256, partner=slow_partner, seat=0)

    def seconds() -> float:
        vector.reset(seed=0)
        started = time.perf_counter()
        for _ in range(10):
            *_, truncated, _ = vector.step([TALK] * 256)
        assert truncated.all()
        return time.perf_counter() - started

    assert seconds() <= ONE_BY_ONE_S / 10
