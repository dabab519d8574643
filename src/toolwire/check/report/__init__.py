"""Reports for files: HTML for people, JSON and JUnit for machines."""

from collections.abc import Callable
from pathlib import Path

from toolwire.check.report.html import as_html
from toolwire.check.report.json import as_json
from toolwire.check.report.junit import as_junit
from toolwire.check.verdicts import Report

FORMS: dict[str, Callable[[Report], bytes]] = {".html": as_html, ".json": as_json, ".xml": as_junit}


def write_report(report: Report, path: Path) -> None:
    """Write a report in the format of the file's extension. Raises `ValueError` for an unknown one."""
    form = FORMS.get(path.suffix)
    if form is None:
        raise ValueError(f"the name must end with one of {', '.join(FORMS)}")
    path.write_bytes(form(report))
