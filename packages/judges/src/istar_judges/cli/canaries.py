"""``istar-judge canaries``: whether a judge still says what it said."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from istar_envs.errors import ConfigError
from istar_judges.agreement.formats import number, percent
from istar_judges.cli.judging import say
from istar_judges.cli.models import Asked
from istar_judges.drift import FAILED_LIMIT, CanaryReport, canary_report, judge_canaries
from istar_judges.errors import JudgeUnavailable
from istar_judges.outcome_files import JudgedEpisode, read_outcomes
from istar_judges.pair_files import write_lines


@dataclass(frozen=True)
class Canaries:
    """Judge 40 built-in dialogues with known results and compare with an earlier pass; code 1 on drift."""

    reference: tyro.conf.Positional[Path]
    """File of the pass to compare with; a first pass makes it."""
    asked: tyro.conf.OmitArgPrefixes[Asked] = field(default_factory=Asked)
    """Which model is asked what, and how."""
    out: Path | None = None
    """File for this pass's outcomes; not kept if not given."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace that file if it exists."""

    def run(self) -> int:
        """Judge, compare, and say what was found.

        Returns:
            0, or 1 if the judge drifted.

        Raises:
            ConfigError: If no model is named, or the reference is another judge's.
            JudgeUnavailable: If too many verdicts of a first pass are missing.
        """
        if self.asked.model is None:
            raise ConfigError("canaries are for judges that are models; name one with --model.")
        earlier = read_outcomes(self.reference) if self.reference.exists() else ()
        with self.asked.open_panel() as panel:
            judged = judge_canaries(panel)
        report = canary_report(judged, earlier, rule=self.asked.rule)
        if self.out is not None:
            write_lines(self.out, (record.to_json() for record in judged), overwrite=self.overwrite)
        print(describe(report))
        if not earlier:
            self._keep(judged, report)
            return 0
        for finding in report.findings:
            say(f"drift: {finding}")
        return 1 if report.findings else 0

    def _keep(self, judged: Sequence[JudgedEpisode], report: CanaryReport) -> None:
        """Make the reference of later passes."""
        if report.failed_frac > FAILED_LIMIT:
            failed = next(record for record in judged if record.status != "ok")
            raise JudgeUnavailable(
                f"{report.num_failed} of {len(judged)} canaries have no verdict, so nothing can be compared "
                f"with this pass and {self.reference} was not made. The first: {failed.status}: "
                f"{failed.detail} Try again when the endpoint answers."
            )
        write_lines(self.reference, (record.to_json() for record in judged))
        say(f"first pass: {self.reference}; later passes are compared with it")


def describe(report: CanaryReport) -> str:
    """Write a report for a terminal."""
    lines = [
        f"{report.num + report.num_failed} canaries, {report.num_failed} without a verdict",
        f"distance from the settled goals  {number(report.error)} points, "
        f"{percent(report.contradicted_frac)} of successes told otherwise",
    ]
    if report.shift == report.shift:
        lines.append(
            f"moved since the reference        {number(report.shift, sign=True)} ± "
            f"{number(report.shift_error)} points, {percent(report.changed_frac)} of successes changed"
        )
    return "\n".join(lines)
