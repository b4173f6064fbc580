"""Dialogues of an evaluation: played as the environment plays them, many at once, failures kept apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

import istar_envs
from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.episode import Episode
from istar_envs.sotopia.book import FAMILIES, family_setting
from istar_envs.sotopia.dialogue import PASS, Action
from istar_envs.sotopia.grammar import ParseError
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, Reply
from istar_envs.sotopia.partners.expert import ScriptedExpert
from istar_envs.sotopia.partners.naive import NaivePartner
from istar_envs.sotopia.partners.scripted import ScriptedPartner
from istar_judges import SotopiaVerifier
from istar_trainer.social.dialogues import Chair, Dialogue, PartnerPlayer, Player, PromptOverflow, play

EXPERT, NAIVE, SCRIPTED = (PartnerPlayer(p) for p in (ScriptedExpert(), NaivePartner(), ScriptedPartner()))


@dataclass
class Says:
    """A player that answers by a function, and keeps how many chairs it was asked about at a time."""

    answer: Callable[[Chair], Reply | PartnerFailed]
    asked: list[int] = field(default_factory=list)

    def act_many(self, chairs: Sequence[Chair]) -> list[Reply | PartnerFailed]:
        self.asked.append(len(chairs))
        return [self.answer(chair) for chair in chairs]


def against_scripted(player: Player, task: str, seat: int) -> Dialogue:
    players = (player, SCRIPTED) if seat == 0 else (SCRIPTED, player)
    roles = ("policy", "partner") if seat == 0 else ("partner", "policy")
    return Dialogue.begin(family_setting(task), 0, players, roles)  # type: ignore[arg-type]


def played(dialogue: Dialogue) -> Dialogue:
    play([dialogue])
    return dialogue


def in_the_environment(task_id: str) -> Episode:
    """The same dialogue, played by the expert in the environment."""
    env = istar_envs.make("istar/Sotopia-v0", split="test")
    conversation = Conversation(env, template="act-v1", window=0)
    conversation.reset(options={"task_id": task_id})
    while not conversation.done:
        conversation.respond(format_reply((env.unwrapped.expert_action(),)))
    return told_at_the_end(conversation.episode())


def told_at_the_end(episode: Episode) -> Episode:
    """An episode whose transitions but the last tell nothing besides, as they know no result."""
    *others, last = episode.transitions
    return replace(episode, transitions=(*(replace(t, info={}) for t in others), last))


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_dialogue_goes_and_is_recorded_as_in_the_environment(family, seat):
    for number in range(3):
        dialogue = played(against_scripted(EXPERT, f"{family}/test/{number}", seat))
        episode = dialogue.chairs[seat].episode()
        assert episode == in_the_environment(f"{family}/test/{number}/seat{seat}")


def test_both_seats_of_a_dialogue_are_scored_by_what_was_agreed_on():
    dialogue = played(Dialogue.begin(family_setting("division/test/0"), 0, (EXPERT,) * 2, ("policy",) * 2))
    episodes = [chair.episode() for chair in dialogue.chairs]
    assert [e.task_id for e in episodes] == ["division/test/0/seat0", "division/test/0/seat1"]
    results = dialogue.encounter.result()
    assert results is not None
    assert [e.score * 10 for e in episodes] == pytest.approx([r.goal for r in results])
    verifier = SotopiaVerifier("return")
    assert [verifier(e).score for e in episodes] == pytest.approx([e.score for e in episodes])
    assert [e.transitions[-1].reward for e in episodes] == [e.score for e in episodes]


def test_a_player_is_asked_about_all_its_chairs_at_once():
    passer, speaker = Says(lambda _: PASS), Says(lambda _: Action("speak", "Hm."))
    setting = family_setting("bargaining/test/0")
    dialogues = [Dialogue.begin(setting, 0, (passer, speaker), ("policy", "partner")) for _ in range(6)]
    done: list[int] = []
    play(dialogues, done.append)
    assert set(passer.asked) == set(speaker.asked) == {6}
    assert done == [0] * 19 + [6]


def test_one_player_in_both_seats_is_asked_once_a_turn():
    both = Says(lambda _: PASS)
    dialogues = [
        Dialogue.begin(family_setting("friends/test/0"), 0, (both, both), ("policy", "policy"))
        for _ in range(4)
    ]
    play(dialogues)
    assert both.asked == [4, 4, 4]
    assert {d.encounter.state.end_reason for d in dialogues} == {"stale"}


def test_a_failure_ends_its_own_dialogue_and_tells_whose_it_was():
    def sometimes(chair: Chair) -> Reply | PartnerFailed:
        if chair.game.task_id.startswith("bargaining/test/1/"):
            return PartnerFailed("no answer within 60 s")
        return Action("leave")

    dialogues = [against_scripted(Says(sometimes), f"bargaining/test/{number}", 1) for number in range(3)]
    play(dialogues)
    assert [d.culprit for d in dialogues] == [None, "policy", None]
    ends = [d.chairs[1].episode() for d in dialogues]
    assert [e.end for e in ends] == ["terminated", "failed", "terminated"]
    assert ends[1].error == "no answer within 60 s"
    assert ends[1].score == 0.0
    assert SotopiaVerifier("return")(ends[1]).status == "invalid"


def test_a_partner_that_fails_is_told_from_the_policy():
    broken = Says(lambda _: PartnerFailed("gone"))
    setting = family_setting("bargaining/test/0")
    dialogue = played(Dialogue.begin(setting, 0, (broken, EXPERT), ("partner", "policy")))
    assert dialogue.culprit == "partner"
    episode = dialogue.chairs[1].episode()
    assert (episode.end, len(episode.transitions)) == ("failed", 1)
    assert SotopiaVerifier("return")(episode).score is None


def test_a_seat_that_never_acted_has_an_episode_that_can_be_judged():
    setting = family_setting("bargaining/test/0")
    leaver = Says(lambda _: Action("leave"))
    dialogue = played(Dialogue.begin(setting, 0, (leaver, EXPERT), ("partner", "policy")))
    episode = dialogue.chairs[1].episode()
    assert (episode.end, episode.error) == ("terminated", None)
    outcome = SotopiaVerifier("return")(episode)
    assert (outcome.status, outcome.score) == ("ok", 0.0)


def test_an_unreadable_reply_is_seen_as_doing_nothing_and_recorded():
    views: list[PartnerView] = []

    def look(chair: Chair) -> Reply:
        views.append(chair.encounter.view(chair.seat))
        return Action("leave")

    mumbler = Says(lambda _: ParseError("syntax", (0, 1), "there is no action"))
    setting = family_setting("bargaining/test/0")
    dialogue = played(Dialogue.begin(setting, 0, (mumbler, Says(look)), ("policy", "partner")))
    assert [event.action for event in views[0].events] == [PASS]
    (transition,) = dialogue.chairs[0].episode().transitions
    assert (transition.valid, transition.action) == (False, None)
    assert transition.invalid_reason == "there is no action"


def test_a_prompt_that_grew_too_long_truncates_and_breaks_nothing():
    full = Says(lambda _: PromptOverflow("the prompt has 9,999 tokens"))
    dialogue = played(against_scripted(full, "bargaining/test/0", 0))
    episode = dialogue.chairs[0].episode()
    assert dialogue.culprit is None
    assert (episode.end, episode.error, episode.score) == ("truncated", None, 0.0)
    assert episode.transitions[-1].info["end_reason"] == "prompt_overflow"


def test_an_error_in_a_player_is_not_swallowed():
    def broken(_: Chair) -> Reply:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play([against_scripted(Says(broken), "bargaining/test/0", 0)])
