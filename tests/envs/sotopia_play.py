"""Play whole dialogues between two partners by the rules alone, without an environment."""

from istar_envs.sotopia.book import FAMILIES
from istar_envs.sotopia.dialogue import DialogueState, EndReason, Rules, advance, seats_to_act, stop
from istar_envs.sotopia.families.outcome import read_table
from istar_envs.sotopia.partners.base import Partner, partner_view
from istar_envs.sotopia.partners.expert import ScriptedExpert
from istar_envs.sotopia.partners.naive import NaivePartner
from istar_envs.sotopia.partners.patient import PatientPartner
from istar_envs.sotopia.partners.scripted import ScriptedPartner
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.stakes import Stakes

EXPERT, NAIVE, PATIENT, SCRIPTED = ScriptedExpert(), NaivePartner(), PatientPartner(), ScriptedPartner()


def play(setting: Setting, seats: tuple[Partner, Partner], rules: Rules | None = None) -> DialogueState:
    """Let two partners talk until they agree or the rules end it."""
    rules = rules or Rules()
    state = DialogueState()
    while not state.is_over:
        for seat in seats_to_act(state, rules):
            state = advance(state, seat, seats[seat].act(partner_view(setting, seat, state, rules)), rules)
        if not state.is_over and read_table(stakes_of(setting), state.events).agreement:
            state = stop(state, EndReason.AGREEMENT)
    return state


def stakes_of(setting: Setting) -> Stakes:
    """The stakes, which own settings always have."""
    assert setting.scenario.stakes is not None
    return setting.scenario.stakes


_PLAYED: dict[tuple[str, str, int], tuple[Setting, int, DialogueState]] = {}


def played(family: str, player: Partner, seed: int) -> tuple[Setting, int, DialogueState]:
    """A setting, the seat of the player, and its dialogue with a scripted person; even seeds take seat 0."""
    key = (family, player.name, seed)
    if key not in _PLAYED:
        setting, seat = FAMILIES[family](seed), seed % 2
        state = play(setting, (player, SCRIPTED) if seat == 0 else (SCRIPTED, player))
        _PLAYED[key] = setting, seat, state
    return _PLAYED[key]
