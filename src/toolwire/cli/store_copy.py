"""Copies of a store as JSON lines, the same for every engine.

{"table":"export","format":1,"version":"0.1.0"}
{"table":"holder","id":"resp_1","owner":"…",…}
{"table":"end","rows":1}

The last line says that nothing is missing. Rows are read and written in batches of a bounded size.
"""

import asyncio
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from toolwire import __version__
from toolwire.config.settings import Settings, SettingsError, make_store
from toolwire.memory.private import open_file, open_private
from toolwire.memory.store import AnyRow, EventRow, HolderRow, ItemRow, RunRow, Store, ValueRow

FORMAT = 1
ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 * 1024 * 1024
"""Most rows and bytes in one batch, unless a single row has more."""
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
OBJECTS = {"response": ("fields", "body"), "conversation": ("body",)}
"""The fields of a holder that are JSON objects, by its kind. A deleted response has neither."""
KEYS = frozenset({"id", "holder", "previous", "conversation", "continuation"})
"""Ids, which every engine keeps whatever characters they have. PostgreSQL takes no other text with a NUL."""


class BadExport(Exception):
    """A file that `export` did not write like this."""


class Header(msgspec.Struct, frozen=True, tag_field="table", tag="export"):
    format: int
    version: str


class End(msgspec.Struct, frozen=True, tag_field="table", tag="end"):
    rows: int


Line = Header | End | HolderRow | ItemRow | EventRow | RunRow | ValueRow

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


async def exported(settings: Settings, place: str) -> int:
    """Write all rows of the store; returns how many there were. A store that cannot be used leaves the file as it is.

    A store of an older version is brought to this one first, unless a gateway that does not know this version uses it.
    """
    store = make_store(settings)
    try:
        if not await store.inspect():
            raise SettingsError(f"{settings.store.shown}: there is no store yet")
        await asyncio.to_thread(store.check)
        with _writable(place) as file:
            return await _write(store, file)
    finally:
        await store.close()


async def _write(store: Store, file: BinaryIO) -> int:
    file.write(_encode(Header(FORMAT, __version__)) + b"\n")
    rows = 0
    async for row in store.dump():
        file.write(_encode(row) + b"\n")
        rows += 1
    file.write(_encode(End(rows)) + b"\n")
    file.flush()
    return rows


async def imported(settings: Settings, place: str) -> int:
    """Add the rows of an export to the store; returns how many there were."""
    store = make_store(settings)
    try:
        with _readable(place) as file:
            rows = 0
            for batch in _batches(file):
                await store.restore(batch)
                rows += len(batch)
            return rows
    finally:
        await store.close()


def _batches(file: BinaryIO) -> Iterator[list[AnyRow]]:
    """The rows of an export. What is wrong with it is found when it is reached; what came before is imported."""
    batch: list[AnyRow] = []
    size = rows = 0
    for number, line in enumerate(file, 1):
        read = _read(number, line)
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
        if len(batch) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    yield batch
    raise BadExport(f"the export has no end; {rows} rows of it are imported")


def _read(number: int, line: bytes) -> Line:
    try:
        read = _decode(line)
    except msgspec.DecodeError as error:
        raise BadExport(f"line {number}: {error}") from None
    fault = _fault(read)
    if fault:
        raise BadExport(f"line {number}: {fault}")
    if isinstance(read, Header) != (number == 1) or (isinstance(read, Header) and read.format != FORMAT):
        raise BadExport(f"line {number}: this is no export of this version; format {FORMAT} is known")
    return read


def _fault(row: Line) -> str:
    """What is wrong with a row whose values have the right types: it could be written, and would fail its readers."""
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
    wrong = wrong or next((name for name in texts if "\0" in getattr(row, name)), "")
    return f"the value of {wrong} is not valid" if wrong else ""


def _is_object(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return True


@contextmanager
def _writable(place: str) -> Generator[BinaryIO]:
    if place == "-":
        yield sys.stdout.buffer
        return
    with open_private(Path(place), "w") as file:
        yield file


@contextmanager
def _readable(place: str) -> Generator[BinaryIO]:
    if place == "-":
        yield sys.stdin.buffer
        return
    with open_file(place) as file:
        yield file
