"""Numbers as people read them, on the terminal and on the page."""


def percent_range(low: float, high: float) -> str:
    """Write two shares as a range of percents, e.g. ``40.2–49.9``."""
    return f"{100 * low:.1f}–{100 * high:.1f}"


def score_range(score: float | None, interval: tuple[float, float] | None) -> str:
    """Write a score with its interval, e.g. ``0.41 [0.37–0.45]``; nothing for no score."""
    if score is None:
        return ""
    return f"{score:.2f}" + (f" [{interval[0]:.2f}–{interval[1]:.2f}]" if interval else "")


def clock_time(seconds: float) -> str:
    """Write a duration as ``1:05`` or ``2:00:05``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
