"""A scripted server whose workers are processes that get weights by broadcast.

They run the receiver's file as vLLM's workers do: beside nothing else of this repository.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fake_vllm import FakeVllm, NumberBrain
from istar_trainer.vllm.served import istar_receiver

WORKER = """
import json, os, signal, sys, torch
from istar_receiver import WeightReceiver

RANK, FATE = int(sys.argv[1]), sys.argv[2]

class Worker(WeightReceiver):
    rank, device = RANK, torch.device("cpu")

    def reload_weights(self, weights_iterator):
        self.held = {}
        for name, tensor in weights_iterator:
            values = tensor.tolist() if tensor.numel() < 100 else float(tensor.sum())
            self.held[name] = [str(tensor.dtype), list(tensor.shape), values]
            if FATE == "dies": os.kill(os.getpid(), signal.SIGKILL)
            if FATE == "freezes": os.kill(os.getpid(), signal.SIGSTOP)
            if FATE == "fails": raise ValueError("a tensor does not fit")

worker = Worker()
print("ready", flush=True)
for line in sys.stdin:
    try:
        worker.receive_weights(**json.loads(line))
        answer = {"held": worker.held, "group": id(worker.weight_group[1])}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""


class ReceivingVllm(FakeVllm):
    """One server. Its weights are the tensor ``number``.

    Args:
        port: Where to listen.
        num_workers: How many share the model.
        fate: What befalls the last worker at its first tensor: it ``dies``, ``freezes`` or ``fails``.
    """

    def __init__(self, port: int, *, num_workers: int = 1, fate: str = "", **options: Any) -> None:
        super().__init__(NumberBrain(), port=port, **options)
        env = {**os.environ, "PYTHONPATH": str(Path(istar_receiver.__file__).parent)}
        command = [sys.executable, "-P", "-c", WORKER]
        self.transfers: list[list[Any]] = []
        self.workers = [
            subprocess.Popen(
                [*command, str(rank), fate if rank == num_workers - 1 else ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(num_workers)
        ]
        for worker in self.workers:
            worker.stdout.readline()

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        super().kill()

    def crash(self) -> None:
        super().kill()

    def close(self) -> None:
        self.kill()
        for worker in self.workers:
            worker.communicate()

    def _answer(self, path: str, body: Any) -> Any:
        if path != "/collective_rpc":
            return super()._answer(path, body)
        if body["method"] == "weight_rank":
            return 200, {"results": [str(rank) for rank, _ in enumerate(self.workers, start=1)]}
        for worker in self.workers:
            worker.stdin.write(json.dumps(body["kwargs"]) + "\n")
            worker.stdin.flush()
        lines = [worker.stdout.readline() for worker in self.workers]
        if not all(lines):
            return "crash"
        answers = [json.loads(line) for line in lines]
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            message = f"Call to collective_rpc method failed: {errors[0]}"
            return 500, {"error": {"message": message, "type": "InternalServerError", "code": 500}}
        self.transfers.append(answers)
        self.brain.value = int(answers[0]["held"]["number"][2])
        return 200, {"results": [None] * len(answers)}
