"""Lays a comparison out as one HTML page that needs no network, script or other file."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from istar_trainer.compare.summary import Findings
from istar_trainer.compare.tables import Row, difference_table, method_table, run_table
from istar_trainer.folder import flatten
from istar_trainer.plots import page_svg
from istar_trainer.report.builder import PAGE_COLOURS, page_style


def build_page(findings: Findings, figure: Any) -> str:
    """Lay out the page.

    Args:
        findings: What to show.
        figure: As ``draw_curves`` returns it.
    """
    template = Template(files("istar_trainer.compare").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=page_style(),
        title=escape(findings.title),
        lead=escape(findings.lead),
        failures="".join(_warning(f"{name}: {reason}") for name, reason in findings.failures.items()),
        first=escape(findings.rows[0].name),
        methods=_table(method_table(findings.rows, findings.threshold)),
        differences=_table(difference_table(findings.rows)),
        remarks="".join(_warning(remark) for remark in findings.remarks),
        curves=page_svg(figure, PAGE_COLOURS),
        runs=_table(run_table(findings.rows)),
        settings=_settings(findings.about),
    )


def _table(table: Sequence[Row]) -> str:
    header, *rows = table
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _warning(text: str) -> str:
    return f'<p class="warning">{escape(text)}</p>'


def _settings(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(key)}</code></td><td>{escape(str(value))}</td></tr>"
        for key, value in flatten(settings).items()
    )
    return f'<table class="settings"><tbody>{rows}</tbody></table>'
