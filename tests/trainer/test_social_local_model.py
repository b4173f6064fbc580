"""A local model in social dialogues: prompted token by token as in training, whatever the window."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import istar_envs
from istar_envs.errors import ConfigError
from istar_envs.sotopia.book import family_setting
from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.grammar import ParseError
from istar_envs.sotopia.partners.scripted import ScriptedPartner
from istar_trainer.attempts import Task
from istar_trainer.config import EnvConfig, RolloutConfig
from istar_trainer.rollout import Player
from istar_trainer.sampler import Completion, Request
from istar_trainer.social.dialogues import Chair, Dialogue, PartnerPlayer, PromptOverflow, play
from istar_trainer.social.local_model import ModelPlayer, Prompting, load_player
from tiny_run import tiny_config

TASKS = (
    "bargaining/test/0/seat0",
    "division/test/0/seat1",
    "friends/test/1/seat0",
    "scheduling/test/0/seat1",
)
SCRIPTED = PartnerPlayer(ScriptedPartner())


class Writes:
    """A sampler that chooses among texts by the length of the prompt, and keeps what it was asked."""

    snapshot_id = 0

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self.texts = [(*tokenizer(text)["input_ids"], tokenizer.eos_token_id) for text in texts]
        self.asked: list[list[int]] = []
        self.batches: list[int] = []
        self.seeds: list[int] = []

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        self.batches.append(len(requests))
        self.asked += [list(request.prompt_ids) for request in requests]
        self.seeds += [request.seed for request in requests]
        drawn = [self.texts[len(request.prompt_ids) % len(self.texts)] for request in requests]
        return [Completion(ids, (0.0,) * len(ids)) for ids in drawn]

    def load(self, weights: Any, snapshot_id: int) -> None:
        raise NotImplementedError


def model_player(sampler: Writes, tokenizer: Any, *, seed: int = 0, **prompting: Any) -> ModelPlayer:
    return ModelPlayer(sampler, tokenizer, Prompting(**prompting), temperature=0.7, seed=seed)


def seated(player: ModelPlayer, task_id: str, number: int = 0) -> Dialogue:
    pk, _, seat = task_id.rpartition("/seat")
    players = (player, SCRIPTED) if seat == "0" else (SCRIPTED, player)
    return Dialogue.begin(family_setting(pk), number, players, ("policy", "policy"))


SAYINGS = (
    "<action>say: Well, hello!</action>",
    "<action>say: What do you propose?</action>",
    "<action>pass</action>",
)


@pytest.mark.parametrize("history", ["all", "new"])
@pytest.mark.parametrize("window", [0, 2, None])
def test_it_reads_the_very_tokens_that_it_was_trained_on(tiny_tokenizer, window, history):
    in_training, here = Writes(tiny_tokenizer, *SAYINGS), Writes(tiny_tokenizer, *SAYINGS)
    make = partial(istar_envs.make, "istar/Sotopia-v0", split="test", history=history)
    trainer = Player(make, tiny_tokenizer, template="act-v1", window=window, max_prompt_tokens=100_000)
    groups = trainer.play([Task(t, 0, t) for t in TASKS], in_training, group_size=1, seed=0, temperature=0.7)
    player = model_player(here, tiny_tokenizer, window=window, history=history, max_prompt_tokens=100_000)
    dialogues = [seated(player, task_id) for task_id in TASKS]
    play(dialogues)
    assert {tuple(prompt) for prompt in here.asked} == {tuple(prompt) for prompt in in_training.asked}
    assert len(here.asked) == len(in_training.asked) > 12
    for task_id, dialogue, group in zip(TASKS, dialogues, groups, strict=True):
        episode = dialogue.chairs[int(task_id[-1])].episode()
        (trajectory,) = group.trajectories
        assert [t.action for t in episode.transitions] == [t.action for t in trajectory.episode.transitions]
        assert episode.score == trajectory.episode.score


def test_all_chairs_go_to_the_model_in_one_batch(tiny_tokenizer):
    sampler = Writes(tiny_tokenizer, *SAYINGS)
    player = model_player(sampler, tiny_tokenizer)
    play([seated(player, f"bargaining/test/{number}/seat0") for number in range(5)])
    assert sampler.batches[0] == 5


def test_every_draw_has_a_seed_of_its_own(tiny_tokenizer):
    def seeds(**options: Any) -> list[int]:
        sampler = Writes(tiny_tokenizer, *SAYINGS)
        player = model_player(sampler, tiny_tokenizer, **options)
        play([seated(player, "bargaining/test/0/seat0", number) for number in (0, 1)])
        return sampler.seeds

    assert len(set(seeds())) == len(seeds())
    assert seeds() == seeds()
    assert not set(seeds()) & set(seeds(seed=1))


def test_replies_are_read_by_the_template_and_never_raise(tiny_tokenizer):
    chair = Chair(seated(model_player(Writes(tiny_tokenizer, ""), tiny_tokenizer), TASKS[0]).encounter, 0, 0)
    for text, action in (
        ("<action>do: accept</action>", Action("action", "accept")),
        ("say: no tags", None),
        ("<action>wave</action>", None),
        ("", None),
    ):
        (reply,) = model_player(Writes(tiny_tokenizer, text), tiny_tokenizer).act_many([chair])
        assert reply == action if action else isinstance(reply, ParseError)


def test_a_prompt_beyond_the_limit_is_never_drawn_from(tiny_tokenizer):
    sampler = Writes(tiny_tokenizer, *SAYINGS)
    player = model_player(sampler, tiny_tokenizer, max_prompt_tokens=10)
    dialogue = seated(player, TASKS[0])
    (reply,) = player.act_many([dialogue.chairs[0]])
    assert isinstance(reply, PromptOverflow)
    assert sampler.batches == []


def test_a_model_plays_alike_every_time(tiny_folder):
    given = Prompting(window=0, max_response_tokens=8)
    actions = []
    for _ in range(2):
        player = load_player(tiny_folder, given, temperature=1.0, seed=3)
        dialogue = seated(player, TASKS[0])
        play([dialogue])
        actions.append(dialogue.encounter.state.events)
    assert actions[0] == actions[1]


def test_a_run_brings_its_own_prompts(tiny_folder, tmp_path):
    config = tiny_config(
        tmp_path / "run",
        env=EnvConfig(id="istar/Sotopia-v0", template="bare-v1", window=1, kwargs={"history": "new"}),
        rollout=RolloutConfig(max_response_tokens=9, max_prompt_tokens=77),
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "policy").symlink_to(tiny_folder)
    (tmp_path / "run" / "config.json").write_text(config.model_dump_json())
    player = load_player(tmp_path / "run", Prompting(), temperature=0.7, seed=0)
    assert player.prompting == Prompting("bare-v1", 1, "new", "plain", 77, 9)


def test_a_run_without_a_readable_configuration_is_named(tiny_folder, tmp_path):
    (tmp_path / "policy").symlink_to(tiny_folder)
    (tmp_path / "config.json").write_text(json.dumps({"colour": "blue"}))
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json: colour: .*policy/ itself"):
        load_player(tmp_path, Prompting(), temperature=0.7, seed=0)
