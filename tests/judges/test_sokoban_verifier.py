import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError, IstarError
from istar_envs.sokoban.board import ACTION_NAMES
from istar_judges import JudgeError, JudgeRefused, JudgeUnavailable, SokobanVerifier, VerdictUnreadable
from istar_judges.verifiers import make_verifier

judge = SokobanVerifier()
SOLVED = "######\n#-@*-#\n#----#\n######"


def with_step(episode: Episode, index: int, **changes) -> Episode:
    steps = list(episode.transitions)
    steps[index] = replace(steps[index], **changes)
    return replace(episode, transitions=tuple(steps))


def test_a_won_game_scores_one(play):
    outcome = judge(play(["down", "up", "right"]))
    assert (outcome.status, outcome.score, outcome.success, outcome.detail) == ("ok", 1.0, True, "")
    assert outcome.source == judge.name


def test_a_lost_game_scores_zero(play):
    outcome = judge(play(["down", "right"]))
    assert (outcome.status, outcome.score, outcome.success) == ("ok", 0.0, False)


def test_the_return_scale_gives_the_sum_of_rewards(play):
    outcome = SokobanVerifier("return")(play(["down", "up", "right"]))
    assert outcome.score == pytest.approx(10.7, abs=1e-12)  # three steps at −0.1, +1 and +10
    assert outcome.success is True


def test_score_ranges_hold_the_scores():
    assert judge.score_range == (0.0, 1.0)
    assert SokobanVerifier("return").score_range == (-math.inf, math.inf)


@pytest.mark.parametrize("claim", [True, False])
def test_the_board_decides_not_the_claim(play, claim):
    moves = ["down"] if claim else ["right"]
    outcome = judge(play(moves, success=claim))
    assert outcome.success is not claim
    assert outcome.detail == f"the record claims success={claim}"


def test_without_the_last_board_the_moves_decide(play):
    assert judge(replace(play(["down", "up", "right"]), final_observation="")).success is True
    assert judge(replace(play(["down"]), final_observation="")).success is False


def test_pictures_are_judged_by_the_state_keys(play):
    assert judge(play(["down", "up", "right"], pictures=True)).success is True
    assert judge(play(["down", "up"], pictures=True)).success is False


def test_an_unreadable_reply_changes_nothing(play):
    assert judge(play([None, "right"])).success is True


def test_several_moves_of_one_reply_are_replayed(play):
    episode = play(["down", "up||right"])
    assert judge(episode).success is True
    assert judge(replace(episode, final_observation="")).success is True


def test_a_board_that_the_rules_do_not_give_is_no_verdict(play):
    forged = with_step(play(["down", "up", "right"]), 1, observation=SOLVED)
    outcome = judge(forged)
    assert (outcome.status, outcome.score, outcome.success) == ("invalid", None, None)
    assert outcome.detail == "the board after step 1 is not what the rules give"


def test_a_last_board_that_the_rules_do_not_give_is_no_verdict(play):
    outcome = judge(replace(play(["down"]), final_observation=SOLVED))
    assert (outcome.status, outcome.detail) == ("invalid", "the last board is not what the rules give")


def test_a_failed_episode_is_no_verdict(play):
    outcome = judge(replace(play(["right"]), end="failed", error="connection lost"))
    assert (outcome.status, outcome.score) == ("invalid", None)
    assert outcome.detail == "the episode failed: connection lost"


def test_an_unknown_move_is_bridged_by_the_next_board(play):
    assert judge(with_step(play(["right"]), 0, action="jump")).success is True


def test_an_unknown_last_move_without_a_last_board_is_no_verdict(play):
    episode = replace(with_step(play(["right"]), 0, action="jump"), final_observation="")
    assert judge(episode).detail == "the last position cannot be told from the record"


def test_an_episode_without_steps_is_judged_by_its_only_board(play):
    assert judge(play([])).success is False


def test_unrecorded_rewards_give_no_return(play):
    broken = with_step(play(["right"]), 0, reward=math.nan)
    outcome = SokobanVerifier("return")(broken)
    assert (outcome.status, outcome.detail) == ("invalid", "the recorded rewards sum to nan")
    assert judge(broken).success is True


def test_a_spare_box_need_not_reach_a_target(play):
    board = "#####\n#@*-#\n#-$-#\n#####"
    assert judge(replace(play([]), final_observation=board)).success is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You won!",
        "####\n#@*#",
        "#####\n#@*--\n#####",
        "#####\n#@*#\n#####",
        "#####\n#@*@#\n#####",
        "#####\n#@--#\n#####",
        "#####\n#-*-#\n#####",
        "#####\n#@*-#\n#####\n",
    ],
)
def test_text_that_is_no_board_gives_no_verdict(play, text):
    assert judge(replace(play([]), final_observation=text)).status == "invalid"


def test_an_episode_of_another_world_is_refused_loudly(play):
    stray = replace(play(["right"]), env_id="istar/WebShop-v0", task_id="goal-7")
    with pytest.raises(JudgeError, match=r"istar/WebShop-v0 \(task goal-7\).*verifier of its own world"):
        judge(stray)


def test_unknown_names_are_answered_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r'unknown verifier \'sokobon\'. Did you mean "sokoban"\?'):
        make_verifier("sokobon")
    with pytest.raises(ConfigError, match=r"unknown scale 'returns' .*Did you mean \"return\"\?"):
        make_verifier("sokoban", "returns")


def test_the_judge_errors_are_istar_errors():
    for kind in (JudgeUnavailable, JudgeRefused, VerdictUnreadable):
        assert issubclass(kind, JudgeError)
    assert issubclass(JudgeError, IstarError)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.sampled_from([*ACTION_NAMES, None]), max_size=8), pictures=st.booleans())
def test_an_honest_record_is_judged_as_the_rules_say(play, moves, pictures):
    episode = play(moves, pictures=pictures)
    outcome = judge(episode)
    if moves or not pictures:
        assert (outcome.success, outcome.detail) == (episode.success, "")
    assert judge(Episode.from_json(episode.to_json())) == outcome


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.text("#-.$*@+ _\n:6x", max_size=40), min_size=3, max_size=3),
    action=st.sampled_from(["up", "right||left", "||", "", "jump", None]),
)
def test_no_recorded_text_makes_the_verifier_raise(play, texts, action):
    episode = with_step(play(["down"]), 0, observation=texts[0], state_key=texts[1], action=action)
    assert judge(replace(episode, final_observation=texts[2])).status in ("ok", "invalid")
