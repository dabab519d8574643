"""`toolwire check`: what was ordered on the command line, carried out."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from toolwire.check import text
from toolwire.check.apis import APIS
from toolwire.check.captured import NothingFound, read_file, read_har
from toolwire.check.endpoint import Target, Unreachable, base_of
from toolwire.check.report import FORMS, write_report
from toolwire.check.run import Progress as Step
from toolwire.check.run import Report, check, check_captured, chosen_rules

SOUND, BROKEN = 0, 1


class OrderError(Exception):
    """The check cannot run, in one line."""


class Order(msgspec.Struct, frozen=True):
    """A check as it was ordered."""

    url: str = ""
    file: Path | None = None
    har: Path | None = None
    apis: str = ""
    model: str = ""
    key: str = ""
    only: tuple[str, ...] = ()
    report: tuple[Path, ...] = ()
    record: Path | None = None
    budget: int = 250
    timeout: float = 120.0


def run(order: Order) -> int:
    """Check, say what was found, and give the exit code. Raises `OrderError`."""
    try:
        chosen_rules(order.only)
        _check_reports(order.report)
        report = _captured(order) if order.file or order.har else _live(order)
    except (ValueError, Unreachable, NothingFound) as error:
        raise OrderError(text.readable(str(error))) from None
    text.show(report, Console(highlight=False))
    for path in order.report:
        try:
            write_report(report, path)
        except OSError as error:
            raise OrderError(f"--report: {path}: {error.strerror}") from None
    return SOUND if report.is_sound else BROKEN


def _check_reports(paths: Sequence[Path]) -> None:
    """What cannot be written is said before anything is asked."""
    for path in paths:
        if path.suffix not in FORMS:
            raise OrderError(f"--report: {path}: the name must end with one of {', '.join(FORMS)}")
        if not path.parent.is_dir():
            raise OrderError(f"--report: {path.parent} is no directory")


def _captured(order: Order) -> Report:
    path = order.file or order.har
    assert path is not None
    if order.url or (order.file and order.har):
        raise OrderError("give one of them: an address, --file or --har")
    apis = _apis(order.apis)
    data = _read(path)
    if order.har:
        exchanges = [each for each in read_har(data) if each.api in apis]
        if not exchanges:
            raise NothingFound(f"there is no turn of {', '.join(apis)} in this archive")
        return check_captured(exchanges, str(path), order.only)
    request = path.with_suffix(".request.json")  # what --record has put beside it
    asked = _read(request) if request.is_file() and request != path else b""
    exchange = read_file(data, APIS[apis[0]].name if order.apis else "", asked)
    return check_captured([exchange], str(path), order.only)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OrderError(f"{path}: {error.strerror}") from None


def _live(order: Order) -> Report:
    if not order.url.startswith(("http://", "https://")):
        raise OrderError("give the address of an endpoint, --file or --har")
    target = Target(base_of(order.url), order.model, order.key, order.budget, order.timeout, order.record)
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("")

        def told(step: Step) -> None:
            bar.update(task, completed=step.done, total=step.of, description=f"{step.api} {step.probe}")

        try:
            return asyncio.run(check(target, _apis(order.apis), order.only, told))
        except OSError as error:  # only records are written meanwhile
            raise OrderError(f"--record: {order.record}: {error.strerror}") from None


def _apis(names: str) -> list[str]:
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip())) or list(APIS)
    unknown = [name for name in chosen if name not in APIS]
    if unknown:
        raise OrderError(f"--api: {unknown[0]!r} is none of {', '.join(APIS)}")
    return chosen
