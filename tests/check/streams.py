"""Streams as lists of frames, what can be done to one, and what the rules say to it then."""

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import reduce
from typing import Any

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import StreamCheck

Json = dict[str, Any]


class Frame(msgspec.Struct):
    """One event: its name, if it has one, and its data, which is an object or a text to be sent as it is."""

    name: str | None
    data: Any

    @property
    def type(self) -> str:
        return str(self.data.get("type")) if isinstance(self.data, dict) else str(self.data)


Frames = list[Frame]
Change = Callable[[Frames], int | None]
"""Does something to a stream, and says which frame has the fault then, if one has."""


class Fault(msgspec.Struct, frozen=True):
    """A sound stream, what is done to it, and the rules that it breaks then: these, and no others."""

    what: str
    rules: frozenset[str]
    sound: Callable[[], Frames]
    change: Change
    facts: RequestFacts

    def __str__(self) -> str:
        return f"{self.facts.api}-{self.what.replace(' ', '-')}"


Table = dict[str, tuple[str, Change]]
"""What is done to a stream: the rules that it breaks, and how it is done."""


def faults(sound: Callable[[], Frames], facts: RequestFacts, table: Table) -> list[Fault]:
    """The rows of a table. Rules without an area are of the API's own."""
    return [Fault(what, ids(facts.api, rules), sound, change, facts) for what, (rules, change) in table.items()]


def ids(api: str, rules: str) -> frozenset[str]:
    return frozenset(rule if "." in rule else f"{api}.{rule}" for rule in rules.split())


# The wire


def wire(frames: Iterable[Frame]) -> bytes:
    return b"".join(written(frame) for frame in frames)


def written(frame: Frame) -> bytes:
    name = f"event: {frame.name}\n" if frame.name is not None else ""
    data = frame.data if isinstance(frame.data, str) else json.dumps(frame.data, ensure_ascii=False)
    return f"{name}data: {data}\n\n".encode()


def read(data: bytes | Iterable[bytes], facts: RequestFacts) -> tuple[list[Finding], list[ReceivedFrame]]:
    """What is wrong with a stream, and its frames."""
    check = StreamCheck(facts)
    for piece in [data] if isinstance(data, bytes) else data:
        check.feed(piece)
    return [*check.end()], check.received


def findings(frames: Iterable[Frame], facts: RequestFacts) -> list[Finding]:
    return read(wire(frames), facts)[0]


def broken(frames: Iterable[Frame], facts: RequestFacts) -> set[str]:
    return {finding.rule for finding in findings(frames, facts)}


# What can be done to a stream. Whatever moves numbered events numbers them anew, so that only the fault is left.


def index_of(frames: Frames, at: int | str, nth: int = 0) -> int:
    """Where a frame is, by its place or its type."""
    if isinstance(at, int):
        return at if at >= 0 else len(frames) + at
    return [index for index, frame in enumerate(frames) if frame.type in (at, f"response.{at}")][nth]


def numbered(frames: Frames) -> Frames:
    events = [frame.data for frame in frames if isinstance(frame.data, dict)]
    if events and any("sequence_number" in event for event in events):
        for number, event in enumerate(events):
            event["sequence_number"] = number
    return frames


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    return reduce(lambda value, step: value[step], path, value)


def change(at: int | str, *path: Any, to: Any, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        index = index_of(frames, at, nth)
        inside(frames[index].data, path[:-1])[path[-1]] = deepcopy(to)
        return index

    return do


def remove(at: int | str, *path: Any, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        index = index_of(frames, at, nth)
        del inside(frames[index].data, path[:-1])[path[-1]]
        return index

    return do


def rename(at: int | str, name: str | None, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        index = index_of(frames, at, nth)
        frames[index].name = name
        return index

    return do


def drop(*at: int | str, nth: int = 0) -> Change:
    def do(frames: Frames) -> None:
        for index in sorted((index_of(frames, each, nth) for each in at), reverse=True):
            del frames[index]
        numbered(frames)

    return do


def repeat(at: int | str, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        index = index_of(frames, at, nth)
        frames.insert(index + 1, deepcopy(frames[index]))
        numbered(frames)
        return index + 1

    return do


def move(at: int | str, *, behind: int | str, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        target = frames[index_of(frames, behind)]
        moved = frames.pop(index_of(frames, at, nth))
        index = next(index for index, frame in enumerate(frames) if frame is target) + 1
        frames.insert(index, moved)
        numbered(frames)
        return index

    return do


def insert(frame: Frame, *, before: int | str, nth: int = 0) -> Change:
    def do(frames: Frames) -> int:
        index = index_of(frames, before, nth)
        frames.insert(index, deepcopy(frame))
        numbered(frames)
        return index

    return do


def append(frame: Frame) -> Change:
    def do(frames: Frames) -> int:
        frames.append(deepcopy(frame))
        numbered(frames)
        return len(frames) - 1

    return do


def all_of(*changes: Change) -> Change:
    def do(frames: Frames) -> int | None:
        return [each(frames) for each in changes][-1]

    return do


def somewhere(change: Change) -> Change:
    """A change whose frame nobody can name afterwards: only the sum is wrong."""

    def do(frames: Frames) -> None:
        change(frames)

    return do


def framed_as(frame: Frame, key: str, value: Any) -> None:
    """Anything at all for the name or the data of a frame."""
    if key == "name":
        frame.name = str(value).replace("\n", " ").replace("\r", " ")
    else:
        frame.data = value if not isinstance(value, str) else value.replace("\r", " ").replace("\n", " ")
