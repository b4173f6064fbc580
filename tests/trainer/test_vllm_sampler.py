"""The vLLM sampler against a scripted server: right requests, right weights, nothing lost in a crash."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fake_vllm import FakeVllm, NumberBrain
from istar_trainer.errors import SamplerFailed, StaleSnapshot
from istar_trainer.pictures import Picture, PixelFormat, PlacedPicture
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.files import FileTransfer
from istar_trainer.vllm.sampler import VllmSampler
from istar_trainer.vllm.server import VllmServer

PIXELS = PixelFormat(patch=1, merge=1, frames=1, mean=(0.0,), std=(1.0,))
REQUESTS = [Request([5] * (n + 2), seed=n) for n in range(12)]


def seeing(*runs: tuple[int, int]) -> tuple[PlacedPicture, ...]:
    """Pictures by place and number of tokens; their keys count up from 1."""
    blank = [np.zeros((tokens, 1), dtype=np.uint8) for _, tokens in runs]
    return tuple(
        PlacedPicture(Picture(str(number), (1, len(patches)), patches, PIXELS), start)
        for number, (patches, (start, _)) in enumerate(zip(blank, runs, strict=True), start=1)
    )


class Hall:
    """Starts scripted servers as processes would be started, and knows them all."""

    def __init__(self) -> None:
        self.servers: list[FakeVllm] = []
        self.flags: list[list[str]] = []
        self.intercept: Callable[[str, Any], Any] = lambda path, body: None

    def start(self, flags: list[str]) -> FakeVllm:
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        server = FakeVllm(NumberBrain(), port=int(options["--port"]), intercept=self.intercept)
        server.brain.load(Path(options["--model"]))
        self.servers.append(server)
        self.flags.append(flags)
        return server

    @property
    def last(self) -> FakeVllm:
        return self.servers[-1]


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    for server in hall.servers:
        server.kill()


class Learner:
    """Its weights are one number too."""

    def __init__(self) -> None:
        self.value = 1

    def write(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        (folder / "number").write_text(str(int(weights["number"])))

    def score(self, ids: list[int], pictures: Sequence[PlacedPicture]) -> list[float]:
        return [-float(self.value)] * (len(ids) - 1)


@pytest.fixture
def learner() -> Learner:
    return Learner()


def make_server(hall: Hall, **options: Any) -> VllmServer:
    settings = {"concurrency": 4, "start_timeout_s": 60.0, "request_timeout_s": 60.0, **options}
    settings["pixels"] = torch.float32
    start = None if "url" in options else hall.start
    return VllmServer(lambda model: {"model": str(model)}, start_process=start, **settings)


def make_sampler(hall: Hall, learner: Learner, tmp_path: Path, **options: Any) -> VllmSampler:
    start = tmp_path / "start"
    start.mkdir()
    (start / "number").write_text("1")
    settings = {"probe_band": 0.1, "max_restarts": 2, "eos_token_id": 2, "max_new_tokens": 8, **options}
    backend = settings.pop("backend", None) or make_server(hall)
    files = FileTransfer(backend, start, tmp_path / "snapshots", learner.write)
    return VllmSampler(backend, files, score=learner.score, **settings)


@pytest.fixture
def sampler(hall: Hall, learner: Learner, tmp_path: Path) -> Iterator[VllmSampler]:
    sampler = make_sampler(hall, learner, tmp_path)
    yield sampler
    sampler.close()


def expected(value: int) -> list[Completion]:
    """What a server with some weights replies to ``REQUESTS``."""
    return [Completion((n + 2, n, value), (-float(value),) * 3) for n in range(12)]


def publish(sampler: VllmSampler, learner: Learner, value: int, snapshot_id: int) -> None:
    learner.value = value
    sampler.load({"number": torch.tensor(value)}, snapshot_id)


def test_nothing_is_started_before_the_first_request_and_replies_come_in_order(sampler, hall):
    assert not hall.servers
    assert sampler.generate(REQUESTS, temperature=0.7) == expected(1)
    assert len(hall.servers) == 1
    assert sampler.generate(REQUESTS[::-1], temperature=0.7) == expected(1)[::-1]
    assert len(hall.servers) == 1


def test_every_request_says_all_that_shapes_the_distribution(sampler, hall):
    sampler.generate([Request([5, 6], seed=2**63 + 9)], temperature=0.7)
    assert hall.last.calls_to("/v1/completions")[-1] == {
        "model": "policy",
        "prompt": [5, 6],
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 9,
        "max_tokens": 8,
        "ignore_eos": True,
        "stop_token_ids": [2],
        "logprobs": 0,
        "return_token_ids": True,
    }


def test_new_weights_are_taken_over_before_the_next_reply_and_old_caches_forgotten(sampler, hall, learner):
    sampler.generate(REQUESTS, temperature=1.0)
    publish(sampler, learner, 7, 1)
    assert sampler.snapshot_id == 1
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
    paths = [path for path, _ in hall.last.calls]
    place = paths.index("/collective_rpc")
    assert paths[place + 1 : place + 3] == ["/reset_prefix_cache", "/reset_encoder_cache"]
    assert paths.count("/collective_rpc") == 1
    sampler.generate(REQUESTS, temperature=1.0)
    assert [path for path, _ in hall.last.calls].count("/collective_rpc") == 1


def test_a_run_that_is_resumed_starts_the_server_with_its_weights_at_once(sampler, hall, learner, tmp_path):
    publish(sampler, learner, 5, 40)
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(5)
    assert str(tmp_path / "snapshots" / "snapshot-00000040") in hall.flags[0]
    assert not hall.last.calls_to("/collective_rpc")


def test_only_the_present_snapshot_is_kept_and_none_after_the_end(sampler, learner, tmp_path):
    for number in (1, 2, 3):
        publish(sampler, learner, number, number)
        sampler.generate(REQUESTS[:1], temperature=1.0)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["snapshot-00000003"]
    sampler.close()
    assert not (tmp_path / "snapshots").exists()


def test_a_server_that_keeps_its_old_weights_is_found_out(sampler, hall, learner):
    hall.intercept = lambda path, body: (200, {"results": [None]}) if path == "/collective_rpc" else None
    sampler.generate(REQUESTS, temperature=1.0)
    publish(sampler, learner, 7, 3)
    with pytest.raises(
        StaleSnapshot, match=r"given snapshot 3 .* by 6 nats on average, more than .*band=0\.1"
    ):
        sampler.generate(REQUESTS, temperature=1.0)


@pytest.mark.parametrize("after", [1, 5, 12])
def test_a_crash_loses_no_reply(sampler, hall, learner, after):
    publish(sampler, learner, 4, 6)
    count = 0

    def intercept(path: str, body: Any) -> Any:
        nonlocal count
        count += path == "/v1/completions" and "seed" in body
        return "crash" if count == after and len(hall.servers) == 1 else None

    hall.intercept = intercept
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(4)
    assert len(hall.servers) == 2
    asked = [
        body["seed"]
        for server in hall.servers
        for body in server.calls_to("/v1/completions")
        if "seed" in body
    ]
    assert set(asked) == set(range(12))
    if after == 12:
        assert len(asked) < 12 + 5, "what had come is not asked for again"


def test_a_crash_between_two_rollouts_is_noticed(sampler, hall):
    sampler.generate(REQUESTS, temperature=1.0)
    hall.last.kill()
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(1)
    assert len(hall.servers) == 2


def test_a_crash_while_weights_are_taken_over_starts_the_server_with_the_new_ones(sampler, hall, learner):
    sampler.generate(REQUESTS, temperature=1.0)
    hall.last.intercept = lambda path, body: "crash" if path == "/collective_rpc" else None
    publish(sampler, learner, 9, 1)
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(9)
    assert not hall.last.calls_to("/collective_rpc")


def test_a_server_that_crashes_again_and_again_ends_the_run_with_its_log(sampler, hall):
    sampler.generate(REQUESTS, temperature=1.0)
    hall.last.kill()
    hall.intercept = lambda path, body: "crash" if path == "/v1/completions" else None
    with pytest.raises(SamplerFailed) as error:
        sampler.generate(REQUESTS, temperature=1.0)
    for part in ("broke 3 times (sampler.max_restarts=2)", "12 replies", "--resume", "Its log is"):
        assert part in str(error.value)
    assert len(hall.servers) == 1 + 3


def test_a_server_that_never_comes_up_is_not_tried_twice(sampler, hall):
    hall.intercept = lambda path, body: "crash"
    with pytest.raises(
        SamplerFailed, match=r"did not come up: it ended before it was up.*ended with code -9"
    ):
        sampler.generate(REQUESTS, temperature=1.0)
    assert len(hall.servers) == 1


def test_a_server_that_hangs_at_the_start_is_given_up_in_time(hall, learner, tmp_path):
    hall.intercept = lambda path, body: (503, "") if path == "/health" else None
    sampler = make_sampler(hall, learner, tmp_path, backend=make_server(hall, start_timeout_s=0.3))
    with pytest.raises(SamplerFailed, match=r"not up after 0\.3 s \(sampler\.start_timeout_s\)"):
        sampler.generate(REQUESTS, temperature=1.0)
    sampler.close()


def test_a_prompt_with_pictures_says_what_stands_where(sampler, hall):
    mixed = [*REQUESTS[:2], Request([5] * 9, 2, seeing((1, 2), (6, 3))), *REQUESTS[3:]]
    replies = sampler.generate(mixed, temperature=0.7)
    assert replies[2] == Completion((9, 2, 1), (-1.0,) * 3)
    assert [*replies[:2], *replies[3:]] == [*expected(1)[:2], *expected(1)[3:]]
    (body,) = hall.last.calls_to("/inference/v1/generate")
    (as_text,) = (b for b in hall.last.calls_to("/v1/completions") if b.get("seed") == 1)
    told = {
        key: value for key, value in as_text.items() if key not in ("model", "prompt", "return_token_ids")
    }
    assert body["sampling_params"] == {**told, "seed": 2, "detokenize": False}
    assert (body["model"], body["token_ids"]) == ("policy", [5] * 9)
    shown = body["features"]
    assert shown["mm_hashes"] == {"image": ["1", "2"]}
    assert shown["mm_placeholders"] == {"image": [{"offset": 1, "length": 2}, {"offset": 6, "length": 3}]}


@pytest.mark.parametrize(
    ("pictures", "probed"),
    [
        ([], (256, 0)),
        ([(2, 30), (100, 30)], (256, 2)),
        ([(2, 30), (240, 30)], (240, 1)),  # none in part
        ([(2, 270), (290, 5)], (272, 1)),  # the first in any case, so that it proves the vision tower
        ([(2, 4), (300, 5)], (256, 1)),
    ],
)
def test_weights_are_proved_by_a_text_with_its_pictures(sampler, hall, learner, pictures, probed):
    request = Request([5] * 310, 0, seeing(*pictures))
    sampler.generate([request], temperature=1.0)
    publish(sampler, learner, 7, 1)
    sampler.generate([request], temperature=1.0)
    bodies = [
        body
        for _, body in hall.last.calls
        if body and "prompt_logprobs" in (body.get("sampling_params") or body)
    ]
    assert len(bodies) == 2
    for body in bodies:
        shown = body["features"]["mm_hashes"]["image"] if pictures else []
        assert (len(body["token_ids" if pictures else "prompt"]), len(shown)) == probed


def test_a_refused_request_says_what_the_server_said(sampler, hall):
    refusal = {"error": {"message": "Token id 100000 is out of vocabulary", "code": 400}}
    hall.intercept = lambda path, body: (
        (400, refusal) if path == "/v1/completions" and "seed" in body else None
    )
    with pytest.raises(SamplerFailed, match=r"/v1/completions: HTTP 400: .*Token id 100000"):
        sampler.generate(REQUESTS, temperature=1.0)
    assert len(hall.servers) == 1


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"finish_reason": "stop", "token_ids": [], "logprobs": None}, "drew 0 tokens"),
        (
            {"finish_reason": "stop", "token_ids": [4, 5], "logprobs": {"token_logprobs": [-1.0]}},
            "drew 2 tokens",
        ),
        ({"finish_reason": "stop", "text": "hello"}, "no token ids with logprobs"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(sampler, hall, choice, complaint):
    hall.intercept = lambda path, body: (
        (200, {"choices": [choice]}) if path == "/v1/completions" and "seed" in body else None
    )
    with pytest.raises(SamplerFailed, match=complaint):
        sampler.generate(REQUESTS, temperature=1.0)


def test_a_reply_that_was_broken_off_is_asked_for_again(sampler, hall):
    broken = {
        "choices": [{"finish_reason": "abort", "token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}]
    }
    hall.intercept = lambda path, body: (
        (200, broken) if body and body.get("seed") == 3 and len(hall.servers) == 1 else None
    )
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(1)


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(sampler, learner, tmp_path):
    def fail(weights: Any, folder: Path) -> None:
        (folder / "number").write_text("half")
        raise OSError(28, "No space left on device")

    sampler._transfer._write = fail
    with pytest.raises(SamplerFailed, match=r"snapshot 5 .*No space left.*sampler\.sync_dir.*--resume"):
        sampler.load({}, 5)
    assert not list((tmp_path / "snapshots").iterdir())
    assert sampler.snapshot_id == 0


def test_an_adapter_is_loaded_beside_the_base_and_replaces_the_one_before(sampler, hall, learner, tmp_path):
    def write_adapter(weights: dict[str, torch.Tensor], folder: Path) -> None:
        learner.write(weights, folder)
        (folder / "adapter_config.json").write_text("{}")

    sampler._transfer._write = write_adapter
    for value in (3, 8):
        publish(sampler, learner, value, value)
        assert sampler.generate(REQUESTS, temperature=1.0) == expected(value)
    assert str(tmp_path / "start") in hall.flags[0]
    assert list(hall.last.adapters) == ["snapshot-00000008"]
    assert hall.last.calls_to("/v1/completions")[-1]["model"] == "snapshot-00000008"
    hall.last.kill()
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(8)
    assert list(hall.last.adapters) == ["snapshot-00000008"]


def test_a_sleeping_server_is_woken_for_the_next_reply(hall, learner, tmp_path):
    sampler = make_sampler(hall, learner, tmp_path, sleeps=True)
    sampler.rest()  # nothing runs yet
    sampler.generate(REQUESTS[:1], temperature=1.0)
    sampler.rest()
    sampler.rest()
    publish(sampler, learner, 2, 1)
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(2)
    paths = [path for path, _ in hall.last.calls]
    assert paths.count("/sleep?level=1") == paths.count("/wake_up") == 1
    assert paths.index("/sleep?level=1") < paths.index("/wake_up") < paths.index("/collective_rpc")
    sampler.close()


def test_without_the_option_a_server_is_never_put_to_sleep(sampler, hall):
    sampler.generate(REQUESTS[:1], temperature=1.0)
    sampler.rest()
    assert not hall.last.calls_to("/sleep?level=1")


def test_a_server_that_runs_already_gets_the_weights_and_again_after_its_restart(hall, learner, tmp_path):
    running = FakeVllm(NumberBrain())
    hall.servers.append(running)
    sampler = make_sampler(hall, learner, tmp_path, backend=make_server(hall, url=running.url))
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(1)
    publish(sampler, learner, 6, 1)
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(6)
    running.brain.value, running.started_at = 0, 1.9e9  # somebody restarted it with other weights
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(6)
    sampler.close()
    assert running.exit_code is None, "it belongs to somebody else"


def test_a_server_that_takes_no_weights_is_refused_with_advice(hall, learner, tmp_path):
    running = FakeVllm(
        NumberBrain(), intercept=lambda path, body: (404, "Not Found") if path == "/collective_rpc" else None
    )
    hall.servers.append(running)
    sampler = make_sampler(hall, learner, tmp_path, backend=make_server(hall, url=running.url))
    with pytest.raises(SamplerFailed, match="VLLM_SERVER_DEV_MODE=1"):
        sampler.generate(REQUESTS, temperature=1.0)
    sampler.close()
