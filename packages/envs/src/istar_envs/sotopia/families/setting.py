"""One shape for the settings of all families."""

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.sotopia.families.people import invent_pair
from istar_envs.sotopia.records import ENVIRONMENT, Relationship, Scenario, Segment, Setting, plain
from istar_envs.sotopia.stakes import Stakes


def stream(seed: int, family: str) -> CounterRng:
    """Return the random stream that a setting of a family is drawn from."""
    return CounterRng(derive_seed(seed, "sotopia", family))


def make_setting(
    rng: CounterRng,
    pk: str,
    relationship: Relationship,
    *,
    context: str,
    goals: tuple[str, str],
    stakes: Stakes,
    hidden: str = "",
    taken: frozenset[str] = frozenset(),
) -> Setting:
    """Put a setting together and invent its people.

    Args:
        rng: Where the people are drawn from.
        pk: Id, ``family#seed``.
        relationship: What the two people are to each other.
        context: What both know.
        goals: What each seat wants, with its private numbers.
        stakes: What is checked in the end.
        hidden: What only the judge reads.
        taken: Names that the two people may not have.
    """
    family = pk.partition("#")[0]
    scenario = Scenario(
        pk=pk,
        codename=family,
        source="istar",
        context=(*plain(context), *([Segment(f" {hidden}", ENVIRONMENT)] if hidden else [])),
        goals=(plain(goals[0]), plain(goals[1])),
        relationship=relationship,
        tag="istar",
        stakes=stakes,
    )
    return Setting(scenario, invent_pair(rng, pk, taken=taken), pk)
