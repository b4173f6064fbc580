"""Mutual friends: two strangers find out which one friend they have in common."""

from typing import Final

from istar_envs.seeding import CounterRng
from istar_envs.sotopia.families.drawing import pick, sample, word_lists
from istar_envs.sotopia.families.people import first_names
from istar_envs.sotopia.families.setting import make_setting, stream
from istar_envs.sotopia.records import Relationship, Setting
from istar_envs.sotopia.stakes import Friend, FriendsStakes

NUM_FRIENDS: Final = 5
"""Friends that each seat knows."""


def generate(seed: int) -> Setting:
    """Make the friends of a seed.

    Each seat knows five people by first name, job and hobby. Job and hobby together fit one person of the
    whole setting only, but each of them alone also fits others, so half a description does not decide.

    Args:
        seed: Any integer; equal seeds give equal settings everywhere.
    """
    rng = stream(seed, "friends")
    words = word_lists("friends")
    people = _draw_friends(rng)
    common, others = people[0], people[1:]
    lists = (others[: NUM_FRIENDS - 1], others[NUM_FRIENDS - 1 :])
    first, second = (tuple(sample(rng, [common, *known], NUM_FRIENDS)) for known in lists)
    stakes = FriendsStakes((first, second), common.name)
    goals = (pick(rng, words["goals"]).format(friends=_told(known)) for known in stakes.friends)
    first_goal, second_goal = goals
    return make_setting(
        rng,
        f"friends#{seed}",
        Relationship.STRANGER,
        context=pick(rng, words["contexts"]),
        goals=(first_goal, second_goal),
        stakes=stakes,
        hidden=f"The common friend is {common.name}.",
        taken=frozenset(friend.name for friend in people),
    )


def _draw_friends(rng: CounterRng) -> list[Friend]:
    """Draw different people from a few jobs and hobbies, so that they share some."""
    words = word_lists("friends")
    count = 2 * NUM_FRIENDS - 1
    jobs, hobbies = sample(rng, words["jobs"], 4), sample(rng, words["hobbies"], 4)
    pairs = sample(rng, [(job, hobby) for job in jobs for hobby in hobbies], count)
    names = sample(rng, first_names(), count)
    return [
        Friend(name, (("job", job), ("hobby", hobby)))
        for name, (job, hobby) in zip(names, pairs, strict=True)
    ]


def _told(friends: tuple[Friend, ...]) -> str:
    return ", ".join(
        f"{friend.name} ({', '.join(value for _, value in friend.attributes)})" for friend in friends
    )
