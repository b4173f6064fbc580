"""The self-contained HTML report of a run folder."""

from istar_trainer.report.builder import build_report

__all__ = ["build_report"]
