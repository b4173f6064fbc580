"""A few trajectories of a run as HTML: each step with what was seen, done and credited.

All text of a model or an environment is escaped. Which trajectories were recorded is the trainer's
choice; here only a handful of them is picked.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from istar_envs.episode import ImageStore
from istar_envs.sokoban.render import image_of_text, png_bytes
from istar_trainer.report.records import CreditRecord

_TILE: Final = 16
_BOARD: Final = re.compile(r"(?:^[-#.$*@+ ]*#[-#.$*@+ ]*$\n?){3,}", re.MULTILINE)
_BOARD_ENVS: Final = ("istar/Sokoban", "istar/VisualSokoban")


@dataclass(frozen=True, slots=True)
class Scale:
    """The values that fill a whole half of a bar, shared by all trajectories of a report.

    Attributes:
        advantage: Largest absolute outcome or step part.
        reward: Largest absolute implicit reward.
    """

    advantage: float
    reward: float


def trajectories_html(records: Sequence[CreditRecord], images: Path) -> str:
    """Draw a few trajectories.

    Args:
        records: Everything recorded; at least one.
        images: Folder of the pictures that visual environments showed, by content hash.

    Returns:
        A legend and one article a trajectory.
    """
    chosen = choose(records)
    scale = _scale(chosen)
    shown = f"{len(chosen)} of {len(records)} recorded trajectories, newest first. "
    legend = (
        f'<p class="soft">{shown}Bars to the right are positive; the outcome and step parts add up to the '
        "advantage of the step.</p>"
        '<p class="legend small"><span class="outcome"><i></i>outcome part A<sup>E</sup></span>'
        '<span class="step-part"><i></i>step part α·A<sup>S</sup></span>'
        '<span class="implicit"><i></i>implicit reward r (own scale)</span></p>'
    )
    store = ImageStore(images)
    return legend + "".join(_article(record, scale, store) for record in chosen)


def choose(records: Sequence[CreditRecord]) -> list[CreditRecord]:
    """Pick up to two successes and two failures of the newest iteration and one of each of the oldest."""
    newest = max(record.iteration for record in records)
    oldest = min(record.iteration for record in records)
    picked = []
    for iteration, count in ((newest, 2), (oldest, 1)):
        here = [record for record in records if record.iteration == iteration and record not in picked]
        for success in (True, False):
            picked += [record for record in here if record.episode.success is success][:count]
    return picked


def _scale(records: Sequence[CreditRecord]) -> Scale:
    steps = [(record, step) for record in records for step in record.steps]
    parts = [abs(record.outcome_advantage) for record in records]
    parts += [abs(step.advantage - record.outcome_advantage) for record, step in steps]
    return Scale(
        advantage=max(parts, default=0.0) or 1.0,
        reward=max((abs(step.implicit_reward) for _, step in steps), default=0.0) or 1.0,
    )


def _article(record: CreditRecord, scale: Scale, store: ImageStore) -> str:
    episode = record.episode
    tag = (
        '<span class="tag good">success</span>' if episode.success else '<span class="tag bad">failure</span>'
    )
    outcome = "no verdict" if record.outcome is None else f"outcome {record.outcome:g}"
    facts = (
        f"iteration {record.iteration} · group {record.group_id} · {episode.task_id} · {outcome} · "
        f"outcome advantage {record.outcome_advantage:+.3f} · {len(record.steps)} steps · {episode.end}"
    )
    cells = [_step(index, record, scale, store) for index in range(len(record.steps))]
    if episode.final_observation:
        end = _view(episode.final_observation, None, record, store)
        cells.append(f'<li>{end}<p class="action"><span class="soft">end</span></p></li>')
    kind = "steps" if any("<img" in cell for cell in cells) else "steps text"
    return (
        f'<article class="trajectory"><h3>Trajectory {escape(str(record.trajectory_id))} {tag}</h3>'
        f'<p class="soft small">{escape(facts)}</p><ol class="{kind}">{"".join(cells)}</ol></article>'
    )


def _step(index: int, record: CreditRecord, scale: Scale, store: ImageStore) -> str:
    transition, step = record.episode.transitions[index], record.steps[index]
    view = _view(transition.observation, transition.image, record, store)
    if transition.valid:
        action, reason = escape(transition.action or ""), ""
    else:
        action = '<span class="bad">invalid</span>'
        reason = f'<p class="small">{escape(transition.invalid_reason or "no reason given")}</p>'
    bars = (
        _bar("outcome", record.outcome_advantage, scale.advantage)
        + _bar("step-part", step.advantage - record.outcome_advantage, scale.advantage)
        + _bar("implicit", step.implicit_reward, scale.reward)
    )
    exact = (
        f"credit {step.credit:+.5f}, step advantage {step.step_advantage:+.4f}, "
        f"advantage {step.advantage:+.4f}"
    )
    return (
        f'<li>{view}<p class="action"><span class="soft">{index + 1}</span> {action}</p>'
        f'<div title="{exact}">{bars}</div>'
        f"<details><summary>reply</summary>{reason}<pre>{escape(transition.reply)}</pre></details></li>"
    )


def _bar(kind: str, value: float, full: float) -> str:
    """Draw one value to the left or right of the middle."""
    width = min(abs(value) / full, 1.0) * 50
    left = 50.0 if value >= 0 else 50 - width
    digits = 3 if kind == "implicit" else 2
    fill = f'<i style="left:{left:.1f}%;width:{width:.1f}%"></i>'
    return (
        f'<div class="bar {kind}"><span class="half">{fill}</span>'
        f'<span class="number">{value:+.{digits}f}</span></div>'
    )


def _view(observation: str, image: str | None, record: CreditRecord, store: ImageStore) -> str:
    """Show what the agent saw: the picture it got, a drawn board, or its text."""
    if image is not None:
        try:
            return _img(store.get(image), "what the agent saw")
        except KeyError:
            return f"<pre>picture {escape(image[:12])} is not in the run folder</pre>"
    boards = _BOARD.findall(observation) if record.episode.env_id.startswith(_BOARD_ENVS) else []
    if boards:
        board = boards[-1].strip("\n")
        return _img(png_bytes(image_of_text(board, _TILE)), board)
    return f"<pre>{escape(observation)}</pre>" if observation else ""


def _img(png: bytes, alt: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
