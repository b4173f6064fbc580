"""Sends the same kind of requests over many connections at once, as cheaply as Python can."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any

import orjson


class Connection:
    """One connection that stays open."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send a request; returns status and content of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**24)
        reader, writer = self._streams
        data = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return int(answer[9:12]), await reader.readexactly(int(length or b"0"))

    async def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()


class Player:
    """One session that takes the four actions in turn and checks what comes back."""

    def __init__(self, session: str, number: int) -> None:
        self.session, self.number = session, number
        self.sequence = 0
        self.has_ended = True
        self.steps = 0
        self.actions: list[int] = []
        self.latest: dict[str, Any] = {}

    def next_call(self) -> tuple[str, dict[str, Any]]:
        """Return the next call: a reset to the player's own level, or a step."""
        if self.has_ended:
            return "reset", {"sequence": self.sequence + 1, "seed": self.number}
        return "step", {"sequence": self.sequence + 1, "action": (self.number + self.sequence) % 4}

    def take(self, call: dict[str, Any], answer: dict[str, Any]) -> None:
        """Take the answer to the latest call; AssertionError if it is another session's."""
        assert answer["sequence"] == self.sequence + 1
        self.sequence += 1
        if "reward" not in answer:
            self.actions = []
        else:
            self.steps += 1
            self.actions.append(call["action"])
        assert answer["info"]["steps"] == len(self.actions)
        self.has_ended = answer.get("terminated", False) or answer.get("truncated", False)
        self.latest = answer


async def open_players(url: str, env: str, count: int) -> list[Player]:
    """Open sessions and start an episode in each."""
    connection = connect(url)
    players = []
    for number in range(count):
        status, content = await connection.call("POST", "/v1/sessions", {"env": env})
        assert status == 201, content
        player = Player(orjson.loads(content)["session"], number)
        name, body = player.next_call()
        _, content = await connection.call("POST", f"/v1/sessions/{player.session}/{name}", body)
        player.take(body, orjson.loads(content))
        players.append(player)
    await connection.close()
    return players


async def play_singly(
    url: str, players: list[Player], *, connections: int, seconds: float, rate: float | None = None
) -> list[float]:
    """Step all sessions one by one in turn; returns the seconds of each request."""
    latencies: list[float] = []
    stop = perf_counter() + seconds
    gap = connections / rate if rate else 0.0

    async def work(mine: list[Player], delay: float) -> None:
        connection = connect(url)
        due = perf_counter() + delay
        while True:
            for player in mine:
                if gap:
                    await asyncio.sleep(max(0.0, due - perf_counter()))
                    due += gap
                if perf_counter() > stop:
                    await connection.close()
                    return
                name, body = player.next_call()
                began = perf_counter()
                status, content = await connection.call("POST", f"/v1/sessions/{player.session}/{name}", body)
                latencies.append(perf_counter() - began)
                assert status == 200, content
                player.take(body, orjson.loads(content))

    await asyncio.gather(*(work(players[i::connections], gap * i / connections) for i in range(connections)))
    return latencies


async def play_batched(url: str, players: list[Player], *, connections: int, seconds: float) -> None:
    """Step all sessions in batches, one batch for each connection."""
    stop = perf_counter() + seconds

    async def work(mine: list[Player]) -> None:
        connection = connect(url)
        while perf_counter() < stop:
            calls = [player.next_call() for player in mine]
            rows = [
                {"call": name, "session": player.session, **body}
                for player, (name, body) in zip(mine, calls, strict=True)
            ]
            status, content = await connection.call("POST", "/v1/batch", {"calls": rows})
            assert status == 200, content
            for player, (_, body), answer in zip(mine, calls, orjson.loads(content)["answers"], strict=True):
                player.take(body, answer)
        await connection.close()

    await asyncio.gather(*(work(players[i::connections]) for i in range(connections)))


async def abandon(url: str, env: str, *, seconds: float) -> tuple[int, int]:
    """Open sessions, step each a little and leave it.

    Returns:
        How many were opened, and how many of them expired before their steps were made: those that a busy
        machine did not come back to in time.
    """
    connection, stop, count, expired = connect(url), perf_counter() + seconds, 0, 0
    while perf_counter() < stop:
        status, content = await connection.call("POST", "/v1/sessions", {"env": env})
        if status == 503:
            await asyncio.sleep(0.05)
            continue
        player = Player(orjson.loads(content)["session"], count)
        for _ in range(5):
            name, body = player.next_call()
            status, content = await connection.call("POST", f"/v1/sessions/{player.session}/{name}", body)
            answer = orjson.loads(content)
            if answer.get("error") == "SessionLost":
                expired += 1
                break
            player.take(body, answer)
        count += 1
    await connection.close()
    return count, expired


def connect(url: str) -> Connection:
    """Return a connection to a server; it opens at the first call."""
    host, _, port = url.removeprefix("http://").partition(":")
    return Connection(host, int(port))


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that a share of all stays below."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
