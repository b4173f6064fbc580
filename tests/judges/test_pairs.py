import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from istar_envs.episode import Outcome
from istar_judges import PairRule, PreferencePair, content_key, make_pairs, soft_target, weigh_pairs

NO_VERDICT = Outcome("timeout", "test/1")
WEIGHTS_SUM = 1e-12
"""At most a few hundred additions of doubles in [0, 1]."""

scores_by_id = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(-3, 3), max_size=7)
rules = st.sampled_from(
    [
        PairRule(label=label, pair_set=pair_set, **options)
        for label, options in (("threshold", {}), ("rank", {}), ("margin", {"margin": 1.5}))
        for pair_set in ("all", "one_to_one", "best_worst")
    ]
)


def scored(**scores: float) -> dict[str, Outcome]:
    return {key: Outcome("ok", "test/1", score=score, success=score > 0) for key, score in scores.items()}


def sides(outcomes, content_keys=None, **rule) -> list[tuple[str, str]]:
    pairs = make_pairs(outcomes, group_id="g", rule=PairRule(**rule), content_keys=content_keys)
    return [(pair.preferred, pair.rejected) for pair in pairs]


def test_threshold_pairs_every_success_with_every_failure():
    golden = scored(t1=10.0, t2=0.0, t3=10.0, t4=0.0)  # the group of the golden vectors
    assert sides(golden) == [("t1", "t2"), ("t1", "t4"), ("t3", "t2"), ("t3", "t4")]


def test_a_score_at_the_threshold_is_no_success():
    assert sides(scored(a=6.0, b=7.0, c=5.0), threshold=6.0) == [("b", "c"), ("b", "a")]


def test_rank_pairs_every_higher_score_with_every_lower_one():
    assert sides(scored(a=1.0, b=3.0, c=2.0), label="rank") == [("b", "a"), ("b", "c"), ("c", "a")]


def test_tied_outcomes_give_no_pair_with_rank():
    assert sides(scored(a=2.0, b=2.0, c=2.0), label="rank") == []


def test_margin_needs_more_than_the_margin():
    assert sides(scored(a=0.0, b=1.0, c=2.5), label="margin", margin=1.0) == [("c", "a"), ("c", "b")]


def test_one_to_one_uses_each_trajectory_once_widest_gap_first():
    golden = scored(t1=10.0, t2=0.0, t3=10.0, t4=0.0, t5=0.0)
    assert sides(golden, pair_set="one_to_one") == [("t1", "t2"), ("t3", "t4")]
    assert sides(scored(a=4.0, b=3.0, c=1.0, d=0.0), label="rank", pair_set="one_to_one") == [
        ("a", "d"),
        ("b", "c"),
    ]


def test_best_worst_gives_the_widest_gap_only():
    assert sides(scored(a=4.0, b=3.0, c=1.0, d=0.0), label="rank", pair_set="best_worst") == [("a", "d")]


@pytest.mark.parametrize("pair_set", ["all", "one_to_one", "best_worst"])
def test_a_group_without_both_classes_gives_no_pair(pair_set):
    assert sides(scored(a=1.0, b=1.0), pair_set=pair_set) == []
    assert sides({}, pair_set=pair_set) == []


def test_a_trajectory_without_a_verdict_is_in_no_pair():
    assert sides({**scored(a=1.0, b=0.0), "c": NO_VERDICT}, label="rank") == [("a", "b")]


def test_identical_trajectories_are_not_paired():
    keys = {"a": "x", "b": "x", "c": "y"}
    assert sides(scored(a=1.0, b=0.0, c=0.0), keys) == [("a", "c")]


def test_the_weights_of_a_group_are_its_share_per_pair():
    pairs = make_pairs(scored(a=1.0, b=0.0, c=0.0, d=0.0, e=0.0), group_id="g", rule=PairRule())
    assert [pair.weight for pair in pairs] == [0.25] * 4
    assert {(pair.group_id, pair.target) for pair in pairs} == {("g", 1.0)}


def test_soft_labels_follow_the_score_gap():
    rule = PairRule(label="rank", sharpness=0.5)
    (pair,) = make_pairs(scored(a=3.0, b=1.0), group_id="g", rule=rule)
    assert pair.target == pytest.approx(0.731058579, abs=1e-9)  # σ(0.5 · 2)
    assert soft_target(0.0, 0.5) == 0.5
    assert soft_target(1e6, 1e6) == 1.0


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"trajectory 'b' has score nan; scores must be finite"):
        make_pairs(scored(a=1.0, b=math.nan), group_id="g", rule=PairRule())


def test_a_missing_content_key_is_refused():
    with pytest.raises(ValueError, match=r"no content key for trajectories \['b'\]"):
        make_pairs(scored(a=1.0, b=0.0), group_id="g", rule=PairRule(), content_keys={"a": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "margin"}, "label 'margin' needs margin > 0"),
        ({"label": "rank", "margin": 1.0}, "margin 1.0 has no effect with label 'rank'"),
        ({"label": "rank", "threshold": 6.0}, "threshold 6.0 has no effect with label 'rank'"),
        ({"label": "best"}, "Input should be 'threshold', 'success', 'rank' or 'margin'"),
        ({"margin": -1.0}, "greater than or equal to 0"),
        ({"sharpness": 0.0}, "greater than 0"),
        ({"threshold": math.inf}, "finite number"),
        ({"kappa": 1.0}, "Extra inputs are not permitted"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        PairRule(**options)


@pytest.mark.parametrize(
    "changes", [{"rejected": "a"}, {"weight": -0.1}, {"weight": math.nan}, {"target": 1.5}]
)
def test_a_pair_that_no_loss_can_use_is_refused(changes):
    with pytest.raises(ValueError, match=r"pair 'a' over .* of group 'g'"):
        PreferencePair(**{"group_id": "g", "preferred": "a", "rejected": "b", "weight": 0.5, **changes})


def test_group_weights_give_every_group_with_pairs_the_same_share():
    big = make_pairs(scored(a=1.0, b=0.0, c=0.0, d=0.0), group_id="big", rule=PairRule())
    small = make_pairs(scored(a=1.0, b=0.0), group_id="small", rule=PairRule())
    weighed = weigh_pairs([small, (), big], "group")
    assert [pair.group_id for pair in weighed] == ["big", "big", "big", "small"]
    assert [pair.weight for pair in weighed] == pytest.approx([1 / 6] * 3 + [1 / 2], abs=1e-15)


def test_pair_weights_give_every_pair_the_same_share():
    big = make_pairs(scored(a=1.0, b=0.0, c=0.0, d=0.0), group_id="big", rule=PairRule())
    small = make_pairs(scored(a=1.0, b=0.0), group_id="small", rule=PairRule())
    assert [pair.weight for pair in weigh_pairs([small, big], "pair")] == [0.25] * 4


@pytest.mark.parametrize("mode", ["group", "pair"])
def test_a_batch_without_pairs_has_no_weights(mode):
    assert weigh_pairs([(), ()], mode) == ()


def test_content_keys_compare_what_was_seen_and_said(play):
    assert content_key(play(["up", "right"])) == content_key(play(["up", "right"], task_id="elsewhere"))
    assert content_key(play(["up", "right"])) != content_key(play(["down", "up", "right"]))
    assert content_key(play(["right"])) != content_key(play(["right"], note="so "))
    assert content_key(play(["right"])) != content_key(play(["right"], pictures=True))


@pytest.mark.property
@settings(max_examples=80, deadline=None)
@given(scores=scores_by_id, rule=rules, data=st.data())
def test_pairs_do_not_depend_on_the_order_of_the_outcomes(scores, rule, data):
    shuffled = dict(data.draw(st.permutations(list(scores.items()))))
    straight = make_pairs(scored(**scores), group_id="g", rule=rule)
    assert make_pairs(scored(**shuffled), group_id="g", rule=rule) == straight


@pytest.mark.property
@settings(max_examples=80, deadline=None)
@given(scores=scores_by_id, rule=rules)
def test_every_pair_prefers_the_higher_score_and_appears_once(scores, rule):
    pairs = make_pairs(scored(**scores), group_id="g", rule=rule)
    assert all(scores[pair.preferred] > scores[pair.rejected] for pair in pairs)
    assert len({(pair.preferred, pair.rejected) for pair in pairs}) == len(pairs)
    if rule.pair_set == "one_to_one":
        used = [side for pair in pairs for side in (pair.preferred, pair.rejected)]
        assert len(used) == len(set(used))


@pytest.mark.property
@settings(max_examples=80, deadline=None)
@given(scores=scores_by_id, rule=rules)
def test_smaller_pair_sets_are_parts_of_all_pairs(scores, rule):
    every = {
        (pair.preferred, pair.rejected)
        for pair in make_pairs(
            scored(**scores), group_id="g", rule=rule.model_copy(update={"pair_set": "all"})
        )
    }
    some = {(pair.preferred, pair.rejected) for pair in make_pairs(scored(**scores), group_id="g", rule=rule)}
    assert some <= every
    assert bool(some) == bool(every)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(groups=st.lists(scores_by_id, max_size=5), rule=rules, mode=st.sampled_from(["group", "pair"]))
def test_the_weights_of_a_batch_sum_to_one_in_any_order_of_groups(groups, rule, mode):
    made = [make_pairs(scored(**g), group_id=str(i), rule=rule) for i, g in enumerate(groups)]
    weighed = weigh_pairs(made, mode)
    assert weigh_pairs(made[::-1], mode) == weighed
    if weighed:
        assert math.isclose(sum(pair.weight for pair in weighed), 1.0, abs_tol=WEIGHTS_SUM)
    shares: dict[str, float] = {}
    for pair in weighed:
        shares[pair.group_id] = shares.get(pair.group_id, 0.0) + pair.weight
    if mode == "group":
        assert all(math.isclose(share, 1 / len(shares), abs_tol=WEIGHTS_SUM) for share in shares.values())
