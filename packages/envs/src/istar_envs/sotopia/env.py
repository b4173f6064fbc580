"""The environment ``istar/Sotopia-v0``: one seat of a two-person social episode; the other has a partner.

Dialogue, scenarios, partners, visibility and verdicts have their own modules; here they become a
Gymnasium environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym

from istar_envs.episode import Scorer
from istar_envs.errors import EnvError, ResetNeeded, require_known, suggest
from istar_envs.sotopia.book import open_book
from istar_envs.sotopia.dialogue import Order, Rules
from istar_envs.sotopia.encounter import Encounter
from istar_envs.sotopia.game import Game, PlayOptions, StepResult, conclude, let_partner_act
from istar_envs.sotopia.grammar import PROTOCOLS, ProtocolName, write_action
from istar_envs.sotopia.language import SotopiaLanguage
from istar_envs.sotopia.official import Subset
from istar_envs.sotopia.partners.base import Partner
from istar_envs.sotopia.partners.choose import find_partner
from istar_envs.sotopia.partners.expert import ScriptedExpert
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.partners.patient import PatientPartner
from istar_envs.sotopia.render import Visibility
from istar_envs.sotopia.spaces import SpeechActions
from istar_envs.sotopia.verdict import require_scorer
from istar_envs.spaces import AnyText


@dataclass(frozen=True, slots=True)
class SotopiaSnapshot:
    """Everything that decides how an episode goes on; made by ``clone_state``.

    Attributes:
        game: The episode; never played itself.
        random_state: State of the environment's own generator, which draws the next tasks.
    """

    game: Game
    random_state: dict[str, Any]


class SotopiaEnv(gym.Env[str, str]):
    """A conversation with a private goal.

    Observation: what the seat knows and perceives, as text. Action: text in the notation of
    ``protocol``; anything else is an invalid step that costs a turn and changes nothing. The reward is
    0 until the end and then a tenth of the goal score; where the stakes can be checked, an agreement
    terminates the episode. ``docs/envs/sotopia.md`` explains scenarios, partners, failures and every key
    of ``info``.

    Args:
        scenarios: ``families`` (all checkable ones), ``bargaining``, ``division``, ``friends``,
            ``scheduling``, several of these joined by ``+``, or the folder of the published files.
        split: ``train``, ``dev`` or ``test``.
        subset: Part of the published files: ``all``, ``hard`` or ``drafts``.
        partner: ``scripted``, ``expert``, ``naive``, ``patient``; a mapping with ``model`` and ``base_url``
            of a chat model; or any ``Partner``.
        scorer: Scores episodes without stakes, from 0 to 1; without it they pay nothing.
        seat: ``both`` (each task once from either seat), 0 or 1.
        protocol: Notation of actions: ``plain``, ``react``, ``json`` or ``speech``.
        history: ``all`` shows the whole dialogue in every observation, ``new`` only what is new since
            the last one.
        max_turns: Turns before truncation, both seats' counted, invalid steps included.
        order: ``round_robin``, ``simultaneous`` or ``random``.
        stale_limit: Passes in a row that do not end the dialogue yet.
        legacy_stale: Count passes as published, those of seats that were not asked included.
        legacy_leave: End as published when somebody leaves; no difference between two people.
        visibility: ``strict``, or ``leaky_ampo`` to compare with numbers published that way.
        render_mode: ``ansi`` or None.

    Attributes:
        language: How a language model plays this environment.
        partner: Who takes the other seat.
        scorer: Who scores episodes without stakes, or None.
        options: How episodes are played.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(
        self,
        scenarios: str | Path = "families",
        *,
        split: str = "train",
        subset: Subset = "all",
        partner: str | Mapping[str, Any] | Partner = "scripted",
        scorer: Scorer | None = None,
        seat: Literal["both", 0, 1] = "both",
        protocol: ProtocolName = "plain",
        history: Literal["all", "new"] = "all",
        max_turns: int = 20,
        order: Order = "round_robin",
        stale_limit: int = 2,
        legacy_stale: bool = False,
        legacy_leave: bool = False,
        visibility: Visibility = "strict",
        render_mode: str | None = None,
    ) -> None:
        rules = Rules(max_turns, stale_limit, order, legacy_stale=legacy_stale, legacy_leave=legacy_leave)
        self.options = PlayOptions(rules, protocol, visibility, history)
        require_known("protocol", protocol, PROTOCOLS, "Sotopia")
        require_known("history", history, ("all", "new"), "Sotopia")
        require_known("visibility", visibility, get_args(Visibility), "Sotopia")
        require_known("render_mode", render_mode or "ansi", ("ansi",), "Sotopia")
        if seat not in ("both", 0, 1):
            raise EnvError(f"no seat {seat!r} (Sotopia, option seat). Give 'both', 0 or 1.")
        if scorer is not None:
            require_scorer(scorer)
        self.partner = find_partner(partner)
        self._is_own_partner = isinstance(partner, Mapping)
        self.scorer = scorer
        self.language = SotopiaLanguage(protocol)
        self.render_mode = render_mode
        self.observation_space = AnyText()
        self.action_space = SpeechActions(protocol)
        self._book = open_book(scenarios, subset=subset)
        self._ids = _TaskIds(self._book.pks(split), (0, 1) if seat == "both" else (seat,))
        self._game: Game | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; the partner acts until it is the seat's turn.

        If the partner leaves or fails before that, the first step ends the episode, whatever its action.

        Args:
            seed: Restarts the environment's own generator; equal seeds give equal tasks.
            options: ``{"task_id": str}`` plays that task. Without it one of the split is drawn.

        Returns:
            Observation and ``info``.

        Raises:
            EnvError: If an option or task id is unknown.
        """
        super().reset(seed=seed)
        for name in options or {}:
            if name != "task_id":
                raise EnvError(f"unknown option {name!r} (Sotopia, reset).{suggest(name, ['task_id'])}")
        self._game = game = self.new_game((options or {}).get("task_id", self.draw(self.np_random)))
        self._settle(game)
        return game.start()

    def step(self, action: str) -> StepResult:
        """Say or do something, then let the partner act.

        Args:
            action: Text in the notation of ``protocol``; any text is accepted.

        Returns:
            Observation, reward, terminated (left, stale or agreed), truncated (out of turns, or the partner
            failed) and ``info``. If ``info["failure"]`` says that something broke, the reward is NaN.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            EnvError: If the action is no text.
        """
        game = self._running()
        self.submit(game, action)
        self._settle(game)
        return game.answer()

    def invalid_step(self, reason: str) -> StepResult:
        """Spend one turn on an unreadable reply: nobody perceives anything, ``info`` says why.

        Args:
            reason: Why the reply could not be read; becomes ``info["invalid_reason"]``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        game = self._running()
        game.waste(reason)
        self._settle(game)
        return game.answer()

    def truncate(self) -> StepResult:
        """End the dialogue at a limit of the agent's own, such as a prompt that is full.

        Returns:
            As ``step``, with the verdict found as at any end; ``info["end_reason"]`` is ``prompt_overflow``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        game = self._running()
        if not game.is_over:
            game.encounter.overflow()
        conclude([game], self.scorer)
        return game.answer()

    def clone_state(self) -> SotopiaSnapshot:
        """Return the exact state of the episode, for ``restore_state`` to use any number of times.

        Raises:
            ResetNeeded: Before the first reset.
        """
        return SotopiaSnapshot(self.game.copy(), dict(self.np_random.bit_generator.state))

    def restore_state(self, snapshot: SotopiaSnapshot) -> tuple[str, dict[str, Any]]:
        """Go on from a snapshot of this or an equally configured environment.

        Returns:
            Observation (the whole dialogue) and ``info`` of that state.
        """
        self._game = snapshot.game.copy()
        self.np_random.bit_generator.state = snapshot.random_state
        return self._game.start()

    def task_ids(self) -> Sequence[str]:
        """Return the ids of the split for ``reset(options={"task_id": …})``: scenario, people and seat."""
        return self._ids

    def expert_action(self) -> str:
        """Return what a good negotiator would do; only where the stakes can be checked.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            ConfigError: If the scenario has no checkable stakes.
        """
        return self._shown_by(ScriptedExpert())

    def rule_action(self) -> str:
        """Return what the patient person would do: give its reasons, then take what is offered.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            ConfigError: If the scenario has no checkable stakes.
        """
        return self._shown_by(PatientPartner())

    @property
    def max_turns(self) -> int:
        """Turns before truncation."""
        return self.options.rules.max_turns

    @property
    def game(self) -> Game:
        """The episode that is played; raises ResetNeeded before the first reset."""
        if self._game is None:
            raise ResetNeeded("the environment was not reset yet (Sotopia). Call reset() first.")
        return self._game

    def render(self) -> str | None:
        """Return the whole dialogue as the seat perceives it with ``render_mode="ansi"``, else None.

        Raises:
            ResetNeeded: Before the first reset.
        """
        return None if self.render_mode is None else self.game.transcript()

    def close(self) -> None:
        """Close the connections of a partner that was described by a mapping."""
        if self._is_own_partner and isinstance(self.partner, LlmPartner):
            self.partner.close()

    def draw(self, generator: Any) -> str:
        """Draw a task id of the split.

        Args:
            generator: NumPy generator to draw with.
        """
        return str(self._ids[int(generator.integers(len(self._ids)))])

    def new_game(self, task_id: str) -> Game:
        """Start the episode of a task without playing it; nobody has acted yet.

        Raises:
            EnvError: If the task id is unknown.
        """
        pk, _, seat = str(task_id).rpartition("/seat")
        if seat not in ("0", "1"):
            raise EnvError(f"unknown task_id {task_id!r} (Sotopia). An id looks like {self._ids[0]!r}.")
        encounter = Encounter.begin(self._book.setting(pk), self.options.rules)
        return Game(f"{pk}/seat{seat}", encounter, int(seat), self.options)

    def submit(self, game: Game, action: str) -> None:
        """Let the seat of a game do what a text says; what cannot be read costs a turn.

        Nothing happens if the dialogue is over already.

        Raises:
            EnvError: If the action is no text.
        """
        if not isinstance(action, str):
            raise EnvError(
                f"action {action!r} is no text (Sotopia, step). Write one in the notation "
                f"{self.options.protocol!r}; for an unreadable reply call invalid_step()."
            )
        if not game.is_over:
            game.act(action)

    def _settle(self, game: Game) -> None:
        """Let the partner act, and find the verdict if that was the end."""
        let_partner_act([game], self.partner)
        conclude([game], self.scorer)

    def _shown_by(self, demonstrator: ScriptedExpert | PatientPartner) -> str:
        game = self._running()
        return write_action(demonstrator.act(game.encounter.view(game.seat)), self.options.protocol)

    def _running(self) -> Game:
        if self.game.is_done:
            raise ResetNeeded("the episode has ended (Sotopia). Call reset() to start the next one.")
        return self.game


class _TaskIds(Sequence[str]):
    """Ids made when they are asked for: each setting from each seat."""

    def __init__(self, pks: Sequence[str], seats: Sequence[int]) -> None:
        self._pks = pks
        self._seats = seats

    def __len__(self) -> int:
        return len(self._pks) * len(self._seats)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pk, seat = divmod(range(len(self))[index], len(self._seats))
        return f"{self._pks[pk]}/seat{self._seats[seat]}"
