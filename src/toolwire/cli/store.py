"""`toolwire store`: reports on the store, migrates it, and copies it to another one.

A copy is a file of JSON lines, the same for every engine:

{"table":"export","format":1,"version":"0.1.0"}
{"table":"holder","id":"resp_1","owner":"…",…}
{"table":"end","rows":1}

The last line shows that nothing is missing. Rows are read and written in batches of a bounded size.
"""

import asyncio
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import click
import msgspec

from toolwire import __version__
from toolwire.cli.options import CommandGroup, config_option, json_option, print_json, say, stop, stop_on
from toolwire.config.settings import Settings, SettingsError, bytes_of, load, make_store, prepare_store
from toolwire.memory.private_files import open_file, open_private
from toolwire.memory.store import (
    AnyRow,
    EventRow,
    HolderRow,
    ItemRow,
    Lease,
    Member,
    RunRow,
    StoreFailed,
    StoreStats,
    ValueRow,
)

MAX_LISTED = 100
"""The maximum number of members and of leases in a report."""
FORMAT = 1
MAX_BATCH_ROWS = 256
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""The maximum size of a batch, unless a single row is larger."""
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
OBJECTS = {"response": ("fields", "body"), "conversation": ("body",)}
"""The fields of a holder that are JSON objects, by its kind. A deleted response has neither."""
KEYS = frozenset({"id", "holder", "previous", "conversation", "continuation"})
"""Ids, in which every engine stores any character. In other text PostgreSQL rejects NUL."""


@click.group(cls=CommandGroup)
def store() -> None:
    pass


@contextmanager
def _load_settings(config: str | None, *errors: type[Exception]) -> Generator[Settings]:
    """Load the settings. These errors and those of the settings and the store are one line, and exit code 2."""
    with stop_on(SettingsError, *errors):
        settings = load(config)
        try:
            yield settings
        except StoreFailed as error:
            raise stop(f"{settings.store.setting}: {settings.store.shown} cannot be used: {error}") from None


# Reports


class StoreReport(msgspec.Struct, frozen=True):
    """What is in a store."""

    engine: str
    place: str
    version: int
    """The version of its schema; 0 if there is no store yet."""
    newest: int
    """The version that this program makes."""
    max_size: int
    stats: StoreStats = StoreStats()
    members: list[Member] = []
    leases: list[Lease] = []

    @property
    def is_ready(self) -> bool:
        """Whether it can be used as it is."""
        return self.version == 0 or self.version >= self.newest


@store.command()
@json_option
@config_option
def check(json: bool, config: str | None) -> None:
    """Show the engine, the version, what is kept, which processes use it and their leases. Nothing is changed."""
    with _load_settings(config) as settings:
        report = asyncio.run(_report_on(settings))
    if json:
        print_json(report)
    else:
        print(_format_report(report))
    raise click.exceptions.Exit(0 if report.is_ready else 1)


async def _report_on(settings: Settings) -> StoreReport:
    """Inspect a store without changing it. One of an older version is not opened."""
    store = make_store(settings)
    engine = "postgresql" if settings.store.is_database else "sqlite"
    try:
        version = await store.inspect()
        report = StoreReport(engine, settings.store.shown, version, store.version, bytes_of(settings.store.max_size))
        if version < store.version:
            return report
        return msgspec.structs.replace(
            report,
            stats=await store.stats(),
            members=await store.members(MAX_LISTED),
            leases=await store.leases(MAX_LISTED),
        )
    finally:
        await store.close()


def _format_report(report: StoreReport) -> str:
    stats = report.stats
    version = str(report.version)
    if not report.version:
        version = "none: it is made when there is something to keep"
    elif report.version < report.newest:
        version += f"; toolwire store migrate, or serve, brings it to {report.newest}"
    elif report.version > report.newest:
        version += f", which this toolwire can use; it makes {report.newest}"
    lines = [("engine", report.engine), ("store", report.place), ("version", version)]
    if report.is_ready and report.version:
        lines += [
            ("bytes", f"{stats.bytes:,} of {report.max_size:,}" if report.max_size else f"{stats.bytes:,}"),
            ("responses", f"{stats.responses:,}"),
            ("conversations", f"{stats.conversations:,}"),
            ("runs", f"{stats.runs:,} not over"),
            ("members", f"{stats.members:,}"),
            *(("", " ".join(filter(None, (each.id, each.host, each.socket)))) for each in report.members),
            ("leases", f"{len(report.leases):,}" + (" or more" if len(report.leases) == MAX_LISTED else "")),
            *(("", f"{each.name} {each.member} epoch {each.epoch} step {each.step}") for each in report.leases),
        ]
    return "\n".join(f"{name:14}{text}" for name, text in lines)


@store.command()
@config_option
def migrate(config: str | None) -> None:
    """Bring the schema to this version. Gateways of the version before may go on meanwhile; `serve` does it too."""
    with _load_settings(config) as settings:
        before = asyncio.run(make_store(settings).inspect())
        after = asyncio.run(prepare_store(settings, say).inspect())
    changed = f"version {before} is now version {after}" if before != after else f"version {after}"
    print(f"{settings.store.shown}: {changed if after else 'there is no store yet'}")


# Copies


class BadExport(Exception):
    """A file that `export` has not written, or that is damaged."""


class Header(msgspec.Struct, frozen=True, tag_field="table", tag="export"):
    format: int
    version: str


class End(msgspec.Struct, frozen=True, tag_field="table", tag="end"):
    rows: int


Line = Header | End | HolderRow | ItemRow | EventRow | RunRow | ValueRow

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode

file_argument = click.argument("file", metavar="FILE", help="A file of JSON lines, or - for a pipe.")


@store.command("export")
@file_argument
@config_option
def export_(file: str, config: str | None) -> None:
    """Write everything that is kept to a file that only you can read, or to a pipe."""
    with _load_settings(config, OSError) as settings:
        rows = asyncio.run(_export(settings, file))
    say(f"exported {rows} rows")


async def _export(settings: Settings, place: str) -> int:
    """Write all rows of the store; returns their number. If the store cannot be used, the file stays unchanged.

    A store of an older version is migrated first, unless a gateway that does not know this version uses it.
    """
    store = make_store(settings)
    try:
        if not await store.inspect():
            raise SettingsError(f"{settings.store.shown}: there is no store yet")
        await asyncio.to_thread(store.check)
        with _open(place, "w") as file:
            file.write(_encode(Header(FORMAT, __version__)) + b"\n")
            rows = 0
            async for row in store.dump():
                file.write(_encode(row) + b"\n")
                rows += 1
            file.write(_encode(End(rows)) + b"\n")
            file.flush()
            return rows
    finally:
        await store.close()


@store.command("import")
@file_argument
@config_option
def import_(file: str, config: str | None) -> None:
    """Add what `export` wrote to the store of the settings. What is there already stays."""
    with _load_settings(config, OSError, BadExport) as settings:
        if not prepare_store(settings, say).outlives_process:
            raise stop("store.url: a store in memory ends with its process; nothing was imported")
        rows = asyncio.run(_import(settings, file))
    say(f"imported {rows} rows")


async def _import(settings: Settings, place: str) -> int:
    """Add the rows of an export to the store; returns their number."""
    store = make_store(settings)
    try:
        with _open(place, "r") as file:
            rows = 0
            for batch in _read_batches(file):
                await store.restore(batch)
                rows += len(batch)
            return rows
    finally:
        await store.close()


def _read_batches(file: BinaryIO) -> Iterator[list[AnyRow]]:
    """Read the rows of an export. A fault is raised when it is reached, after the rows before it."""
    batch: list[AnyRow] = []
    size = rows = 0
    for number, line in enumerate(file, 1):
        read = _read_line(number, line)
        if isinstance(read, End):
            yield batch
            if read.rows != rows:
                raise BadExport(f"line {number}: {read.rows} rows were exported, and {rows} are here")
            return
        if isinstance(read, Header):
            continue
        batch.append(read)
        rows += 1
        size += len(line)
        if len(batch) == MAX_BATCH_ROWS or size > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch
    raise BadExport(f"the export has no end; {rows} rows of it are imported")


def _read_line(number: int, line: bytes) -> Line:
    try:
        read = _decode(line)
    except msgspec.DecodeError as error:
        raise BadExport(f"line {number}: {error}") from None
    wrong = _find_wrong_field(read)
    if wrong:
        raise BadExport(f"line {number}: the value of {wrong} is not valid")
    if isinstance(read, Header) != (number == 1) or (isinstance(read, Header) and read.format != FORMAT):
        raise BadExport(f"line {number}: this is no export of this version; format {FORMAT} is known")
    return read


def _find_wrong_field(row: Line) -> str:
    """A field whose value has the right type, but would fail its readers or PostgreSQL; empty if there is none."""
    match row:
        case HolderRow():
            wrong = next((name for name in OBJECTS.get(row.kind, ()) if not _is_object(getattr(row, name))), "")
            if not wrong and row.kind == "response" and row.status not in STATUSES:
                wrong = "status"
        case ItemRow():
            wrong = "" if _is_object(row.item) else "item"
        case EventRow():
            wrong = "" if row.frames.count(b"\n\n") == row.count else "count"
        case _:
            wrong = ""
    texts = (name for name in row.__struct_fields__ if name not in KEYS and isinstance(getattr(row, name), str))
    return wrong or next((name for name in texts if "\0" in getattr(row, name)), "")


def _is_object(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return True


@contextmanager
def _open(place: str, mode: Literal["r", "w"]) -> Generator[BinaryIO]:
    """A file, or with `-` a pipe."""
    if place == "-":
        yield sys.stdout.buffer if mode == "w" else sys.stdin.buffer
        return
    with open_private(Path(place), "w") if mode == "w" else open_file(place) as file:
        yield file
