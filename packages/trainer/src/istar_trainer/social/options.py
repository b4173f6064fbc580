"""What ``istar eval --env istar/Sotopia-v0`` can be told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from istar_envs.errors import ConfigError

ENDPOINT = "endpoint"
"""The word for a chat model behind an address."""


@dataclass(frozen=True)
class Endpoint:
    """A chat model behind an OpenAI-compatible address.

    Attributes:
        url: Address up to its version.
        model: Name there.
        key_env: Environment variable with the key, or None.
        budget: Most tokens to spend, or None.
        price: Price of a million prompt tokens and of a million reply tokens.
    """

    url: str
    model: str
    key_env: str | None
    budget: int | None
    price: tuple[float, float]


@dataclass(frozen=True)
class SocialEvalArgs:
    """Evaluate a policy in social episodes; no run configuration is needed."""

    policy: str
    """Who is evaluated: expert, naive, patient, scripted, endpoint, the folder of a run or model, or a file
    of episodes whose actions are repeated."""
    env: Literal["istar/Sotopia-v0"] = "istar/Sotopia-v0"
    """Environment id."""
    protocol: Literal["fixed-partner", "self-play"] = "fixed-partner"
    """fixed-partner: the policy takes one seat, the partner the other; self-play: the policy takes both."""
    partner: str | None = None
    """The other seat of fixed-partner, the same choices as for the policy; scripted if not given."""
    seats: Literal["both", "0", "1"] = "both"
    """Seats that are evaluated; both plays every scenario once from either."""
    scenarios: str = "all"
    """all, the name of a family, or hard (published files only)."""
    data_dir: Path | None = None
    """Folder of the published SOTOPIA files; without it the own families are played."""
    split: Literal["train", "dev", "test"] = "test"
    """Split of the own families."""
    max_scenarios: int = 100
    """Most scenarios of each family, the first ones; no published family has more than 20."""
    episodes_per_scenario: int | None = None
    """Episodes of each scenario and seat, its pairs of people in turn; each pair once if not given."""
    seed: int = 0
    """Seed of every draw of a model and of the intervals."""
    temperature: float = 0.7
    """Sampling temperature of models that play; 0 is greedy."""
    judge: Literal["verifier", "llm"] = "verifier"
    """verifier: what was agreed on decides, where that can be checked; llm: a chat model judges."""
    out: Path | None = None
    """Folder for episodes.jsonl, outcomes.jsonl, result.json and report.md; must be empty."""
    template: str = "act-v1"
    """Prompt template of a model folder; a run folder brings its own."""
    window: int | None = 0
    """Past steps in each prompt of a model folder; None for the full dialogue."""
    max_response_tokens: int = 256
    """Longest reply of a model that plays."""
    concurrency: int = 32
    """Calls at a time to each endpoint."""
    retries: int = 4
    """How often a failed call is repeated."""
    timeout_s: float = 60.0
    """Seconds that a call may take."""
    policy_url: str | None = None
    """Address of the policy's endpoint, such as http://127.0.0.1:8000/v1."""
    policy_model: str | None = None
    """Its model; a dated snapshot for results that count."""
    policy_key_env: str | None = None
    """Environment variable with its key."""
    policy_budget: int | None = None
    """Most tokens it may spend; after that its episodes fail."""
    policy_price: tuple[float, float] = (0.0, 0.0)
    """Price of a million prompt tokens and of a million reply tokens."""
    partner_url: str | None = None
    """As for the policy."""
    partner_model: str | None = None
    """As for the policy."""
    partner_key_env: str | None = None
    """As for the policy."""
    partner_budget: int | None = None
    """As for the policy."""
    partner_price: tuple[float, float] = (0.0, 0.0)
    """As for the policy."""
    judge_url: str | None = None
    """As for the policy."""
    judge_model: str | None = None
    """As for the policy; another model than any that was trained against."""
    judge_key_env: str | None = None
    """As for the policy."""
    judge_budget: int | None = None
    """Most tokens it may spend; after that there are no verdicts."""
    judge_price: tuple[float, float] = (0.0, 0.0)
    """As for the policy."""
    judge_rubric: str = "goal-v1"
    """What it is asked: a shipped rubric with the dimension goal, or a .toml file."""
    judge_cache: Path | None = None
    """File in which verdicts are kept, so that a second pass is free."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or is out of range."""
        if self.protocol == "self-play" and self.partner is not None:
            raise ConfigError("--partner belongs to --protocol fixed-partner; in self-play there is none.")
        if (
            min(self.max_scenarios, 1 if self.episodes_per_scenario is None else self.episodes_per_scenario)
            < 1
        ):
            raise ConfigError("--max-scenarios and --episodes-per-scenario must be >= 1.")
        if self.temperature < 0 or self.max_response_tokens < 1:
            raise ConfigError("--temperature must be >= 0, --max-response-tokens >= 1.")
        self._check_endpoints()

    @property
    def opposite(self) -> str:
        """Who takes the other seat of fixed-partner."""
        return "scripted" if self.partner is None else self.partner

    @property
    def scored_seats(self) -> tuple[int, ...]:
        """Seats that are evaluated."""
        return (0, 1) if self.seats == "both" else (int(self.seats),)

    def endpoint(self, who: Literal["policy", "partner", "judge"]) -> Endpoint:
        """Return the endpoint of the policy, the partner or the judge.

        Raises:
            ConfigError: If its address or model is missing.
        """
        url, model, key_env, budget, price = (
            getattr(self, f"{who}_{name}") for name in ("url", "model", "key_env", "budget", "price")
        )
        if url is None or model is None:
            missing = "url" if url is None else "model"
            raise ConfigError(f"the {who} is an endpoint, but --{who}-{missing} is not given.")
        return Endpoint(url, model, key_env, budget, price)

    def _check_endpoints(self) -> None:
        """Refuse the model of an endpoint that is not asked."""
        asked = {"policy": self.policy == ENDPOINT, "judge": self.judge == "llm"}
        asked["partner"] = self.partner == ENDPOINT
        for who, is_asked in asked.items():
            if getattr(self, f"{who}_model") is not None and not is_asked:
                how = "--judge llm" if who == "judge" else f"--{who} {ENDPOINT}"
                raise ConfigError(f"--{who}-model is given, but the {who} is no endpoint. Add {how}.")
