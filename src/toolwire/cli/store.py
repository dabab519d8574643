"""`toolwire store`: inspects the store, migrates it, and copies it to another one.

A copy is a file of JSON lines in one format for all engines:

{"table":"export","format":1,"version":"0.1.0"}
{"table":"holder","id":"resp_1","owner":"…",…}
{"table":"end","rows":1}

The last line proves that the file is complete. Rows are read and written in batches of bounded size.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import click
import msgspec

from toolwire import __version__
from toolwire.cli.options import CommandGroup, config_option, json_option, print_json, say, stop, stop_on
from toolwire.config.settings import Settings, SettingsError, bytes_of, load
from toolwire.config.stores import AnyStore, make_store, prepare_store
from toolwire.memory.private_files import open_file, open_private
from toolwire.memory.store import (
    AnyRow,
    EventRow,
    HolderRow,
    IssuedKey,
    ItemRow,
    KeyRow,
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
"""Ids, in which every engine accepts any character. In other text PostgreSQL rejects NUL."""


@click.group(cls=CommandGroup)
def store() -> None:
    pass


@contextmanager
def load_settings(config: str | None, *errors: type[Exception]) -> Generator[Settings]:
    """Load the settings. Reports these errors and those of settings and store in one line, with exit code 2."""
    with stop_on(SettingsError, *errors):
        settings = load(config)
        try:
            yield settings
        except StoreFailed as error:
            raise stop(f"{settings.store.setting}: {settings.store.shown} cannot be used: {error}") from None


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncGenerator[AnyStore]:
    """Make the store of the settings, and close it at the end."""
    store = make_store(settings)
    try:
        yield store
    finally:
        await store.close()


# Reports


class StoreReport(msgspec.Struct, frozen=True):
    """The state of a store."""

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
        """Whether it can be used without a migration."""
        return self.version == 0 or self.version >= self.newest


@store.command()
@json_option
@config_option
def check(json: bool, config: str | None) -> None:
    """Show the engine, the version, the content, the processes that use it and their leases. Changes nothing."""
    with load_settings(config) as settings:
        report = asyncio.run(_report_on(settings))
    if json:
        print_json(report)
    else:
        for name, text in _list_facts(report):
            print(f"{name:14}{text}")
    raise click.exceptions.Exit(0 if report.is_ready else 1)


async def _report_on(settings: Settings) -> StoreReport:
    """Inspect a store without changing it. One of an older version is not opened."""
    engine = "postgresql" if settings.store.is_database else "sqlite"
    async with open_store(settings) as store:
        version = await store.inspect()
        report = StoreReport(engine, settings.store.shown, version, store.version, bytes_of(settings.store.max_size))
        if version < store.version:
            return report
        return msgspec.structs.replace(
            report,
            stats=await store.stats(),
            members=await store.list_members(MAX_LISTED),
            leases=await store.list_leases(MAX_LISTED),
        )


def _list_facts(report: StoreReport) -> Iterator[tuple[str, str]]:
    """The lines of a report: a name, which is empty where a list continues, and a text."""
    version = str(report.version)
    if not report.version:
        version = "none: the store is created when it is needed"
    elif report.version < report.newest:
        version += f"; toolwire store migrate, or serve, upgrades it to {report.newest}"
    elif report.version > report.newest:
        version += f", which this toolwire can use; it makes {report.newest}"
    yield from (("engine", report.engine), ("store", report.place), ("version", version))
    if not (report.is_ready and report.version):
        return
    stats = report.stats
    yield "bytes", f"{stats.bytes:,} of {report.max_size:,}" if report.max_size else f"{stats.bytes:,}"
    yield "responses", f"{stats.responses:,}"
    yield "conversations", f"{stats.conversations:,}"
    yield "turns", f"{stats.turns:,} of the console"
    yield "runs", f"{stats.runs:,} unfinished"
    yield "members", f"{stats.members:,}"
    for member in report.members:
        yield "", " ".join(filter(None, (member.id, member.host)))
    yield "leases", f"{len(report.leases):,}" + (" or more" if len(report.leases) == MAX_LISTED else "")
    for lease in report.leases:
        yield "", f"{lease.name} {lease.member} epoch {lease.epoch}"


@store.command()
@config_option
def migrate(config: str | None) -> None:
    """Migrate the schema to this version, as `serve` does. Gateways of the previous version may keep running."""
    with load_settings(config) as settings:
        before = asyncio.run(make_store(settings).inspect())
        after = asyncio.run(prepare_store(settings, say).inspect())
    changed = f"version {before} is now version {after}" if before != after else f"version {after}"
    print(f"{settings.store.shown}: {changed if after else 'there is no store yet'}")


# Copies


class BadExport(Exception):
    """The file was not written by `export`, or is damaged."""


class Header(msgspec.Struct, frozen=True, tag_field="table", tag="export"):
    format: int
    version: str


class End(msgspec.Struct, frozen=True, tag_field="table", tag="end"):
    rows: int


Line = Header | End | HolderRow | ItemRow | EventRow | RunRow | ValueRow | KeyRow

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode

file_argument = click.argument("file", metavar="FILE", help="A file of JSON lines, or - for a pipe.")


@store.command("export")
@file_argument
@config_option
def export_(file: str, config: str | None) -> None:
    """Write the content of the store to a file that only you can read, or to a pipe."""
    with load_settings(config, OSError) as settings:
        rows = asyncio.run(_export(settings, file))
    say(f"exported {rows} rows")


async def _export(settings: Settings, place: str) -> int:
    """Write all rows of the store; returns their number. If the store cannot be used, the file stays unchanged.

    A store of an older version is migrated first, unless a gateway that does not know this version uses it.
    """
    async with open_store(settings) as store:
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


@store.command("import")
@file_argument
@config_option
def import_(file: str, config: str | None) -> None:
    """Add the rows of an export to the store in the settings. Existing rows are kept."""
    with load_settings(config, OSError, BadExport) as settings:
        if not prepare_store(settings, say).outlives_process:
            raise stop("store.url: a store in memory ends with its process; nothing was imported")
        rows = asyncio.run(_import(settings, file))
    say(f"imported {rows} rows")


async def _import(settings: Settings, place: str) -> int:
    """Add the rows of an export to the store; returns their number.

    Raises `BadExport` when a fault is reached; the rows before it are imported.
    """
    batch: list[AnyRow] = []
    size = rows = 0
    async with open_store(settings) as store:
        with _open(place, "r") as file:
            for number, line in enumerate(file, 1):
                row = _read_line(number, line)
                if isinstance(row, End):
                    await store.restore(batch)
                    if row.rows != rows:
                        raise BadExport(f"line {number}: {row.rows} rows were exported, and the file has {rows}")
                    return rows
                if isinstance(row, Header):
                    continue
                batch.append(row)
                rows += 1
                size += len(line)
                if len(batch) == MAX_BATCH_ROWS or size > MAX_BATCH_BYTES:
                    await store.restore(batch)
                    batch, size = [], 0
        await store.restore(batch)
    raise BadExport(f"the export has no end; {rows} rows of it are imported")


def _read_line(number: int, line: bytes) -> Line:
    try:
        row = _decode(line)
    except msgspec.DecodeError as error:
        raise BadExport(f"line {number}: {error}") from None
    if isinstance(row, Header) != (number == 1) or (isinstance(row, Header) and row.format != FORMAT):
        raise BadExport(f"line {number}: this is not an export of this version, which has format {FORMAT}")
    wrong = ""
    match row:  # values of valid types that readers or PostgreSQL would reject
        case HolderRow():
            wrong = next((name for name in OBJECTS.get(row.kind, ()) if not _is_object(getattr(row, name))), "")
            if not wrong and row.kind == "response" and row.status not in STATUSES:
                wrong = "status"
        case ItemRow():
            wrong = "" if _is_object(row.item) else "item"
        case EventRow():
            wrong = "" if row.frames.count(b"\n\n") == row.count else "count"
        case KeyRow():
            wrong = "" if _is_key(row.name, row.facts) else "facts"
        case _:
            pass
    texts = (name for name in row.__struct_fields__ if name not in KEYS and isinstance(getattr(row, name), str))
    wrong = wrong or next((name for name in texts if "\0" in getattr(row, name)), "")
    if wrong:
        raise BadExport(f"line {number}: the value of {wrong} is not valid")
    return row


def _is_key(name: str, facts: bytes) -> bool:
    try:
        return msgspec.json.decode(facts, type=IssuedKey).name == name
    except msgspec.DecodeError:
        return False


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
