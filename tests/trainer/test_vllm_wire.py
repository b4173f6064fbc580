"""What vLLM is told, the section ``sampler``, and the engine in this process."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.config_sampler import LocalSamplerConfig, VllmSamplerConfig
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.engine import VllmEngine
from istar_trainer.vllm.wire import SamplerDown, as_flags, engine_arguments


def test_the_sampler_is_local_unless_a_word_or_a_section_says_otherwise():
    assert RunConfig().sampler == LocalSamplerConfig()
    assert RunConfig.model_validate({"sampler": "vllm"}).sampler == VllmSamplerConfig()
    chosen = RunConfig.model_validate({"sampler": {"type": "vllm", "mode": "engine", "sleep": True}}).sampler
    assert chosen.sleep
    assert RunConfig.model_validate_json(RunConfig(sampler=chosen).model_dump_json()).sampler == chosen


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"mode": "engine", "url": "http://127.0.0.1:1"}, "leave one out"),
        ({"mode": "engine", "python": "/p"}, "leave them out"),
        ({"url": "http://127.0.0.1:1", "env": {"A": "1"}}, "leave them out"),
        ({"url": "127.0.0.1:8000"}, "must begin with http://"),
        ({"transfer": "broadcast", "mode": "engine"}, "leave out mode: engine, sleep and sync_dir"),
        ({"transfer": "broadcast", "sleep": True}, "or use transfer: files"),
        ({"transfer": "broadcast", "sync_dir": "/dev/shm"}, "or use transfer: files"),
    ],
)
def test_options_of_another_mode_are_refused(section, complaint):
    with pytest.raises(ValidationError, match=complaint):
        VllmSamplerConfig(**section)


def test_the_engine_takes_nothing_from_the_models_defaults():
    config = VllmSamplerConfig(max_lora_rank=16, sleep=True, options={"max_num_seqs": 32, "seed": 5})
    arguments = engine_arguments(config, Path("/w"), Path("/t"), 1032, sees_pictures=False)
    assert arguments == {
        "model": "/w",
        "tokenizer": "/t",
        "dtype": "bfloat16",
        "max_model_len": 1032,
        "enforce_eager": True,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.9,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_sleep_mode": True,
        "enable_lora": True,
        "max_lora_rank": 16,
        "max_num_seqs": 32,
        "seed": 5,
    }


@pytest.mark.parametrize(("mode", "rank"), [("server", 0), ("engine", 16)])
def test_a_model_that_sees_gets_its_pixels_scaled_and_no_films(mode, rank):
    config = VllmSamplerConfig(mode=mode, max_lora_rank=rank)
    blind, seeing = (
        engine_arguments(config, Path("/w"), Path("/t"), 8, sees_pictures=sees) for sees in (False, True)
    )
    more = {name: value for name, value in seeing.items() if name not in blind}
    expected = {"limit_mm_per_prompt": {"video": 0}, "mm_device_do_normalize": False}
    own = {"enable_scale_out": True} if mode == "server" else {"enable_tower_connector_lora": True}
    assert more == expected | own


@pytest.mark.parametrize("sees", [False, True])
def test_a_server_that_gets_its_weights_by_broadcast_reads_none_and_unties_its_output_layer(sees):
    files, sent = (
        engine_arguments(VllmSamplerConfig(transfer=transfer), Path("/w"), Path("/t"), 8, sees_pictures=sees)
        for transfer in ("files", "broadcast")
    )
    untied = {"tie_word_embeddings": False}
    assert {name: value for name, value in sent.items() if name not in files} == {
        "load_format": "dummy",
        "worker_extension_cls": "istar_receiver.WeightReceiver",
        "hf_overrides": {**untied, "text_config": untied} if sees else untied,
    }


def test_adapters_are_not_sent():
    tree = {"model": {"lora": {"rank": 4}}, "sampler": {"type": "vllm", "transfer": "broadcast"}}
    with pytest.raises(ValidationError, match=r"model\.lora .* use sampler\.transfer: files"):
        RunConfig.model_validate(tree)


def test_arguments_become_flags():
    flags = as_flags({"max_model_len": 8, "enforce_eager": True, "enable_prefix_caching": False})
    assert flags == ["--max-model-len", "8", "--enforce-eager", "--no-enable-prefix-caching"]
    assert as_flags({"limit_mm_per_prompt": {"video": 0}}) == ["--limit-mm-per-prompt", '{"video": 0}']


class FakeLLM:
    """As much of ``vllm.LLM`` and its engine as the sampler uses; what was asked last is done first."""

    def __init__(self, **arguments: Any) -> None:
        if arguments["model"] == "broken":
            raise RuntimeError("no memory")
        self.calls: list[Any] = []
        self.weights = arguments["model"]
        self.llm_engine = self
        self.waiting: list[tuple[str, list[int]]] = []

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append((method, kwargs))
        self.weights = kwargs["weights_path"]

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self) -> None:
        self.calls.append("wake")

    def reset_encoder_cache(self) -> None:
        self.calls.append("reset pictures")

    def add_request(self, request_id: str, prompt: Any, parameters: Any, *, lora_request: Any) -> None:
        assert (parameters["detokenize"], parameters["output_kind"]) == (False, "final")
        self.calls.append(lora_request)
        self.waiting.append((request_id, prompt["prompt_token_ids"]))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        if self.weights == "dead":
            raise RuntimeError("EngineDeadError")
        return [self._answer(*self.waiting.pop())]

    def _answer(self, request_id: str, ids: list[int]) -> Any:
        score = SimpleNamespace(logprob=-0.5)
        reply = SimpleNamespace(
            token_ids=[ids[0], 2], logprobs=[{ids[0]: score}, {2: score}], finish_reason="stop"
        )
        scores = [None, *({i: score} for i in ids[1:])]
        return SimpleNamespace(request_id=request_id, outputs=[reply], prompt_logprobs=scores)


@pytest.fixture
def engine(monkeypatch) -> VllmEngine:
    package, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    package.LLM, package.SamplingParams = FakeLLM, dict
    package.sampling_params = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="final"))
    request.LoRARequest = lambda name, number, path: SimpleNamespace(
        lora_name=name, lora_int_id=number, lora_path=path
    )
    for module in (package, lora, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return VllmEngine(lambda model: {"model": str(model)}, pixels=torch.float32)


def test_the_engine_answers_scores_and_follows_weights(engine):
    assert not engine.is_alive()
    engine.start(Path("start"))
    assert engine.is_alive()
    replies: dict[int, Completion] = {}
    engine.answer([Request([5, 6], 1), Request([7], 2)], [{"seed": 1}, {"seed": 2}], replies.__setitem__)
    assert replies == {0: Completion((5, 2), (-0.5, -0.5)), 1: Completion((7, 2), (-0.5, -0.5))}
    assert engine.prompt_logprobs([5, 6, 7]) == [-0.5, -0.5]
    engine.load_weights(Path("next"))
    assert engine._llm.calls[-3:] == [
        ("reload_weights", {"weights_path": "next"}),
        "reset",
        "reset pictures",
    ]
    engine.sleep()
    engine.wake()
    assert engine._llm.calls[-4:] == [("sleep", 1), "wake", "reset", "reset pictures"]


def test_every_adapter_of_an_engine_has_a_number_of_its_own(engine):
    engine.start(Path("start"))
    for name in ("one", "two"):
        engine.load_adapter(name, Path(name))
    engine.answer([Request([5], 0)], [{}], lambda place, reply: None)
    used = engine._llm.calls[-1]
    assert (used.lora_name, used.lora_int_id, used.lora_path) == ("two", 2, "two")


def test_an_engine_that_fails_can_be_made_again(engine):
    with pytest.raises(SamplerDown, match="RuntimeError: no memory"):
        engine.start(Path("broken"))
    engine.start(Path("dead"))
    with pytest.raises(SamplerDown, match="EngineDeadError"):
        engine.answer([Request([5], 0)], [{}], lambda place, reply: None)
    assert not engine.is_alive()
    engine.start(Path("start"))
    assert engine.is_alive()


def test_an_engine_without_vllm_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"make_vllm_venv\.sh .*mode: server with sampler\.python"):
        VllmEngine(lambda model: {}, pixels=torch.float32)
