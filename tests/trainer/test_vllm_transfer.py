"""Weights by broadcast, between real processes over gloo: they arrive whole, or the loss is noticed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_vllm import FakeVllm, NumberBrain
from istar_trainer.errors import SamplerFailed
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.broadcast import BroadcastTransfer
from istar_trainer.vllm.sampler import VllmSampler
from istar_trainer.vllm.server import VllmServer
from istar_trainer.vllm.wire import SamplerDown
from receiving_vllm import ReceivingVllm

REQUESTS = [Request([5] * (n + 2), seed=n) for n in range(4)]
MODEL = Path("model")
PATIENCE_S = 300.0
"""For a transfer; whoever noticed a loss only then would take longer than ``SOON_S``."""
SOON_S = 100.0


class Hall:
    """Starts servers, the first ones with a fate, and knows them all."""

    def __init__(self) -> None:
        self.servers: list[ReceivingVllm] = []
        self.fates: list[str] = []
        self.num_workers = 1

    def start(self, flags: list[str]) -> ReceivingVllm:
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        fate = self.fates[len(self.servers)] if len(self.servers) < len(self.fates) else ""
        server = ReceivingVllm(int(options["--port"]), num_workers=self.num_workers, fate=fate)
        self.servers.append(server)
        return server


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    for server in hall.servers:
        server.close()


def make_server(hall: Hall, **options: Any) -> VllmServer:
    settings = {"concurrency": 2, "start_timeout_s": 300.0, "request_timeout_s": PATIENCE_S, **options}
    start = None if "url" in options else hall.start
    return VllmServer(
        lambda model: {"model": str(model)}, start_process=start, pixels=torch.float32, **settings
    )


def make_transfer(server: VllmServer, **options: Any) -> BroadcastTransfer:
    settings = {"dtype": None, "join_timeout_s": 300.0, "timeout_s": PATIENCE_S, **options}
    return BroadcastTransfer(server, MODEL, dict, device=torch.device("cpu"), **settings)


def make_sampler(server: VllmServer, **options: Any) -> VllmSampler:
    settings = {"eos_token_id": 2, "max_new_tokens": 8, "probe_band": 0.1, "max_restarts": 2}
    transfer = make_transfer(server, **options)
    sampler = VllmSampler(
        server, transfer, score=lambda ids, pictures: [-float(weights["number"])] * (len(ids) - 1), **settings
    )
    weights = {"first": torch.zeros(3), "number": torch.tensor(7.0), "last": torch.ones(3_000_000)}
    sampler.load(weights, 4)
    return sampler


def expected(value: int) -> list[Completion]:
    """What a server with some weights replies to ``REQUESTS``."""
    return [Completion((n + 2, n, value), (-float(value),) * 3) for n in range(4)]


def told(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: [str(t.dtype), list(t.shape), t.tolist()] for name, t in tensors.items()}


def test_all_workers_hold_every_tensor_bit_for_bit_and_stay_in_their_group(hall):
    hall.num_workers = 2
    server = make_server(hall)
    transfer = make_transfer(server)
    tensors = {
        "number": torch.tensor(3),
        "matrix": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).T,
        "half": torch.tensor([1.0, -0.3], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 2),
        "learnt": torch.nn.Parameter(torch.tensor([0.1])),
    }
    transfer.start()
    for number in (3, 4):
        tensors["number"] = torch.tensor(number)
        transfer.take(tensors, number)
        transfer.give()
    first, second = hall.servers[0].transfers
    assert [answer["held"] for answer in second] == [told(tensors)] * 2
    assert [answer["group"] for answer in first] == [answer["group"] for answer in second]
    paths = [path for path, _ in hall.servers[0].calls]
    assert paths[-2:] == ["/reset_prefix_cache", "/reset_encoder_cache"]
    server.close()


def test_numbers_are_sent_in_the_precision_of_the_sampler(hall):
    server = make_server(hall)
    transfer = make_transfer(server, dtype=torch.bfloat16)
    tensors = {"number": torch.tensor(3), "matrix": torch.tensor([[0.1, 0.2]])}
    transfer.take(tensors, 1)
    transfer.start()
    transfer.give()
    (answer,) = hall.servers[0].transfers[0]
    assert answer["held"] == told({**tensors, "matrix": tensors["matrix"].bfloat16()})
    server.close()


@pytest.mark.parametrize(
    ("fate", "timeout_s"), [("dies", PATIENCE_S), ("freezes", 10.0)], ids=["dies", "freezes"]
)
def test_a_server_that_is_lost_amid_a_transfer_is_started_again_and_gets_all_weights(hall, fate, timeout_s):
    hall.fates = [fate]
    server = make_server(hall, request_timeout_s=timeout_s)
    sampler = make_sampler(server, timeout_s=timeout_s)
    start = time.monotonic()
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
    assert time.monotonic() - start < SOON_S
    assert len(hall.servers) == 2
    assert not hall.servers[0].transfers
    assert len(hall.servers[1].transfers) == 1
    sampler.close()


def test_a_server_that_is_lost_between_transfers_gets_the_weights_anew(hall):
    sampler = make_sampler(make_server(hall))
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
    hall.servers[0].kill()
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
    assert [len(server.transfers) for server in hall.servers] == [1, 1]
    sampler.close()


def test_workers_that_outlive_their_server_do_not_keep_the_sender_waiting(hall):
    sampler = make_sampler(make_server(hall))
    sampler.generate(REQUESTS, temperature=1.0)
    hall.servers[0].intercept = lambda path, body: "crash" if path == "/collective_rpc" else None
    sampler.load({"large": torch.zeros(3_000_000), "number": torch.tensor(7.0)}, 5)
    start = time.monotonic()
    assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
    assert time.monotonic() - start < SOON_S
    sampler.close()


def test_workers_that_cannot_use_what_they_get_say_why(hall):
    hall.fates = ["fails"]
    server = make_server(hall)
    transfer = make_transfer(server)
    transfer.take({f"t{n}": torch.zeros(2_000_000) for n in range(8)}, 1)
    transfer.start()
    start = time.monotonic()
    with pytest.raises(SamplerDown, match=r"HTTP 500.*a tensor does not fit"):
        transfer.give()
    assert time.monotonic() - start < SOON_S, "it waited for a worker that was no longer there"
    server.close()


def test_a_worker_that_never_joins_is_given_up_in_time(hall):
    over = threading.Event()

    def intercept(path: str, body: Any) -> Any:
        return over.wait(PATIENCE_S) and None if body and body.get("method") == "receive_weights" else None

    running = ReceivingVllm(0, intercept=intercept)
    hall.servers.append(running)
    server = make_server(hall, url=running.url)
    sampler = make_sampler(server, join_timeout_s=0.5)
    with pytest.raises(
        SamplerFailed,
        match=r"not all of vLLM's 1 workers came to 127\.0\.0\.1:\d+ within 0\.5 s \(sampler\.start_timeout",
    ):
        sampler.generate(REQUESTS, temperature=1.0)
    running.kill()
    over.set()
    sampler.close()


def test_a_server_that_runs_already_keeps_its_workers_for_the_next_run(hall, caplog):
    running = ReceivingVllm(0)
    hall.servers.append(running)
    for _ in range(2):
        sampler = make_sampler(make_server(hall, url=running.url))
        assert sampler.generate(REQUESTS, temperature=1.0) == expected(7)
        sampler.close()
    assert running.exit_code is None
    assert len(running.transfers) == 2
    assert not caplog.text, "a worker took the group of the first run for that of the second"


def test_a_server_whose_workers_cannot_receive_is_refused_with_advice(hall):
    cause = "Call to collective_rpc method failed: Method 'weight_rank' is not implemented."
    failure = {"error": {"message": cause}}
    running = FakeVllm(
        NumberBrain(), intercept=lambda path, body: (500, failure) if path == "/collective_rpc" else None
    )
    server = make_server(hall, url=running.url)
    with pytest.raises(SamplerFailed, match=r"--worker-extension-cls istar_receiver\.WeightReceiver"):
        make_transfer(server).start()
    server.close()
    running.kill()
