"""Run by test_interop.py where verifiers is: it rolls our taskset out with a scripted model behind HTTP."""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import istar_taskset
import verifiers.v1 as vf
from interop_game import SOKOBAN, plan
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment

SEED = 3


def model(moves: list[str]) -> ThreadingHTTPServer:
    """An OpenAI-compatible endpoint that plays the moves, one for each earlier reply in the request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = sum(message["role"] == "assistant" for message in asked["messages"])
            delta = {"role": "assistant", "content": f"<action>{moves[number]}</action>"}
            events = [
                {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
            ]
            shared = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
            lines = [*(json.dumps({**shared, **event}) for event in events), "[DONE]"]
            body = "".join(f"data: {line}\n\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def rollout(base_url: str) -> tuple[vf.Episode, int]:
    """Roll the first task out; returns the episode and the number of tasks."""
    player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    taskset = istar_taskset.IstarConfig(
        id="istar-taskset", env=SOKOBAN, template="act-v1", first_seed=SEED, num_tasks=3
    )
    env = load_environment(istar_taskset.IstarEnvConfig(taskset=taskset, player=player))
    client = EvalClientConfig(base_url=base_url, api_key_var="NO_KEY")
    tasks = list(env.taskset)
    async with env.serving():
        slot = env.slots(tasks[0])[0]
        episode = await env.run_slot(slot, ModelContext(model="scripted", client=client))
    return episode, len(tasks)


def main() -> None:
    """Roll one task out and print what the trace says."""
    moves, total = plan(SEED)
    server = model(moves)
    episode, tasks = asyncio.run(rollout(f"http://127.0.0.1:{server.server_port}/v1"))
    trace = episode.traces[0]
    print(
        json.dumps(
            {
                "rewards": {name: reward.score for name, reward in trace.rewards.items()},
                "metrics": trace.metrics,
                "errors": [str(error) for error in (*episode.errors, *trace.errors)],
                "turns": trace.num_turns,
                "tasks": tasks,
                "moves": len(moves),
                "return": total,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
