"""The status page: what is open, how fast it goes, what went wrong lately. It needs no script."""

import base64
import hashlib
import time
from functools import lru_cache
from pathlib import Path

from flask import Response, render_template

from istar_envs import __version__
from istar_envs.server.service import Service


def status_page(service: Service) -> Response:
    """Show a server to people.

    Args:
        service: What is served.
    """
    metrics, style = service.metrics, _style()
    sessions = service.open_sessions()
    page = render_template(
        "status.html",
        style=style,
        state=service.state,
        since=_clock(metrics.started_at, "%Y-%m-%d %H:%M:%S UTC"),
        version=__version__,
        sessions=sessions,
        num_sessions=sum(sessions.values()),
        max_sessions=service.limits.max_sessions,
        rate_10=metrics.step_rate(10),
        rate_60=metrics.step_rate(60),
        median=_duration(metrics.step_quantile(0.5)),
        tail=_duration(metrics.step_quantile(0.99)),
        num_steps=metrics.total("steps"),
        num_problems=metrics.total("problems"),
        faults=[{**fault, "time": _clock(fault["time"], "%H:%M:%S")} for fault in list(metrics.faults)],
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = f"style-src 'sha256-{digest}'; img-src data:"
    policy = f"default-src 'none'; {allowed}; frame-ancestors 'none'; base-uri 'none'"
    return Response(page, mimetype="text/html", headers={"Content-Security-Policy": policy})


@lru_cache(maxsize=1)
def _style() -> str:
    return (Path(__file__).parent / "templates" / "status.css").read_text(encoding="utf-8")


def _clock(seconds: float, form: str) -> str:
    return time.strftime(form, time.gmtime(seconds))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.2g} ms" if seconds < 1 else f"{seconds:.1f} s"
