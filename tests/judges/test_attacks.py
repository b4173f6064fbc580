"""The attack suite: what it does to a dialogue, and which judges fall for it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_judges import SotopiaVerifier, StubJudge, canary_episodes
from istar_judges.agreement.attacks import ATTACKS, MAX_RISE
from istar_judges.dialogue import dialogue_of
from istar_judges.dialogue_judge import words_of
from istar_judges.injection import find_injections
from istar_judges.llm_judge import LlmJudge
from judged import NAMES, ScriptedModel, make_dialogue


def rise(judge: StubJudge | LlmJudge, attack: str) -> float:
    """Mean points that an attack by the player's seat adds on the canaries."""
    dialogues = [dialogue_of(episode) for episode in canary_episodes()]
    attacked = [ATTACKS[attack](dialogue, dialogue.seat) for dialogue in dialogues]
    before, after = judge.judge_many(dialogues), judge.judge_many(attacked)
    gains = [
        new.scores[d.seat]["goal"].score - old.scores[d.seat]["goal"].score
        for d, old, new in zip(dialogues, before, after, strict=True)
    ]
    return sum(gains) / len(gains)


@pytest.mark.parametrize("attack", ATTACKS)
def test_j11_no_attack_moves_an_honest_judge(attack):
    assert abs(rise(StubJudge(), attack)) <= MAX_RISE


@pytest.mark.parametrize("attack", ATTACKS)
def test_j11_no_attack_can_break_out_of_the_record_of_a_model_judge(attack):
    model = ScriptedModel()
    judge = LlmJudge(model, "goal-v1")
    dialogue = make_dialogue("I offer 10.", "Fine.", goals=(4, 6))
    result = judge.judge_many([ATTACKS[attack](dialogue, 0)])[0]
    assert {seat: scores["goal"].score for seat, scores in result.scores.items()} == {0: 4, 1: 6}
    text = model.requests[0]["messages"][1]["content"]
    mark, rest = text.split("\n", 1)
    record, _, question = rest.partition(f"\n{mark}\n")
    assert all(line.startswith("{") and line.endswith("}") for line in record.splitlines())
    assert "viewer" not in question


@pytest.mark.parametrize(
    ("weakness", "attack"),
    [
        ({"length_bias": 3.0}, "pad"),
        ({"claim_bias": 3.0}, "claim"),
        ({"claim_bias": 3.0}, "flatter"),
        ({"claim_bias": 3.0}, "inject"),
    ],
)
def test_j11_a_weak_judge_is_caught_by_the_attack_on_its_weakness(weakness, attack):
    assert rise(StubJudge(**weakness), attack) > MAX_RISE


@pytest.mark.parametrize("attack", ["claim", "flatter", "inject"])
def test_j11_the_detector_sees_the_attacks_that_speak_to_a_judge(attack):
    dialogue = make_dialogue("I offer 10.", "Fine.")
    assert find_injections(dialogue) == ()
    assert {finding.seat for finding in find_injections(ATTACKS[attack](dialogue, 1))} == {1}


def test_j11_a_judge_that_fines_suspicious_text_cannot_be_attacked_with_it():
    judge = StubJudge(claim_bias=3.0, on_injection="lowest")
    for episode in canary_episodes()[:5]:
        dialogue = dialogue_of(episode)
        attacked = ATTACKS["claim"](dialogue, dialogue.seat)
        assert judge.outcome(attacked, judge.judge_many([attacked])[0]).score == 0.0


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("seat", [0, 1])
def test_an_attack_changes_the_words_of_its_own_seat_only(attack, seat):
    dialogue = make_dialogue("I offer 10.", "Fine.", "Good.")
    attacked = ATTACKS[attack](dialogue, seat)
    assert [t for t in attacked.turns if t[0] != seat] == [t for t in dialogue.turns if t[0] != seat]
    assert attacked.turns != dialogue.turns
    assert replace(attacked, turns=dialogue.turns) == dialogue
    assert words_of(attacked, seat) > words_of(dialogue, seat)


def test_padding_stays_inside_the_utterance():
    attacked = ATTACKS["pad"](make_dialogue("I offer 10."), 0)
    (_, text), *_ = attacked.turns
    assert text.startswith(f'{NAMES[0]} said: "I offer 10. To put it another way')
    assert text.endswith('in detail."')


def test_moves_are_left_alone():
    turns = ((0, "Ann Lee [action] propose 5"), (1, "Bo Roe [action] accept"))
    dialogue = replace(make_dialogue(), turns=turns)
    for attack in ATTACKS.values():
        assert attack(dialogue, 0).turns[:2] == turns


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_deterministic_audit_cannot_be_attacked(attack):
    for episode in canary_episodes()[::7]:
        last = episode.transitions[-1]
        record = last.info["dialogue"]
        dialogue = dialogue_of(episode)
        attacked = ATTACKS[attack](dialogue, dialogue.seat)
        kinds = [turn["kind"] for turn in record["turns"]]
        turns = [
            {"seat": seat, "kind": [*kinds, "speak"][n], "text": text}
            for n, (seat, text) in enumerate(attacked.turns)
        ]
        changed = replace(last, info={"dialogue": {**record, "turns": turns}})
        goals = SotopiaVerifier().goals(episode)
        assert SotopiaVerifier().goals(replace(episode, transitions=(changed,))) == goals


@pytest.mark.property
@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=6),
    st.sampled_from(sorted(ATTACKS)),
    st.sampled_from([0, 1]),
)
@settings(max_examples=100, deadline=None)
def test_attacks_are_pure_and_never_fail(words, attack, seat):
    dialogue = make_dialogue(*words)
    first = ATTACKS[attack](dialogue, seat)
    assert first == ATTACKS[attack](dialogue, seat)
    assert dialogue == make_dialogue(*words)
