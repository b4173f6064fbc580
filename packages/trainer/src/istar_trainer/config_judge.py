"""The section ``judge``: the model that judges dialogues with ``verifier: llm``."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from istar_trainer.config_base import Section


class JudgeConfig(Section):
    """Which model judges, what it is asked, what it may cost and how it is watched."""

    model: str = ""
    """The model to ask, by the endpoint's name; a dated snapshot for results that count."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of an OpenAI-compatible endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the key; null sends none."""
    snapshot: str | None = None
    """The exact model that must answer, if the name is an alias; another one's answer is no verdict."""
    rubric: str = "goal-v1"
    """What is asked: a shipped rubric (``istar_judges.load_rubric``) or the path of a .toml file."""
    dimension: str = "goal"
    """The dimension that becomes the outcome, or ``overall`` for the mean of all."""
    divisor: float = Field(default=10.0, gt=0)
    """With ``outcome: return`` the outcome is the judged score divided by this."""
    threshold: float = 6.0
    """Judged scores above it are successes; the paper's value."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge."""
    samples: int = Field(default=1, ge=1)
    """How often each episode is judged; the median counts."""
    both_orders: bool = False
    """Whether each sample is judged in both orders of the seats."""
    on_injection: Literal["flag", "lowest"] = "flag"
    """``lowest`` gives the lowest score to whoever addresses the judge; ``flag`` only says so."""
    cache: Path | None = None
    """File of verdicts, so that none is paid for twice; null for ``verdicts.sqlite`` in the run folder."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to spend in the whole run, prompts and answers together; null for no limit."""
    concurrency: int = Field(default=32, ge=1)
    """Calls at a time."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that one attempt may take."""
    max_failed_frac: float = Field(default=0.25, ge=0, le=1)
    """Stop the run if a larger share of an iteration's episodes gets no verdict."""
    canaries_every: int = Field(default=10, ge=0)
    """Iterations between passes over the canaries (40 dialogues with known results), which never come
    from the cache; 0 for none."""
