"""vLLM's server in a process group that does not outlive the trainer; standard library only.

    python -P serve.py --model DIR …

Run by the interpreter that has vLLM. The trainer holds the other end of standard input; when it ends,
however it ends, so do the server and its workers. They find ``istar_receiver`` beside this file.
"""

import os
import runpy
import signal
import sys
import threading


def end_with_parent() -> None:
    """Wait for the end of standard input, which the trainer's end brings, and end the whole group at once."""
    while os.read(sys.stdin.fileno(), 1):
        continue
    os.killpg(os.getpgid(0), signal.SIGKILL)


def share_folder() -> None:
    """Let this process and those that it starts import what lies beside this file."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    share_folder()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
