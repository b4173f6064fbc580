"""Run by test_interop.py where OpenEnv is: its generic client plays our server over a websocket."""

import json
import socket
import sys
import threading
import time

import httpx
import uvicorn
from openenv.core import GenericEnvClient

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.interop.openenv import create_app

SEED = 3


def serve(name: str) -> tuple[str, uvicorn.Server]:
    """Serve an environment from a thread; returns its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(name, template="act-v1"), log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{listener.getsockname()[1]}", server


def main() -> None:
    """Play the expert's replies there and here, side by side; print what was seen."""
    seen = {}
    for name in ("istar/Sokoban-v0", "istar/VisualSokoban-v0", "istar/WebShop-v1"):
        url, server = serve(name)
        here = Conversation(istar_envs.make(name), template="act-v1", window=2)
        here.reset(seed=SEED)
        language = here.env.unwrapped.language
        with GenericEnvClient(base_url=url).sync() as client, GenericEnvClient(base_url=url).sync() as other:
            there = client.reset(seed=SEED)
            other.reset(seed=SEED + 1)
            shapes = []
            replies = ["no action at all"]
            while not there.done:
                shown = there.observation["messages"][-1]["content"]
                local = here.messages()[-1]["content"]
                same = shown == local if isinstance(local, str) else shown[0] == local[0]
                shapes.append(same)
                expert = f"<action>{language.name(here.env.unwrapped.expert_action())}</action>"
                reply = replies.pop() if replies else expert
                there, step = client.step({"reply": reply}), here.respond(reply)
                shapes.append(there.reward == step.reward and there.metadata["valid"] == step.valid)
            seen[name] = {
                "same": all(shapes),
                "steps": client.state()["step_count"],
                "other": other.state()["step_count"],
                "success": there.metadata["success"],
                "left": there.observation["messages"],
                "pictures": isinstance(local, list) and shown[1]["image_url"]["url"][:22],
                "schema": httpx.get(f"{url}/schema").json()["action"]["required"],
            }
        server.should_exit = True
    print(json.dumps(seen))


if __name__ == "__main__":
    sys.exit(main())
