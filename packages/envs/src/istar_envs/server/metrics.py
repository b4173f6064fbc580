"""Counts, rates and latencies of a server, and how Prometheus reads them.

The text format is a handful of lines, so no client library is needed for it.
"""

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
)  # fmt: skip
"""Upper bounds of the latency histograms, in seconds."""

_RECENT_S: Final = 60


class Histogram:
    """How often a duration fell into which bucket; not safe for threads by itself."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Write the histogram as Prometheus reads it.

        Args:
            name: Name of the metric.
            labels: Its labels, each followed by a comma.
        """
        for bound, count in zip((*BUCKETS, "+Inf"), accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{labels}le="{bound}"}} {count}'
        yield f"{name}_sum{{{labels[:-1]}}} {self._sum!r}"
        yield f"{name}_count{{{labels[:-1]}}} {sum(self._counts)}"


class Metrics:
    """What a server counts; all threads write to one.

    Attributes:
        started_at: When it was made, in seconds since 1970.
        faults: The latest problems, newest first.
    """

    def __init__(self) -> None:
        self.started_at = time.time()
        self.faults: deque[dict[str, Any]] = deque(maxlen=20)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._steps: dict[str, Histogram] = {}
        self._latest: deque[float] = deque(maxlen=2000)
        self._per_second: deque[tuple[int, int]] = deque(maxlen=_RECENT_S + 1)

    def step(self, env: str, seconds: float) -> None:
        """Count a step that an environment carried out in some seconds."""
        now = int(time.monotonic())
        with self._lock:
            histogram = self._steps.get(env)
            if histogram is None:
                histogram = self._steps[env] = Histogram()
            histogram.add(seconds)
            self._counts["steps", env] += 1
            self._latest.append(seconds)
            if self._per_second and self._per_second[-1][0] == now:
                self._per_second[-1] = now, self._per_second[-1][1] + 1
            else:
                self._per_second.append((now, 1))

    def session(self, event: str) -> None:
        """Count a session that was ``opened``, or how it ended."""
        self.count("sessions", event)

    def request(self, route: str, status: int) -> None:
        """Count an answered request."""
        with self._lock:
            self._requests[route, status] += 1

    def fault(self, error: str, **facts: Any) -> None:
        """Count a problem and remember it for the status page."""
        self.count("problems", error)
        self.faults.appendleft({"time": time.time(), "error": error, **facts})

    def count(self, name: str, label: str = "") -> None:
        """Count an event by name and label."""
        with self._lock:
            self._counts[name, label] += 1

    def total(self, name: str) -> int:
        """Return how many events of a name were counted, whatever their label."""
        with self._lock:
            return sum(count for (kind, _), count in self._counts.items() if kind == name)

    def step_rate(self, seconds: int) -> float:
        """Return steps per second over the latest full seconds, 60 at most."""
        now = int(time.monotonic())
        with self._lock:
            counts = [count for second, count in self._per_second if now - seconds <= second < now]
        return sum(counts) / seconds

    def step_quantile(self, share: float) -> float | None:
        """Return the duration that a share of the latest 2,000 steps stayed below, in seconds."""
        with self._lock:
            latest = sorted(self._latest)
        return latest[min(int(share * len(latest)), len(latest) - 1)] if latest else None

    def exposition(self, sessions: Mapping[str, int]) -> str:
        """Write everything in Prometheus' text format.

        Args:
            sessions: Open sessions of each environment.
        """
        with self._lock:
            return "\n".join(self._lines(sessions)) + "\n"

    def _lines(self, sessions: Mapping[str, int]) -> Iterator[str]:
        yield from _family(
            "istar_open_sessions", "gauge", "Open sessions.", _labelled("env", sessions.items())
        )
        for name, label, about in (
            ("sessions", "event", "Sessions opened, and how they ended."),
            ("steps", "env", "Steps that environments carried out."),
            ("replays", "", "Repeated calls that were answered from memory."),
            ("problems", "error", "Requests and calls that were refused or failed."),
        ):
            counts = [(value, count) for (kind, value), count in sorted(self._counts.items()) if kind == name]
            yield from _family(f"istar_{name}_total", "counter", about, _labelled(label, counts))
        requests = (
            f'{{route="{_quoted(route)}",status="{status}"}} {count}'
            for (route, status), count in sorted(self._requests.items())
        )
        yield from _family("istar_requests_total", "counter", "Requests answered.", requests)
        yield "# HELP istar_step_seconds Time that environments took for steps."
        yield "# TYPE istar_step_seconds histogram"
        for env, histogram in sorted(self._steps.items()):
            yield from histogram.lines("istar_step_seconds", f'env="{_quoted(env)}",')
        started = [f" {self.started_at!r}"]
        yield from _family("process_start_time_seconds", "gauge", "Start of the server since 1970.", started)


def _family(name: str, kind: str, about: str, samples: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    yield from (f"{name}{sample}" for sample in samples)


def _labelled(label: str, counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    for value, count in counts:
        yield f'{{{label}="{_quoted(value)}"}} {count}' if label else f" {count}"


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
