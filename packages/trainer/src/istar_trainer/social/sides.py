"""Who plays: scripted people, chat models, local models and recordings, by what the user named."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from istar_envs.chat import ChatClient
from istar_envs.episode import Episode, read_episodes
from istar_envs.errors import ConfigError, suggest
from istar_envs.seeding import derive_seed
from istar_envs.sotopia.grammar import ParseError, parse_action
from istar_envs.sotopia.partners.base import PartnerFailed, Reply
from istar_envs.sotopia.partners.choose import PARTNERS
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_judges.budget import Budget
from istar_trainer.social.dialogues import Chair, PartnerPlayer, Player, Role
from istar_trainer.social.options import ENDPOINT, Endpoint, SocialEvalArgs


@dataclass(frozen=True)
class Side:
    """Somebody who takes seats.

    Attributes:
        name: Who it is, in which version.
        player: From the number of the playing of a setting to who plays it; the same player for all
            numbers, if its draws go by number anyway.
        needs_stakes: Whether it can play checkable scenarios only.
        budget: What it spent, if it is an endpoint.
        close: Closes its connections.
    """

    name: str
    player: Callable[[int], Player]
    needs_stakes: bool = False
    budget: Budget | None = None
    close: Callable[[], None] = lambda: None


def make_side(args: SocialEvalArgs, role: Role) -> Side:
    """Make the policy or the partner.

    Raises:
        ConfigError: If there is no such name, folder or file, or a model cannot be used.
    """
    who = args.policy if role == "policy" else args.opposite
    if who in PARTNERS:
        partner = PARTNERS[who]()
        player = PartnerPlayer(partner)
        return Side(partner.name, lambda _: player, needs_stakes=True)
    if who == ENDPOINT:
        return _model_behind(args.endpoint(role), args, role)
    if Path(who).is_dir():
        return _local_model(Path(who), args, role)
    if Path(who).is_file():
        replayed = Replay(read_episodes(Path(who)), who)
        return Side(f"replay of {Path(who).name}", lambda _: replayed)
    raise ConfigError(
        f"no {role} {who!r}: neither a name nor a folder nor a file of episodes."
        f"{suggest(who, [*PARTNERS, ENDPOINT])}"
    )


def make_chat(endpoint: Endpoint, args: SocialEvalArgs) -> tuple[ChatClient, Budget]:
    """Make the client of an endpoint, and what counts its tokens."""
    prompt_price, completion_price = endpoint.price
    budget = Budget(max_tokens=endpoint.budget, prompt_price=prompt_price, completion_price=completion_price)
    chat = ChatClient(
        endpoint.url,
        endpoint.model,
        api_key_env=endpoint.key_env,
        timeout_s=args.timeout_s,
        max_retries=args.retries,
        concurrency=args.concurrency,
        meter=budget,
    )
    return chat, budget


class Replay:
    """Repeats what was recorded in the same task from the same seat, whatever the other seat does.

    Args:
        episodes: The recordings; the k-th of a task is for its k-th playing.
        source: Where they are from, for messages.
    """

    def __init__(self, episodes: Iterable[Episode], source: str) -> None:
        self._source = source
        self._recorded: dict[str, list[list[Reply]]] = {}
        for episode in episodes:
            self._recorded.setdefault(episode.task_id, []).append(_replies(episode))

    def act_many(self, chairs: Sequence[Chair]) -> list[Reply | PartnerFailed]:
        """Return the recorded actions of this turn."""
        return [self._reply(chair) for chair in chairs]

    def _reply(self, chair: Chair) -> Reply | PartnerFailed:
        task, turn = chair.game.task_id, len(chair.transitions)
        recordings = self._recorded.get(task, [])
        if chair.number >= len(recordings):
            return PartnerFailed(f"{self._source} holds {len(recordings)} episodes of task {task}")
        replies = recordings[chair.number]
        if turn >= len(replies):
            return PartnerFailed(f"the recording of task {task} in {self._source} ends after {turn} actions")
        return replies[turn]


def _replies(episode: Episode) -> list[Reply]:
    acted = [t for t in episode.transitions if t.action is not None or not t.valid]
    unreadable = ParseError("syntax", (0, 0), "it was unreadable when it was recorded")
    return [unreadable if t.action is None else parse_action(t.action, "plain") for t in acted]


def _model_behind(endpoint: Endpoint, args: SocialEvalArgs, role: Role) -> Side:
    chat, budget = make_chat(endpoint, args)

    @cache
    def player(number: int) -> Player:
        """Make the player of one playing; its draws differ from those of the others."""
        return PartnerPlayer(
            LlmPartner(
                chat,
                temperature=args.temperature,
                max_tokens=args.max_response_tokens,
                seed=derive_seed(args.seed, role, number),
            )
        )

    return Side(endpoint.model, player, budget=budget, close=chat.close)


def _local_model(folder: Path, args: SocialEvalArgs, role: Role) -> Side:
    from istar_trainer.social.local_model import Prompting, load_player

    given = Prompting(args.template, args.window, max_response_tokens=args.max_response_tokens)
    seed = derive_seed(args.seed, role)
    player = load_player(folder, given, temperature=args.temperature, seed=seed)
    return Side(str(folder), lambda _: player)
