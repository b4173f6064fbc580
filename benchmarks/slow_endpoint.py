"""A chat endpoint that takes a fixed time for each answer and next to no work: `SECONDS TEXT`.

It says the same text to everybody, on a free port of the loopback interface, until it is killed. Its first
line of output is its address; for each line of input it prints its CPU seconds so far.
"""

import asyncio
import json
import sys
from time import process_time


class SlowAnswers(asyncio.Protocol):
    """One connection; each request is answered by the same bytes after the same time."""

    def __init__(self, seconds: float, answer: bytes) -> None:
        self._seconds, self._answer = seconds, answer
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.rpartition(b"Content-Length: ")[2]):
            self._received = b""
            asyncio.get_running_loop().call_later(self._seconds, self._transport.write, self._answer)


def http_answer(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    body = json.dumps({"model": "slow", "choices": [choice], "usage": usage}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def main(seconds: float, text: str) -> None:
    loop, answer = asyncio.get_running_loop(), http_answer(text)
    server = await loop.create_server(lambda: SlowAnswers(seconds, answer), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    loop.add_reader(sys.stdin, lambda: print(process_time() if sys.stdin.readline() else "", flush=True))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
