"""A chat model on the other chair: what it reads, how its replies are read, and how it fails."""

import asyncio
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sotopia_world import ANN, BO, setting

from bad_endpoint import BadEndpoint, bad_endpoint
from istar_envs.chat import ChatClient, ChatReply, ChatTimeout
from istar_envs.errors import ConfigError
from istar_envs.sotopia.book import family_setting
from istar_envs.sotopia.dialogue import Action, DialogueState, Rules, advance
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.grammar import ParseError
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, act_in_all, partner_view
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.records import Relationship
from istar_envs.sotopia.vector import SotopiaVectorEnv

NOD = '{"action_type": "non-verbal communication", "argument": "nods"}'
HELLO = Action("speak", "Hello {there} <b>")


class Model:
    """Says what a script tells it to, the last thing for ever, and keeps what it was asked."""

    def __init__(self, *script: str | Exception, name: str = "m-2025") -> None:
        self.script = list(script)
        self.identity = {"model": name}
        self.asked: list[list[Mapping[str, Any]]] = []
        self.options: list[dict[str, Any]] = []
        self.most_at_once = self._at_once = 0

    def close(self) -> None:
        pass

    async def acomplete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatReply:
        self.asked.append(list(messages))
        self.options.append(options)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return ChatReply(step, "m-2025", "stop")


def view(relationship: Relationship = Relationship.FRIEND, seat: int = 1) -> PartnerView:
    """A made-up fair after Ann, in seat 0, has said hello."""
    state = advance(DialogueState(), 0, HELLO, Rules())
    return partner_view(setting(relationship), seat, state, Rules())


# What it reads


def test_the_prompt_is_what_its_seat_reads() -> None:
    role, scene = LlmPartner(Model(NOD)).messages(view())
    assert role["content"].startswith("You are Bo Tarn. ")
    assert '{"action_type": "speak"' in role["content"]
    assert "Leave when your goal is reached" in role["content"]
    lines = scene["content"].splitlines()
    assert lines[-2:] == ['Turn 1: Ann Quill said: "Hello {there} <b>"', "Turn 2 of 20: Bo Tarn acts."]
    assert "Goal of Bo Tarn: Sell the old boat." in lines
    assert "Goal of Ann Quill: Unknown" in lines
    assert BO.secret in scene["content"]
    for hidden in (ANN.secret, "Both know Kim.", "Ann arrived first.", "Get a lift home."):
        assert hidden not in scene["content"]


def test_a_stranger_reads_nothing_about_the_other_and_leaks_only_when_asked_to() -> None:
    stranger = view(Relationship.STRANGER)
    assert "About Ann Quill: Unknown" in LlmPartner(Model(NOD)).messages(stranger)[1]["content"]
    leaky = LlmPartner(Model(NOD), visibility="leaky_ampo").messages(stranger)[1]["content"]
    assert ANN.secret in leaky


def test_the_moves_are_told_where_something_is_at_stake() -> None:
    played = partner_view(family_setting("bargaining/test/0"), 0, DialogueState(), Rules())
    assert "Moves: propose PRICE | accept | reject" in LlmPartner(Model(NOD)).messages(played)[1]["content"]


def test_a_schema_is_asked_for_in_json_only() -> None:
    for protocol, is_asked in (("json", True), ("plain", False)):
        model = Model("")
        LlmPartner(model, protocol=protocol, retries=0, temperature=0.2, max_tokens=9).act(view())  # type: ignore[arg-type]
        (options,) = model.options
        assert (options["response_schema"] is not None) is is_asked
        assert (options["temperature"], options["max_tokens"]) == (0.2, 9)


def test_the_seed_follows_task_seat_turn_and_try() -> None:
    def seeds(seat_view: PartnerView, **options: Any) -> list[int]:
        model = Model("no")
        LlmPartner(model, **options).act(seat_view)
        return [option["seed"] for option in model.options]

    assert seeds(view()) == seeds(view())
    assert len(set(seeds(view()))) == 3
    assert not set(seeds(view())) & set(seeds(view(), seed=1))
    later = PartnerView(setting(), 1, view().events, 4, 20, view().allowed)
    assert not set(seeds(view())) & set(seeds(later))


# How it is read


@pytest.mark.parametrize(
    ("protocol", "reply", "action"),
    [
        ("json", NOD, Action("nonverbal", "nods")),
        ("json", f"Sure:\n```json\n{NOD}\n```", Action("nonverbal", "nods")),
        ("json", '{"action_type": "none", "argument": ""}', Action("none")),
        ("plain", "do: accept", Action("action", "accept")),
        ("react", "<think>hm</think><action>leave</action>", Action("leave")),
        ("speech", "I left my keys.", Action("speak", "I left my keys.")),
    ],
)
def test_replies_are_read_by_the_grammar(protocol: Any, reply: str, action: Action) -> None:
    assert LlmPartner(Model(reply), protocol=protocol).act(view()) == action


def test_the_same_model_is_asked_again_and_told_why() -> None:
    model = Model("Hello!", '{"action_type": "wave", "argument": ""}', NOD)
    assert LlmPartner(model).act(view()) == Action("nonverbal", "nods")
    first, second, third = model.asked
    assert first == second[:2] == third[:2]
    assert second[2:] == [
        {"role": "assistant", "content": "Hello!"},
        {
            "role": "user",
            "content": "This could not be read: there is no JSON object. "
            "Answer with one action and nothing else.",
        },
    ]
    assert "action_type is one of" in third[-1]["content"]


def test_an_unreadable_reply_is_no_action_or_a_failure_as_chosen() -> None:
    model = Model("Hello!")
    reply = LlmPartner(model, retries=1).act(view())
    assert isinstance(reply, ParseError)
    assert len(model.asked) == 2
    with pytest.raises(PartnerFailed, match=r"m-2025: 1 replies could not be read.*no JSON object"):
        LlmPartner(model, retries=0, on_unreadable="abort").act(view())


def test_an_unreadable_model_never_makes_a_dialogue_stale() -> None:
    partner = LlmPartner(Model("Hello!"), retries=0)
    env = SotopiaEnv(partner=partner, seat=0)
    env.reset(seed=0)
    ended = False
    while not ended:
        *_, terminated, truncated, info = env.step("say: Well?")
        ended = terminated or truncated
    assert (info["end_reason"], info["num_invalid_partner"]) == ("max_turns", 10)


# Many at a time


def test_many_dialogues_are_asked_at_a_time_and_failures_stay_apart() -> None:
    model = Model(NOD, ChatTimeout("no answer within 60 s"), NOD)
    partner = LlmPartner(model)
    first, second, third = act_in_all(partner, [view()] * 3)
    assert first == third == Action("nonverbal", "nods")
    assert isinstance(second, PartnerFailed)
    assert "partner m-2025: no answer within 60 s" in str(second)
    assert model.most_at_once == 3


# What it is called


def test_the_name_tells_models_and_settings_apart() -> None:
    names = [
        LlmPartner(Model(NOD)).name,
        LlmPartner(Model(NOD), temperature=0.1).name,
        LlmPartner(Model(NOD), protocol="plain").name,
        LlmPartner(Model(NOD, name="m-2026")).name,
    ]
    assert len(set(names)) == 4
    assert names[0].startswith("llm-1/m-2025/")
    assert LlmPartner(Model(NOD)).name == names[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "jason"}, 'Did you mean "json"'),
        ({"on_unreadable": "retry"}, "Known: abort, pass"),
        ({"visibility": "all"}, "Known: leaky_ampo, strict"),
        ({"retries": -1}, "retries=-1"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"m-2025.*{message}"):
        LlmPartner(Model(NOD), **options)


# Against an endpoint


@contextmanager
def endpoint_partner(
    client: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, **behaviour: Any
) -> Iterator[tuple[LlmPartner, BadEndpoint]]:
    """A partner and the endpoint behind it."""
    with bad_endpoint(**behaviour) as endpoint:
        partner = LlmPartner(ChatClient(endpoint.url, "m", **(client or {})), **(options or {}))
        yield partner, endpoint
        partner.close()


def test_a_partner_with_a_client_can_be_pickled_and_used() -> None:
    with endpoint_partner(script=[f"={NOD}"]) as (partner, endpoint):
        copied = pickle.loads(pickle.dumps(partner))
        assert copied.act(view()) == Action("nonverbal", "nods")
        copied.close()
    (request,) = endpoint.requests
    assert request["response_format"]["json_schema"]["strict"] is True
    assert request["temperature"] == 0.7


def test_trouble_on_the_way_is_survived_with_the_same_model() -> None:
    script = ["500", "429_wait", "cut_body", "dropped", f"={NOD}"]
    with endpoint_partner({"backoff_s": 0.01}, script=script) as (partner, endpoint):
        assert partner.act(view()) == Action("nonverbal", "nods")
    assert [request["model"] for request in endpoint.requests] == ["m"] * 5


@pytest.mark.parametrize("fault", ["500", "429", "dropped", "cut_body", "no_choices", "oversized", "refusal"])
def test_trouble_that_does_not_end_is_a_failure_and_never_a_pass(fault: str) -> None:
    client = {"backoff_s": 0.0, "max_retries": 1, "max_body": 100_000}
    with endpoint_partner(client, share=1.0, faults=(fault,)) as (partner, _):
        env = SotopiaEnv(partner=partner, seat=0)
        env.reset(seed=0)
        *_, terminated, truncated, info = env.step("say: Hello.")
    assert (terminated, truncated, info["end_reason"]) == (False, True, "agent_failure")
    assert (info["goal"], info["scored"]) == (None, False)
    assert info["failure"].startswith("partner m: ")


def test_when_three_of_ten_requests_fail_no_episode_is_lost_and_none_goes_wrong() -> None:
    faults = ("500", "429", "429_wait", "dropped", "cut_body", "half_body")
    client, options = {"backoff_s": 0.001, "max_retries": 20}, {"protocol": "speech"}
    with endpoint_partner(client, options, share=0.3, faults=faults) as (partner, endpoint):
        vector = SotopiaVectorEnv(24, partner=partner, seat=0, max_turns=6)
        vector.reset(seed=0)
        for _ in range(3):
            *_, truncated, infos = vector.step(["say: Well?"] * 24)
    assert truncated.all()
    assert set(infos["end_reason"]) == {"max_turns"}
    assert sum(endpoint.causes().values()) > 10
    turns = [turn for record in infos["dialogue"] for turn in json.loads(record)["turns"]]
    assert {turn["text"].partition(" said: ")[2] for turn in turns if turn["seat"]} == {'"hello"'}


def test_an_environment_closes_the_partner_that_it_made() -> None:
    with bad_endpoint(script=[f"={NOD}"] * 2) as endpoint:
        described = {"model": "m", "base_url": endpoint.url}
        for env in (SotopiaEnv(partner=described, seat=1), SotopiaVectorEnv(1, partner=described, seat=1)):
            env.reset(seed=0)
            env.close()
            env.close()
    assert endpoint.num_connections == 2
