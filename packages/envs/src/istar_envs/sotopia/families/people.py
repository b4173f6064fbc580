"""Invented people."""

from istar_envs.seeding import CounterRng
from istar_envs.sotopia.families.drawing import between, pick, word_lists
from istar_envs.sotopia.records import AgentProfile

_GENDERS = (("Woman", "she/her", "women"), ("Man", "he/him", "men"), ("Nonbinary", "they/them", "others"))
_GENDER_OF_TENTH = (0, 0, 0, 0, 0, 1, 1, 1, 1, 2)


def invent_pair(
    rng: CounterRng, pk: str, *, taken: frozenset[str] = frozenset()
) -> tuple[AgentProfile, AgentProfile]:
    """Invent two people with different first and last names.

    Args:
        rng: Where the draws come from.
        pk: Id of the setting that they are for.
        taken: Names that neither may have.
    """
    first = _invent(rng, f"{pk}/0", taken)
    return first, _invent(rng, f"{pk}/1", taken | {first.first_name, first.last_name})


def first_names() -> tuple[str, ...]:
    """Return all first names there are, without repetition."""
    words = word_lists("people")
    return tuple(dict.fromkeys(name for _, _, key in _GENDERS for name in words[key].split()))


def _invent(rng: CounterRng, pk: str, taken: frozenset[str]) -> AgentProfile:
    words = word_lists("people")
    gender, pronouns, key = _GENDERS[pick(rng, _GENDER_OF_TENTH)]
    first = pick(rng, [name for name in words[key].split() if name not in taken])
    last = pick(rng, [name for name in words["last_names"].split() if name not in taken])
    return AgentProfile(
        pk=pk,
        first_name=first,
        last_name=last,
        age=between(rng, 19, 75),
        occupation=pick(rng, words["occupations"]),
        gender=gender,
        pronouns=pronouns,
        public_info=f"{first} {pick(rng, words['pastimes'])}.",
        personality=pick(rng, words["characters"]),
        secret=f"{first} {pick(rng, words['secrets'])}.",
        tag="istar",
    )
