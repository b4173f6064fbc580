"""The evaluation from its options to its files."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_judges.budget import Budget
from istar_judges.outcome_files import JudgedEpisode, trajectory_ids
from istar_trainer.folder import describe_machine
from istar_trainer.metrics import write_atomically
from istar_trainer.social.dialogues import Dialogue, Role, play
from istar_trainer.social.judging import Judging, open_judging
from istar_trainer.social.options import SocialEvalArgs
from istar_trainer.social.plan import Plan, Scenario, make_plan
from istar_trainer.social.report import Evaluation
from istar_trainer.social.sides import Side, make_side
from istar_trainer.social.summary import Result, summarize


@dataclass(frozen=True)
class Entry:
    """A dialogue of an evaluation.

    Attributes:
        scenario: What is played.
        dialogue: Who plays it.
        seats: Seats that are evaluated.
    """

    scenario: Scenario
    dialogue: Dialogue
    seats: tuple[int, ...]

    def episodes(self) -> list[Episode]:
        """Return what happened, from each of these seats."""
        return [self.dialogue.chairs[seat].episode() for seat in self.seats]


def evaluate_social(args: SocialEvalArgs) -> Evaluation:
    """Play, judge and count.

    Args:
        args: What to evaluate, and how.

    Returns:
        The result; with ``args.out`` it is in that folder too.

    Raises:
        ConfigError: If an option cannot be used.
        MissingAsset: If a published file is missing.
    """
    plan = make_plan(args)
    with ExitStack() as stack:
        judging = stack.enter_context(open_judging(args))
        roles: tuple[Role, ...] = ("policy", "partner") if args.protocol == "fixed-partner" else ("policy",)
        sides = {role: make_side(args, role) for role in roles}
        for role, side in sides.items():
            stack.callback(side.close)
            _require_playable(role, side, plan)
        _prepare(args)
        entries = list(enter(plan, sides, args.scored_seats, args.episodes_per_scenario))
        _play(entries, args.out)
        results = judge(entries, judging)
    evaluation = Evaluation(
        facts=_facts(args, sides, judging),
        rows=summarize(results, args.scenarios, seed=args.seed),
        spent=_spent(sides, judging),
        notes=_notes(plan),
    )
    if args.out is not None:
        _write(args.out, evaluation, results)
    return evaluation


def enter(
    plan: Plan, sides: dict[Role, Side], seats: tuple[int, ...], episodes: int | None
) -> Iterator[Entry]:
    """Seat the players for everything that is to be played.

    Args:
        plan: What is played.
        sides: The policy, and the partner unless the policy takes both seats.
        seats: Seats that are evaluated. Against a partner each is a dialogue of its own, with the policy on
            that seat; in self-play one dialogue evaluates all of them.
        episodes: Episodes of each scenario and seat; None for each pair of people once.
    """
    policy, partner = sides["policy"], sides.get("partner")
    for scenario in plan.scenarios:
        for setting, number in scenario.playings(episodes):
            one = policy.player(number)
            if partner is None:
                dialogue = Dialogue.begin(setting, number, (one, one), ("policy", "policy"))
                yield Entry(scenario, dialogue, seats)
                continue
            other = partner.player(number)
            for seat in seats:
                if seat == 0:
                    dialogue = Dialogue.begin(setting, number, (one, other), ("policy", "partner"))
                else:
                    dialogue = Dialogue.begin(setting, number, (other, one), ("partner", "policy"))
                yield Entry(scenario, dialogue, (seat,))


def judge(entries: Sequence[Entry], judging: Judging) -> list[Result]:
    """Let the judge score every evaluated seat, all at once."""
    played = [
        (entry, seat, episode)
        for entry in entries
        for seat, episode in zip(entry.seats, entry.episodes(), strict=True)
    ]
    outcomes = judging.outcomes([episode for _, _, episode in played])
    return [
        Result(
            entry.scenario.pk,
            entry.scenario.family,
            entry.scenario.is_hard,
            seat,
            episode,
            outcome,
            entry.dialogue.culprit,
        )
        for (entry, seat, episode), outcome in zip(played, outcomes, strict=True)
    ]


def _play(entries: Sequence[Entry], out: Path | None) -> None:
    """Play, show how far it is, and keep what is over even if the rest is interrupted."""
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("dialogues", total=len(entries))
    try:
        with bar:
            play([entry.dialogue for entry in entries], lambda done: bar.update(task, completed=done))
    finally:
        if out is not None:
            over = (episode for entry in entries if entry.dialogue.is_over for episode in entry.episodes())
            write_atomically(out / "episodes.jsonl", "".join(f"{e.to_json()}\n" for e in over))


def _prepare(args: SocialEvalArgs) -> None:
    """Make the folder of the result, before anything is spent, and write down what is asked for."""
    if args.out is None:
        return
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        is_used = any(args.out.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot use --out {args.out}: {error.strerror}. Choose another folder.") from error
    if is_used:
        raise ConfigError(f"--out {args.out} is not empty. Choose another folder.")
    for name, content in (("config.json", asdict(args)), ("env.json", describe_machine())):
        write_atomically(args.out / name, json.dumps(content, indent=2, default=str) + "\n")


def _write(out: Path, evaluation: Evaluation, results: Sequence[Result]) -> None:
    keyed = zip(trajectory_ids(result.episode for result in results), results, strict=True)
    lines = [JudgedEpisode.of(key, e, r.outcome, seat=r.seat).to_json() for (key, e), r in keyed]
    write_atomically(out / "outcomes.jsonl", "".join(f"{line}\n" for line in lines))
    text = json.dumps(evaluation.to_dict(), ensure_ascii=False, indent=2)
    write_atomically(out / "result.json", text + "\n")
    write_atomically(out / "report.md", evaluation.markdown())


def _require_playable(role: Role, side: Side, plan: Plan) -> None:
    """Refuse scripted people where nothing can be checked."""
    stuck = [scenario for scenario in plan.scenarios if not scenario.is_checkable]
    if side.needs_stakes and stuck:
        raise ConfigError(
            f"the {role} {side.name} can play only what can be checked, but {len(stuck)} of "
            f"{len(plan.scenarios)} scenarios cannot. Add --judge verifier to play the others alone, or let "
            f"a model play: --{role} endpoint."
        )


def _facts(args: SocialEvalArgs, sides: dict[Role, Side], judging: Judging) -> dict[str, str]:
    source = "own families" if args.data_dir is None else "published files"
    return {
        "scenarios": f"{args.scenarios} of the {source}",
        "protocol": args.protocol,
        **{role: side.name for role, side in sides.items()},
        "judge": judging.name,
        "seed": str(args.seed),
    }


def _spent(sides: dict[Role, Side], judging: Judging) -> dict[str, Budget]:
    budgets = {**{str(role): side.budget for role, side in sides.items()}, "judge": judging.budget}
    return {who: budget for who, budget in budgets.items() if budget is not None}


def _notes(plan: Plan) -> tuple[str, ...]:
    if not plan.left_out:
        return ()
    total = len(plan.scenarios) + plan.left_out
    return (f"{plan.left_out} of {total} scenarios are left out: no rule can score them.",)
