"""Which groups an iteration learns from, with made-up groups and verdicts."""

from builders import make_trajectory
from istar_envs.episode import Outcome
from istar_trainer.collect import collect_telling, is_telling, outcomes_of
from istar_trainer.config_algorithms import DynamicSampling
from istar_trainer.records import Group, Step

STEP = Step([3], [4, 2], [-1.0, -1.0])
MIXED, WON, LOST = (True, False), (True, True), (False, False)


def make_group(key: str, wins: tuple[bool, ...]) -> Group:
    return Group(
        key,
        0,
        tuple(make_trajectory(f"{key}/{n}", key, [STEP], success=win) for n, win in enumerate(wins)),
    )


def verify(groups) -> dict[str, Outcome]:
    return {
        t.id: Outcome("ok", "test", float(t.episode.success), t.episode.success)
        for group in groups
        for t in group.trajectories
    }


class Script:
    """Plays the groups it is told to, batch by batch, and counts."""

    def __init__(self, *batches: list[tuple[bool, ...]]) -> None:
        self.batches = batches
        self.played: list[int] = []

    def __call__(self, number: int) -> list[Group]:
        self.played.append(number)
        return [make_group(f"{number}.{n}", wins) for n, wins in enumerate(self.batches[number])]


def collect(script: Script, *, num_groups: int = 2, **rule):
    return collect_telling(
        script, verify, DynamicSampling(**rule), num_groups=num_groups, invalid_penalty=0.0
    )


def test_a_batch_of_telling_groups_is_taken_as_it_is():
    script = Script([MIXED, MIXED])
    played = collect(script)
    assert [group.id for group in played.groups] == ["0.0", "0.1"]
    assert script.played == [0]
    assert played.metrics == {"rollout/filtered_group_frac": 0.0, "rollout/generation_batches": 1.0}


def test_groups_of_equal_outcomes_are_replaced_until_there_are_enough():
    script = Script([WON, MIXED], [LOST, LOST], [MIXED, MIXED])
    played = collect(script)
    assert [group.id for group in played.groups] == ["0.1", "2.0"]
    assert script.played == [0, 1, 2]
    assert played.metrics == {"rollout/filtered_group_frac": 0.5, "rollout/generation_batches": 3.0}
    assert played.outcomes.values.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert played.outcomes.groups.tolist() == [0, 0, 1, 1]
    assert [e.success for e in played.outcomes.episodes] == [True, False, True, False]


def test_after_the_last_batch_the_other_groups_fill_up():
    script = Script([WON, LOST], [MIXED, WON])
    played = collect(script, max_batches=2)
    assert [group.id for group in played.groups] == ["1.0", "0.0"]
    assert script.played == [0, 1]


def test_a_range_of_success_rates_excludes_its_ends():
    rule = DynamicSampling(low=0.25, high=0.75)
    for wins, is_kept in [(1, False), (2, True), (3, False)]:
        verdicts = [Outcome("ok", "test", 1.0, n < wins) for n in range(4)]
        assert is_telling(verdicts, rule) == is_kept


def test_without_a_range_scores_must_differ_and_missing_verdicts_do_not_count():
    missing = Outcome("refused", "test")
    one, other = Outcome("ok", "test", 0.3, False), Outcome("ok", "test", 0.4, False)
    rule = DynamicSampling()
    assert is_telling([one, other], rule)
    assert not is_telling([one, one, missing], rule)
    assert not is_telling([missing], rule)
    assert not is_telling([missing], DynamicSampling(low=0.0, high=1.0))


def test_an_invalid_step_costs_its_penalty_and_a_missing_verdict_gives_no_outcome():
    group = make_group("g", MIXED)
    verdicts = verify([group])
    verdicts["g/1"] = Outcome("refused", "test")
    outcomes = outcomes_of([group], verdicts, invalid_penalty=0.5)
    assert outcomes.values.tolist() == [1.0, 0.0]
    assert outcomes.has_outcome.tolist() == [True, False]
    assert outcomes.successes.tolist() == [True, False]
