"""True advantages: dynamic programming against the solver, brute force and arithmetic by hand."""

import hashlib
import re
from functools import partial

import numpy as np
import pytest
import torch

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.errors import ConfigError
from istar_envs.seeding import CounterRng
from istar_envs.sokoban.board import ACTION_NAMES, State
from istar_envs.sokoban.outlook import Outlook
from istar_trainer.attempts import Task
from istar_trainer.context import encode
from istar_trainer.credit_truth import boards as boards_module
from istar_trainer.credit_truth import replies as replies_module
from istar_trainer.credit_truth.boards import INVALID, Payment, explore
from istar_trainer.credit_truth.exact import ExactValues, NotExactError
from istar_trainer.credit_truth.optimal import optimal_advantages
from istar_trainer.credit_truth.sampled import PER_ROUND, Budget, OpeningSampler, SampledValues
from istar_trainer.credit_truth.tabular import Problem, choice_values, error_bounds, policy_values
from istar_trainer.credit_truth.truth import StepKeys
from istar_trainer.errors import RolloutError
from istar_trainer.records import Step
from istar_trainer.rollout import Player
from istar_trainer.sampler import Completion, Request

WORDS = [f"<action>{name}</action>" for name in ACTION_NAMES]
PENALTY = 0.1
sokoban = partial(
    istar_envs.make, "istar/Sokoban-v0", split="train", levels="istar-6x6-1", min_moves=2, max_steps=6
)


class CoinPolicy:
    """Gives each prompt its own fixed distribution over some replies: sampler and learner in one."""

    snapshot_id = 0

    def __init__(self, tokenizer, replies, sharpness=1.0):
        self.replies = [(*encode(tokenizer, text), tokenizer.eos_token_id) for text in replies]
        self.sharpness = sharpness
        self.known = {}

    def shares(self, prompt):
        key = tuple(prompt)
        if key not in self.known:
            digest = hashlib.sha256(repr(key).encode()).digest()
            weights = np.exp(self.sharpness * np.frombuffer(digest, np.uint8)[: len(self.replies)] / 64)
            self.known[key] = weights / weights.sum()
        return self.known[key]

    def generate(self, requests, *, temperature):
        return [self.draw(request) for request in requests]

    def draw(self, request):
        place = np.searchsorted(
            self.shares(request.prompt_ids).cumsum(), CounterRng(request.seed).random() * (1 - 1e-12)
        )
        reply = self.replies[place]
        return Completion(reply, (0.0,) * len(reply))

    def logprobs(self, batch):
        result = torch.zeros(batch.input_ids.shape, dtype=torch.float64)
        for row in range(len(batch)):
            response = batch.response_mask[row]
            prompt = batch.input_ids[row][batch.attention_mask[row] & ~response].tolist()
            reply = tuple(batch.input_ids[row][response].tolist())
            known = dict(zip(self.replies, self.shares(prompt), strict=True))
            result[row, response.nonzero()[0]] = float(np.log(known.get(reply, 1e-300)))
        return result


def judge(groups):
    return np.array(
        [
            t.episode.success - PENALTY * sum(not step.valid for step in t.episode.transitions)
            for group in groups
            for t in group.trajectories
        ]
    )


def player_of(tokenizer, make_env=sokoban, **options):
    options = {"template": "bare-v1", "window": 0, "max_prompt_tokens": 4096, **options}
    return Player(make_env, tokenizer, **options)


def play(player, policy, *, tasks=3, group_size=4, seed=1):
    listed = [Task(f"task/{number}", 40 + number) for number in range(tasks)]
    return player.play(listed, policy, group_size=group_size, seed=seed, temperature=1.0)


def exact_values(tokenizer, policy, *, make_env=sokoban, template="bare-v1", window=0):
    conversation = Conversation(make_env(), template=template, window=window)
    return ExactValues(conversation, policy, tokenizer, Payment(True, PENALTY), max_new_tokens=16)


def sampled_values(player, policy, judge=judge, note=lambda text: None):
    return SampledValues(player, policy, judge, temperature=1.0, seed=9, note=note)


def boards_of(seed=40, horizon=6):
    env = sokoban()
    conversation = Conversation(env, template="bare-v1", window=0)
    conversation.reset(seed=seed)
    return explore(conversation, env.unwrapped.level, Payment(True, PENALTY), horizon=horizon), conversation


def test_values_of_a_corridor_by_hand():
    # right leads from state 0 to state 1 and from there to the end with reward 1; left stays and costs 0.5
    problem = Problem(np.array([[1, 0], [-1, 0]]), np.array([[0.0, -0.5], [1.0, -0.5]]))
    policy = np.array([[0.5, 0.5], [0.25, 0.75]])
    values = policy_values(problem, policy, 2)
    assert values.tolist() == [[0, 0], [-0.25, -0.125], [-0.4375, -0.3125]]
    assert choice_values(problem, values[1]).tolist() == [[-0.125, -0.75], [1.0, -0.75]]


def test_the_error_bound_of_one_unknown_choice_by_hand():
    problem = Problem(np.array([[-1, -1]]), np.array([[0.0, 2.0]]))
    policy = np.array([[0.5, 0.5]])
    bounds = error_bounds(problem, policy, policy_values(problem, policy, 2), np.array([0.1]))
    assert bounds.ravel().tolist() == pytest.approx([0.0, 0.2, 0.2]), "0.1 × the gap of 2; nothing follows"


def test_advantages_average_to_zero_under_the_policy_in_every_state():
    boards, _ = boards_of()
    policy = np.random.default_rng(0).dirichlet(np.ones(INVALID + 1), size=len(boards.messages))
    values = policy_values(boards.problem, policy, 6)
    for left in range(1, 7):
        advantages = choice_values(boards.problem, values[left - 1]) - values[left][:, None]
        assert np.abs((policy * advantages).sum(axis=1)).max() < 1e-12


def test_best_play_succeeds_exactly_where_the_solver_says_so():
    boards, conversation = boards_of()
    level = conversation.env.unwrapped.level
    left_of = np.array([Outlook(level).of(state_of(key))[0] for key in boards.keys])
    depths = depths_of(boards.problem)
    best = np.zeros(len(boards.messages))
    for left in range(1, 7):
        best = choice_values(boards.problem, best).max(axis=1)
        is_right_for = depths + left <= 6
        assert (best[is_right_for] == ((left_of >= 0) & (left_of <= left))[is_right_for]).all()
    assert (left_of < 0).any(), "some positions are lost"
    assert best[0] == 1.0


def state_of(state_key):
    cells = state_key.partition(":")[2]
    boxes = sum(1 << place for place, cell in enumerate(cells) if cell in "$*")
    return State(boxes, max(cells.find("@"), cells.find("+")))


def depths_of(problem):
    depths = np.full(len(problem.successors), 99)
    depths[0] = 0
    for number, row in enumerate(problem.successors):
        for after in row[row >= 0]:
            depths[after] = min(depths[after], depths[number] + 1)
    return depths


def test_only_positions_with_steps_left_are_explored():
    sizes = [len(boards_of(horizon=horizon)[0].messages) for horizon in (1, 2, 6)]
    assert sizes[0] == 1
    assert sizes[0] < sizes[1] < sizes[2]


def test_too_many_positions_are_not_tabulated(monkeypatch, tiny_tokenizer):
    monkeypatch.setattr(boards_module, "MAX_BOARDS", 3)
    assert boards_of()[0] is None
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    groups = play(player_of(tiny_tokenizer), policy, tasks=1)
    with pytest.raises(NotExactError, match="too many positions"):
        exact_values(tiny_tokenizer, policy).advantages(groups)


def test_advantages_of_an_episode_sum_to_its_outcome_minus_the_value_of_its_start(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing"], sharpness=0.5)
    groups = play(player_of(tiny_tokenizer), policy, tasks=4, group_size=6)
    truth = exact_values(tiny_tokenizer, policy).advantages(groups)
    sums = np.bincount(StepKeys.of(groups).trajectories, weights=truth.advantages)
    starts = (judge(groups) - sums).reshape(4, 6)
    assert np.ptp(starts, axis=1).max() < 1e-7
    assert np.ptp(starts) > 0.01, "tasks differ"
    assert truth.errors.max() < 1e-6, "every reply is known"


def test_exact_advantages_are_what_brute_force_finds(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing"], sharpness=0.8)
    make_env = partial(sokoban, max_steps=4)
    player = player_of(tiny_tokenizer, make_env)
    groups = play(player, policy, tasks=2, group_size=3)
    exact = exact_values(tiny_tokenizer, policy, make_env=make_env).advantages(groups)
    found = sampled_values(player, policy).advantages(groups, Budget(0.0, 12 * PER_ROUND))
    misses = (found.advantages - exact.advantages)[found.errors > 0] / found.errors[found.errors > 0]
    assert len(misses) > 20
    assert np.abs(misses).max() < 4.5
    assert np.sqrt(np.square(misses).mean()) < 1.5
    assert exact.advantages.std() > 3 * np.sqrt(np.square(found.errors).mean()), "there is something to find"


def test_a_reply_that_is_not_known_is_covered_by_the_error(tiny_tokenizer, monkeypatch):
    """Another spelling of a move, never recorded, counts as invalid; the bound says how much that matters."""
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing", "<action> up </action>"])
    groups = play(player_of(tiny_tokenizer), policy, tasks=2, group_size=4)
    values = exact_values(tiny_tokenizer, policy)
    full = values.advantages(groups)
    monkeypatch.setattr(replies_module, "_MOST_SCORED", 0)
    found = values.advantages(groups)
    off = np.abs(found.advantages - full.advantages)
    assert off.max() > 0
    assert (off <= 2 * found.errors + 1e-9).all()


def test_prompts_that_count_steps_cannot_be_tabulated(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    groups = play(player_of(tiny_tokenizer, template="act-v1"), policy, tasks=1)
    with pytest.raises(NotExactError, match="tells more than the board"):
        exact_values(tiny_tokenizer, policy, template="act-v1").advantages(groups)


def test_a_prompt_with_history_or_another_world_cannot_be_tabulated(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    with pytest.raises(NotExactError, match="window=2"):
        exact_values(tiny_tokenizer, policy, window=2)
    with pytest.raises(NotExactError, match="WebShop"):
        exact_values(tiny_tokenizer, policy, make_env=webshop)


def test_estimates_stop_when_they_are_good_enough(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS, sharpness=50.0)
    player = player_of(tiny_tokenizer)
    groups = play(player, policy, tasks=2, group_size=2)
    rounds = []
    truth = sampled_values(player, policy, note=rounds.append).advantages(
        groups, Budget(0.5, 100 * PER_ROUND)
    )
    assert len(rounds) == 1
    assert (truth.errors <= 0.5).all()
    assert f"{PER_ROUND} to {PER_ROUND} continuations" in truth.source


def test_the_budget_ends_what_never_gets_good_enough(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing"], sharpness=0.5)
    player = player_of(tiny_tokenizer)
    groups = play(player, policy, tasks=1, group_size=2)
    truth = sampled_values(player, policy).advantages(groups, Budget(0.0, 3 * PER_ROUND))
    assert f"to {3 * PER_ROUND} continuations" in truth.source


@pytest.mark.parametrize("window", [1, None])
def test_estimated_advantages_sum_to_the_outcome_with_any_memory(tiny_tokenizer, window):
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing"], sharpness=0.5)
    player = player_of(tiny_tokenizer, window=window)
    groups = play(player, policy, tasks=2, group_size=3)
    truth = sampled_values(player, policy).advantages(groups, Budget(-1.0, PER_ROUND))
    sums = np.bincount(StepKeys.of(groups).trajectories, weights=truth.advantages)
    assert np.ptp((judge(groups) - sums).reshape(2, 3), axis=1).max() < 1e-7


def test_a_continuation_without_a_verdict_stops_the_estimate(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    player = player_of(tiny_tokenizer)
    groups = play(player, policy, tasks=1)
    with pytest.raises(RolloutError, match="have no verdict"):
        sampled_values(player, policy, lambda groups: judge(groups) * np.nan).advantages(
            groups, Budget(0.1, PER_ROUND)
        )


def test_a_world_that_does_not_repeat_itself_is_noticed(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    groups = play(player_of(tiny_tokenizer), policy, tasks=1)
    elsewhere = player_of(tiny_tokenizer, partial(sokoban, levels="ragen-simple"))
    with pytest.raises(RolloutError, match="does not repeat itself"):
        sampled_values(elsewhere, policy).advantages(groups, Budget(0.0, PER_ROUND))


def test_an_opening_is_given_to_every_trajectory_before_anything_is_drawn(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, WORDS)
    first, second = Step([1], [7], [-1.0]), Step([1], [8], [-2.0])
    sampler = OpeningSampler(policy, [[first], [second]], group_size=2)
    requests = [Request([1], seed) for seed in range(4)]
    given = sampler.generate(requests, temperature=1.0)
    assert [c.response_ids for c in given] == [(7,), (7,), (8,), (8,)]
    assert sampler.generate(requests, temperature=1.0) == policy.generate(requests, temperature=1.0)
    with pytest.raises(RolloutError, match="ended before step 1"):
        OpeningSampler(policy, [[first]], group_size=3).generate(requests[:2], temperature=1.0)


def webshop():
    return istar_envs.make("istar/WebShop-v0", tagger="light", page_size=2, max_steps=4)


class Shopper:
    """Searches, opens any product, then chooses or buys by chance."""

    snapshot_id = 0

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def generate(self, requests, *, temperature):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        page = self.tokenizer.decode(request.prompt_ids)
        products = re.findall(r"\[SEP\] ([A-Z0-9]{6,10}) \[SEP\]", page)
        chance = CounterRng(request.seed).random()
        if "buy now" in page.lower():
            action = "click[buy now]" if chance < 0.6 else "click[< prev]"
        elif products:
            action = f"click[{products[int(chance * len(products))]}]"
        else:
            wanted = re.search(r"(\S+ \S+) (?:with|and|under)", page)
            action = f"search[{wanted[1] if wanted and chance < 0.8 else 'shoes'}]"
        ids = (*encode(self.tokenizer, f"<action>{action}</action>"), self.tokenizer.eos_token_id)
        return Completion(ids, (0.0,) * len(ids))


def score(groups):
    return np.array([t.episode.score for group in groups for t in group.trajectories])


def test_webshop_sessions_are_played_on_from_recorded_steps(tiny_tokenizer):
    shopper = Shopper(tiny_tokenizer)
    player = player_of(tiny_tokenizer, webshop)
    groups = play(player, shopper, tasks=2, group_size=3)
    truth = sampled_values(player, shopper, score).advantages(groups, Budget(-1.0, 2 * PER_ROUND))
    keys = StepKeys.of(groups)
    sums = np.bincount(keys.trajectories, weights=truth.advantages)
    starts = (score(groups) - sums).reshape(2, 3)
    assert np.ptp(starts, axis=1).max() < 1e-7
    assert (starts >= 0).all()
    assert score(groups).max() > 0, "something was bought"
    assert np.abs(truth.advantages).max() > 0.01


def test_optimal_play_gains_one_move_by_a_best_move_and_loses_three_at_a_dead_end(tiny_tokenizer):
    policy = CoinPolicy(tiny_tokenizer, [*WORDS, "nothing"], sharpness=0.2)
    groups = play(player_of(tiny_tokenizer), policy, tasks=6, group_size=4)
    truth = optimal_advantages(groups, sokoban())
    assert truth.advantages.max() == 1.0
    assert {-3.0, -1.0, 0.0} <= set(truth.advantages)
    valid = [s.valid for g in groups for t in g.trajectories for s in t.episode.transitions]
    assert (truth.advantages[~np.array(valid)] == 0).all()


def test_a_world_that_does_not_know_its_optimum_says_which_do(tiny_tokenizer):
    shopper = Shopper(tiny_tokenizer)
    groups = play(player_of(tiny_tokenizer, webshop), shopper, tasks=1, group_size=1)
    with pytest.raises(ConfigError, match="Sokoban"):
        optimal_advantages(groups, webshop())
