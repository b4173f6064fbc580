"""An environment as a conversation: what is asked, what a reply does, and what is recorded."""

import hashlib

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.episode import Episode, ImageStore
from istar_envs.errors import ConfigError, ResetNeeded
from istar_envs.language import InvalidAction

OWN_TEMPLATE = """
grammar = "action"
system = "You are {role}."
turn = "{history}now {observation} ({step}, {admissible})"
history_item = "{number}:{observation}>{action};"
opening = "{task}: {observation}"
continuation = "then {observation}"
"""


class Counter(gym.Env):
    """Counts up by 1 or 2 to a goal; text may hold anything that a template could mistake."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(100)
    words = ("one", "two")

    def __init__(self, goal: int = 5, limit: int = 6, text: str = "{task}", picture: bool = False) -> None:
        self.language = self
        self.role = "a counter of {observation}"
        self.goal, self.limit, self.told, self.picture = goal, limit, text, picture
        self.count = self.steps = 0

    def text(self, observation, info):
        return f"{self.told}{observation}"

    def image(self, observation, info):
        return np.full((2, 3, 3), observation, np.uint8) if self.picture else None

    def action(self, text, info):
        return self.words.index(text) if text in self.words else InvalidAction(f"{text!r} is no number")

    def name(self, action):
        return self.words[action]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.steps = 0
        return self.count, self._info(None)

    def step(self, action):
        self.steps += 1
        blocked = self.count + action + 1 > self.goal
        self.count += 0 if blocked else int(action) + 1
        reason = "that is too far" if blocked else None
        return self.count, 1.0, self.count == self.goal, self.steps >= self.limit, self._info(reason)

    def invalid_step(self, reason):
        self.steps += 1
        return self.count, -1.0, False, self.steps >= self.limit, self._info(reason)

    def _info(self, reason):
        return {
            "task": f"reach {self.goal} {{step}}",
            "task_id": f"to-{self.goal}",
            "success": self.count == self.goal,
            "score": self.count / self.goal,
            "valid": reason is None,
            "invalid_reason": reason,
            "admissible_actions": list(self.words),
            "state_key": str(self.count),
        }


@pytest.fixture
def template(tmp_path) -> str:
    path = tmp_path / "own.toml"
    path.write_text(OWN_TEMPLATE)
    return str(path)


def start(template: str = "bare-v1", **options) -> Conversation:
    world = {key: options.pop(key) for key in ("goal", "limit", "text", "picture") if key in options}
    conversation = Conversation(Counter(**world), template=template, **options)
    conversation.reset(seed=0)
    return conversation


def say(*words: str) -> str:
    return f"<action>{'||'.join(words)}</action>"


def test_a_window_repeats_the_last_steps_in_one_message(template):
    conversation = start(template, window=2, text="")
    for word in ("one", "two", "one"):
        conversation.respond(say(word))
    system, user = conversation.messages()
    assert system == {"role": "system", "content": "You are a counter of {observation}."}
    assert user["role"] == "user"
    assert user["content"] == "2:1>two;3:3>one;now 4 (3, one, two)"


def test_a_window_of_0_shows_the_present_only(template):
    conversation = start(template, window=0, text="")
    conversation.respond(say("one"))
    assert conversation.messages()[1]["content"] == "now 1 (1, one, two)"


def test_a_window_may_be_longer_than_the_past(template):
    conversation = start(template, window=9, text="")
    assert conversation.messages()[1]["content"] == "now 0 (0, one, two)"
    conversation.respond(say("one"))
    assert conversation.messages()[1]["content"] == "1:0>one;now 1 (1, one, two)"


def test_the_full_dialogue_keeps_every_reply_word_for_word(template):
    conversation = start(template, window=None, text="")
    replies = ["I say\n " + say("one") + "  ", "nonsense {task}"]
    for reply in replies:
        conversation.respond(reply)
    assert conversation.messages() == [
        {"role": "system", "content": "You are a counter of {observation}."},
        {"role": "user", "content": "reach 5 {step}: 0"},
        {"role": "assistant", "content": replies[0]},
        {"role": "user", "content": "then 1"},
        {"role": "assistant", "content": replies[1]},
        {"role": "user", "content": "then 1"},
    ]


@pytest.mark.parametrize("window", [0, 3, None])
def test_text_of_the_world_or_the_model_cannot_fill_placeholders(template, window):
    conversation = start(template, window=window, text="{role}{history}{observation}")
    conversation.respond("{observation}")
    text = "".join(message["content"] for message in conversation.messages())
    assert "{role}{history}{observation}0" in text
    assert text.count("a counter of") == 1


def test_without_a_system_text_there_is_no_system_message():
    (message,) = start("bare-v1", text="#").messages()
    assert message == {"role": "user", "content": "#0"}


def test_an_unreadable_reply_spends_a_step_and_changes_nothing(template):
    conversation = start(template, window=1, text="")
    transition = conversation.respond("what?")
    assert not transition.valid
    assert transition.action is None
    assert "no complete <action>" in transition.invalid_reason
    assert transition.reward == -1.0
    assert transition.reply == "what?"
    assert (conversation.env.steps, conversation.env.count) == (1, 0)
    assert conversation.messages()[1]["content"] == "1:0>an invalid reply;now 0 (1, one, two)"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (say("three"), "'three' is no number"),
        ("<action></action>", "empty"),
        ("", "no complete"),
        (say("One"), "One"),
    ],
)
def test_what_is_no_action_is_invalid_with_a_reason(reply, reason):
    transition = start().respond(reply)
    assert not transition.valid
    assert reason in transition.invalid_reason


def test_an_action_that_the_world_refuses_is_invalid_too():
    conversation = start(goal=1)
    transition = conversation.respond(say("two"))
    assert (transition.valid, transition.action, transition.invalid_reason) == (
        False,
        None,
        "that is too far",
    )
    assert transition.reward == 1.0, "the world's own reward for the step it was"


def test_several_actions_of_one_reply_are_played_in_order_and_their_rewards_added():
    conversation = start(actions_per_turn=3, goal=9)
    transition = conversation.respond(say("one", "two", "one"))
    assert transition.action == "one||two||one"
    assert transition.reward == 3.0
    assert conversation.env.count == 4
    assert not conversation.respond(say("one", "one", "one", "one")).valid
    assert conversation.env.count == 4


def test_one_unknown_action_makes_the_whole_reply_invalid():
    conversation = start(actions_per_turn=3)
    transition = conversation.respond(say("one", "three"))
    assert not transition.valid
    assert (conversation.env.count, conversation.env.steps) == (0, 1)


def test_actions_after_the_end_or_after_a_refused_one_are_not_played():
    conversation = start(actions_per_turn=4, goal=2)
    transition = conversation.respond(say("one", "one", "one", "one"))
    assert (transition.action, transition.reward) == ("one||one", 2.0)
    assert conversation.done
    refused = start(actions_per_turn=3, goal=2)
    transition = refused.respond(say("one", "two", "one"))
    assert not transition.valid
    assert transition.invalid_reason == "that is too far"
    assert (refused.env.count, refused.env.steps) == (1, 2)


def test_without_leave_a_reply_holds_one_action():
    conversation = start()
    assert not conversation.respond(say("one", "two")).valid


def test_an_episode_ends_with_its_world():
    conversation = start(goal=2)
    assert not conversation.done
    conversation.respond(say("two"))
    episode = conversation.episode()
    assert (episode.end, episode.success, episode.score) == ("terminated", True, 1.0)
    assert episode.final_observation == "{task}2"
    assert (episode.env_id, episode.task_id) == ("Counter", "to-2")
    assert Episode.from_json(episode.to_json()) == episode


def test_a_limit_truncates_an_episode():
    conversation = start(limit=2)
    for _ in range(2):
        conversation.respond("")
    assert conversation.episode().end == "truncated"
    assert conversation.episode().score == 0
    cut = start()
    cut.respond(say("one"))
    cut.truncate()
    assert cut.done
    assert cut.episode().end == "truncated"
    assert len(cut.episode().transitions) == 1


class Storyteller(Counter):
    """A counter with something to record, and a verdict at the end."""

    recorded_info = ("score", "state_key", "nothing", "empty")

    def truncate(self):
        return self.count, 0.25, False, True, {**self._info(None), "score": 0.75}

    def _info(self, reason):
        return {**super()._info(reason), "empty": ""}


def test_a_world_says_which_facts_are_recorded():
    conversation = Conversation(Storyteller(), template="bare-v1")
    conversation.reset()
    assert conversation.respond(say("two")).info == {"score": 0.4, "state_key": "2"}


def test_a_world_with_a_verdict_finds_it_at_a_limit_of_the_agent_too():
    conversation = Conversation(Storyteller(), template="bare-v1")
    conversation.reset()
    conversation.respond(say("two"))
    conversation.truncate()
    episode = conversation.episode()
    assert (episode.end, episode.score, episode.episode_return) == ("truncated", 0.75, 1.25)
    assert episode.transitions[-1].info == {"score": 0.75, "state_key": "2"}
    unplayed = Conversation(Storyteller(), template="bare-v1")
    unplayed.reset()
    unplayed.truncate()
    assert unplayed.episode().transitions == ()


def test_an_episode_that_broke_is_recorded_as_far_as_it_went():
    conversation = start(goal=2)
    conversation.respond(say("one"))
    episode = conversation.episode("ValueError: boom")
    assert (episode.end, episode.success, episode.error) == ("failed", False, "ValueError: boom")
    assert len(episode.transitions) == 1
    never_started = Conversation(Counter()).episode("no level")
    assert (never_started.end, never_started.transitions) == ("failed", ())


def test_transitions_hold_what_was_seen_before_acting():
    conversation = start(text="")
    conversation.respond(say("two"))
    transition = conversation.respond(say("one"))
    assert (transition.observation, transition.state_key) == ("2", "2")
    assert transition.info == {"score": 0.6, "success": False}


def test_a_new_episode_forgets_the_last_one(template):
    conversation = start(template, window=None, text="")
    conversation.respond(say("two"))
    conversation.reset(seed=1)
    assert len(conversation.messages()) == 2
    assert not conversation.done


def test_asking_or_answering_without_a_running_episode_is_refused():
    conversation = Conversation(Counter(goal=1), template="bare-v1")
    for call in (conversation.messages, lambda: conversation.respond(""), conversation.truncate):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()
    conversation.reset()
    with pytest.raises(ResetNeeded, match="still running"):
        conversation.episode()
    conversation.respond(say("one"))
    with pytest.raises(ResetNeeded, match="call reset"):
        conversation.respond(say("one"))


def test_an_environment_without_words_is_refused():
    with pytest.raises(ConfigError, match=r"CartPoleEnv cannot be played in text: .*TextPlayable"):
        Conversation(gym.make("CartPole-v1"))


@pytest.mark.parametrize("options", [{"window": -1}, {"actions_per_turn": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="window must be None or >= 0, actions_per_turn >= 1"):
        Conversation(Counter(), **options)


@pytest.mark.parametrize("window", [1, None])
def test_pictures_stand_where_the_template_shows_the_observation(template, window, tmp_path):
    store = ImageStore(tmp_path / "images")
    conversation = start(template, window=window, picture=True, text="n", images=store)
    transition = conversation.respond(say("two"))
    user = conversation.messages()[-1]["content"]
    shown = [part for part in user if part["type"] == "image"]
    texts = "".join(part["text"] for part in user if part["type"] == "text")
    assert texts == ("1:n0>two;now n2 (1, one, two)" if window else "then n2")
    assert [int(part["image"][0, 0, 0]) for part in shown] == ([0, 2] if window else [2])
    png = store.get(transition.image)
    assert png.startswith(b"\x89PNG")
    assert hashlib.sha256(png).hexdigest() == transition.image
    unsaved = start(template, window=window, picture=True, text="n")
    assert unsaved.respond(say("two")).image == transition.image


def test_a_purely_visual_world_shows_pictures_only():
    conversation = Conversation(istar_envs.make("istar/VisualSokoban-v0"), template="bare-v1", window=1)
    conversation.reset(seed=0)
    conversation.respond(say("up"))
    content = conversation.messages()[0]["content"]
    assert [part["type"] for part in content] == ["image", "text", "image"]
    assert content[0]["image"].shape == content[2]["image"].shape == (168, 168, 3)


def test_a_picture_in_a_message_does_not_change_later():
    conversation = Conversation(istar_envs.make("istar/VisualSokoban-v0"), template="bare-v1", window=0)
    conversation.reset(seed=0)
    before = conversation.messages()[0]["content"][0]["image"]
    copy = before.copy()
    for word in ("up", "down", "left", "right"):
        if not conversation.done:
            conversation.respond(say(word))
    assert (before == copy).all()


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=30) | st.just(say("one")), min_size=1, max_size=6))
def test_any_text_is_a_step_and_its_record_survives_json(replies):
    conversation = start(goal=9, limit=6, window=None)
    for number, reply in enumerate(replies, start=1):
        conversation.respond(reply)
        assert conversation.env.steps == number
    if not conversation.done:
        conversation.truncate()
    episode = conversation.episode()
    assert len(episode.transitions) == len(replies)
    assert Episode.from_json(episode.to_json()) == episode
