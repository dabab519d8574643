"""`ToolCallAggregator`: the identity table for anyone who has payloads and wants calls.

    aggregator = ToolCallAggregator()
    for chunk in stream:
        for delta in aggregator.ingest_delta(chunk).deltas:
            print(delta.index, delta.id, delta.name, delta.arguments)
    calls = aggregator.snapshot()

It takes every shape listed in `toolwire.core.loose`, never parses arguments, never changes what it is given, and does
nothing but answer. A delta holds what is new, never a running total.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast
from uuid import uuid4

import msgspec

from toolwire.core.collect import Call
from toolwire.core.events import CallArgs, CallEnded, CallKind, CallStarted, Event
from toolwire.core.identity import Call as Row
from toolwire.core.identity import CallTable, Fragment
from toolwire.core.loose import choice_of, ending_of, read_fragments
from toolwire.core.text import is_json
from toolwire.notations.read import extract_calls
from toolwire.notations.tell import Made, take_twin
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL

TextPattern: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]
"""Finds calls in a finished text: pairs of name and arguments."""


class CallDelta(msgspec.Struct, frozen=True):
    """What is new about one call. `id` and `name` are set once, when the call begins."""

    index: int
    id: str = ""
    name: str = ""
    kind: CallKind = "function"
    arguments: str = ""
    complete: bool = False


class Ingested(msgspec.Struct, frozen=True):
    updated: bool
    deltas: tuple[CallDelta, ...] = ()


class ToolCallAggregator:
    """Collects the calls of one turn, choice by choice, from deltas and messages of any shape."""

    def __init__(self, names: Iterable[str] = (), seed: str | None = None) -> None:
        """`names` are the declared tools, if known; `seed` makes ids unique for calls that came without one."""
        self._names = tuple(names)
        self._seed = uuid4().hex[:16] if seed is None else seed
        self._tables: dict[int, CallTable] = {}
        self._endings: dict[int, str] = {}
        self._parallel = True
        self._patterns: dict[str, TextPattern] = {"text": _extract_all}

    def ingest_delta(self, delta: Any, choice: int = 0) -> Ingested:
        """Take one streamed payload and return what is new."""
        return self._ingest(delta, choice, total=False)

    def ingest_message(self, message: Any, emit_if_missing: bool = False, choice: int = 0) -> Ingested:
        """Take a finished message. With `emit_if_missing`, calls written in its text count too, twins excepted."""
        ingested = self._ingest(message, choice, total=True)
        if not emit_if_missing:
            return ingested
        return _joined(ingested, self._ingest_text(_text_of(message), choice))

    def snapshot(self, choice: int = 0) -> tuple[Call, ...]:
        """All calls so far, in the order they began."""
        table = self._tables.get(choice)
        if table is None:
            return ()
        stopped = self._endings.get(choice) == "stop"
        return tuple(_record(call, stopped) for call in table.calls if call.id or call.name or call.parts)

    def reset_turn(self, choice: int | None = None) -> None:
        """Forget the calls of one choice, or of all. Registered patterns stay."""
        if choice is None:
            self._tables.clear()
            self._endings.clear()
        else:
            self._tables.pop(choice, None)
            self._endings.pop(choice, None)

    @property
    def has_calls(self) -> bool:
        return any(table.calls for table in self._tables.values())

    @property
    def supports_parallel_calls(self) -> bool:
        """False once a payload said that calls are not made in parallel."""
        return self._parallel

    def register_text_pattern(self, name: str, pattern: TextPattern) -> Callable[[], None]:
        """Let this aggregator find calls in text by one more pattern; returns what removes it again."""
        self._patterns[name] = pattern

        def unregister() -> None:
            self._patterns.pop(name, None)

        return unregister

    def _ingest(self, payload: Any, choice: int, *, total: bool) -> Ingested:
        if _denies_parallel(payload):
            self._parallel = False
        deltas: list[CallDelta] = []
        for number, part in _by_choice(payload, choice):
            table, ending = self._table(number), ending_of(part)
            for fragment in read_fragments(part, total=total):
                deltas += _deltas(table, table.feed(_judged(fragment, ending)))
            if ending:
                # Some servers write an ending into every chunk: names are settled now, but no call is closed for good.
                self._endings[number] = ending
                deltas += _deltas(table, table.settle_names())
        return Ingested(bool(deltas), tuple(deltas))

    def _ingest_text(self, text: str, choice: int) -> Ingested:
        table = self._table(choice)
        made: list[Made] = [*table.calls]
        deltas: list[CallDelta] = []
        for pattern in tuple(self._patterns.values()):
            for name, arguments in pattern(text):
                if take_twin(made, name, arguments):
                    continue
                whole = Fragment(arguments, item=f"text {len(table.calls)}", name=name, named=True, ended=True)
                deltas += _deltas(table, table.feed(whole))
        return Ingested(bool(deltas), tuple(deltas))

    def _table(self, choice: int) -> CallTable:
        if choice not in self._tables:
            seed = self._seed if choice == 0 else f"{self._seed}{choice}"
            self._tables[choice] = CallTable(seed, self._names)
        return self._tables[choice]


def extract_use_tool_blocks(text: str) -> list[tuple[str, str]]:
    """The calls written as `<use_tool>` in a text, as name and arguments."""
    return extract_calls(text, (USE_TOOL,))


def _extract_all(text: str) -> list[tuple[str, str]]:
    return extract_calls(text, (USE_TOOL, TOOL_CALL))


def _judged(fragment: Fragment, ending: str) -> Fragment:
    """A call that ends with its turn, incomplete if the turn was cut and its arguments are not whole."""
    if ending != "length" or not fragment.ended or fragment.kind == "custom" or is_json(fragment.text):
        return fragment
    return msgspec.structs.replace(fragment, complete=False)


def _record(call: Row, stopped: bool) -> Call:
    """A call as it stands. Without arguments it is whole once it ended, or its turn did, other than by being cut."""
    is_blank = call.kind == "function" and call.is_blank()
    whole = bool(call.closing) if call.ended else (call.is_whole() and not is_blank) or (stopped and call.stands())
    return Call(call.id, call.name, "{}" if is_blank and whole else call.text, call.kind, whole and not call.broken)


def _joined(one: Ingested, other: Ingested) -> Ingested:
    return Ingested(one.updated or other.updated, one.deltas + other.deltas)


def _deltas(table: CallTable, events: list[Event]) -> list[CallDelta]:
    deltas: list[CallDelta] = []
    for event in events:
        match event:
            case CallStarted(id, name, kind):
                deltas.append(CallDelta(table.ordinal(id), id, name, kind))
            case CallArgs(id, text):
                deltas.append(CallDelta(table.ordinal(id), arguments=text))
            case CallEnded(id, complete):
                deltas.append(CallDelta(table.ordinal(id), complete=complete))
            case _:
                pass
    return deltas


def _by_choice(payload: Any, choice: int) -> list[tuple[int, Any]]:
    """The payload, or each of its choices under its own number."""
    choices = cast("Mapping[str, Any]", payload).get("choices") if isinstance(payload, Mapping) else None
    if not isinstance(choices, list):
        stated = choice_of(payload)
        return [(choice if stated is None else stated, payload)]
    numbered: list[tuple[int, Any]] = []
    for place, each in enumerate(cast("list[Any]", choices)):
        number = choice_of(each, "index")
        numbered.append((place if number is None else number, each))
    return numbered


def _denies_parallel(payload: Any) -> bool:
    if not isinstance(payload, Mapping):
        return False
    payload = cast("Mapping[str, Any]", payload)
    said = (payload.get("parallel_tool_calls"), payload.get("parallelToolCalls"))
    return False in said or _denies_parallel(payload.get("response"))


def _text_of(message: Any) -> str:
    """The answer's text in a message of any shape."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return "".join(_text_of(part) for part in cast("list[Any]", message))
    if not isinstance(message, Mapping):
        return ""
    message = cast("Mapping[str, Any]", message)
    for key in ("content", "text", "message", "choices", "output"):
        if message.get(key):
            return _text_of(message[key])
    return ""
