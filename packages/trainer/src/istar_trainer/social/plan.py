"""What an evaluation plays: which scenarios, with which people, from which seats."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from istar_envs.errors import ConfigError, suggest
from istar_envs.sotopia.book import FAMILIES, open_book
from istar_envs.sotopia.records import Setting
from istar_trainer.social.options import SocialEvalArgs

ALL, HARD = "all", "hard"
"""Names of the published sets; ``all`` also means every own family."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation and everybody who plays it.

    Attributes:
        pk: Unique id; the unit that intervals resample.
        family: Where it is from: an own family, or the source of a published scenario.
        settings: It with each pair of people.
        is_hard: Whether it is one of the published hard ones.
    """

    pk: str
    family: str
    settings: tuple[Setting, ...]
    is_hard: bool = False

    @property
    def is_checkable(self) -> bool:
        """Whether what is agreed on decides how far the goals are reached."""
        return self.settings[0].scenario.stakes is not None

    def playings(self, episodes: int | None) -> list[tuple[Setting, int]]:
        """Return what is played from each seat: settings, and how often each was played before.

        Args:
            episodes: How many; pairs of people take turns. None for each pair once.
        """
        pairs = len(self.settings)
        places = range(pairs if episodes is None else episodes)
        return [(self.settings[place % pairs], place // pairs) for place in places]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played.

    Attributes:
        scenarios: In a fixed order.
        left_out: Scenarios that were wanted but cannot be scored by rule.
    """

    scenarios: tuple[Scenario, ...]
    left_out: int = 0


def make_plan(args: SocialEvalArgs) -> Plan:
    """Choose the scenarios.

    Without a model judge, scenarios that no rule can score are left out and counted.

    Raises:
        ConfigError: If there is no such family or set, or nothing that can be scored.
        MissingAsset: If a published file is missing.
    """
    chosen = _own(args) if args.data_dir is None else _published(args.data_dir, args)
    playable = [s for s in chosen if s.is_checkable] if args.judge == "verifier" else chosen
    if not playable:
        raise ConfigError(
            f"none of the {len(chosen)} scenarios of {args.scenarios!r} can be scored by rule. "
            "Let a model judge: --judge llm."
        )
    return Plan(tuple(playable), len(chosen) - len(playable))


def _own(args: SocialEvalArgs) -> list[Scenario]:
    if args.scenarios == HARD:
        raise ConfigError(
            "--scenarios hard is a set of the published files. Give their folder by --data-dir."
        )
    _require_known(args.scenarios, [ALL, *FAMILIES])
    families = FAMILIES if args.scenarios == ALL else (args.scenarios,)
    books = {family: open_book(family) for family in families}
    return [
        Scenario(pk, family, (book.setting(pk),))
        for family, book in books.items()
        for pk in book.pks(args.split)[: args.max_scenarios]
    ]


def _published(folder: Path, args: SocialEvalArgs) -> list[Scenario]:
    book, hard = open_book(folder), frozenset(open_book(folder, subset="hard").pks("test"))
    pairs: defaultdict[str, list[Setting]] = defaultdict(list)
    for setting in map(book.setting, book.pks("test")):
        pairs[setting.scenario.pk].append(setting)
    known = [
        Scenario(pk, settings[0].scenario.source, tuple(settings), settings[0].pk in hard)
        for pk, settings in pairs.items()
    ]
    families = sorted({scenario.family for scenario in known})
    _require_known(args.scenarios, [ALL, HARD, *families])
    chosen = [s for s in known if args.scenarios in (ALL, s.family) or (args.scenarios == HARD and s.is_hard)]
    return [s for family in families for s in _of(family, chosen)[: args.max_scenarios]]


def _of(family: str, scenarios: Sequence[Scenario]) -> list[Scenario]:
    return [scenario for scenario in scenarios if scenario.family == family]


def _require_known(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(f"no scenarios {name!r} (--scenarios).{suggest(name, known)}")
