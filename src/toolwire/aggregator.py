"""`ToolCallAggregator`: collects tool calls from payloads of any shape.

    aggregator = ToolCallAggregator()
    for chunk in stream:
        for delta in aggregator.ingest_delta(chunk).deltas:
            print(delta.index, delta.id, delta.name, delta.arguments)
    calls = aggregator.snapshot()

It reads every shape that `toolwire.core.shapes` lists. It never parses arguments, never changes a payload, and
performs no IO. A delta holds what is new, never a running total.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast
from uuid import uuid4

import msgspec

from toolwire.core.call_index import CallRow, Fragment
from toolwire.core.calls import CallTable
from toolwire.core.collect import Call, collect_calls
from toolwire.core.events import CallArgs, CallEnded, CallKind, CallStarted, CallTwin, Event, TextDelta
from toolwire.core.shapes import (
    choice_of,
    ending_of,
    ends_with_blank_call,
    other_block_of,
    read_fragments,
    text_delta_of,
)
from toolwire.core.shapes import text_of_message as answer_text
from toolwire.core.text import canonicalise, check_names, is_json, join_surrogates
from toolwire.notations.read import ReadTextCalls, extract_calls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

TextPattern: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]
"""Finds calls in a finished text: pairs of name and arguments."""


class CallDelta(msgspec.Struct, frozen=True):
    """New content of one call. `id` and `name` are set once, when the call starts."""

    index: int
    id: str = ""
    name: str = ""
    kind: CallKind = "function"
    arguments: str = ""
    complete: bool = False


class Ingested(msgspec.Struct, frozen=True):
    """The new content of one payload; `updated` tells whether there is any."""

    updated: bool
    deltas: tuple[CallDelta, ...] = ()


class ToolCallAggregator:
    """Collects the calls of one turn, choice by choice, from deltas and messages of any shape."""

    def __init__(
        self, names: Iterable[str] = (), seed: str | None = None, arguments: Literal["delta", "snapshot"] = "delta"
    ) -> None:
        """`names` are the declared tools, if known; `seed` distinguishes the ids that are made for calls without one.

        `arguments`: whether a streamed fragment of arguments is an increment or everything so far.
        """
        if arguments not in ("delta", "snapshot"):
            raise ValueError(f'arguments: "delta" or "snapshot" is needed, not {arguments!r}')
        self._names = check_names("names", names)
        self._seed = uuid4().hex[:16] if seed is None else seed
        self._snapshots = arguments == "snapshot"
        self._resets = 0
        self._choices: dict[int, _Choice] = {}
        self._parallel = True
        self._patterns: dict[str, TextPattern] = {"text": _extract_all}

    def ingest_delta(self, delta: Any, choice: int = 0) -> Ingested:
        """Read one streamed payload and return what is new. A call in its text is new when its block closes."""
        return self._ingest(delta, choice, total=False)

    def ingest_message(self, message: Any, emit_if_missing: bool = False, choice: int = 0) -> Ingested:
        """Read a finished message. With `emit_if_missing`, calls in its text count too, except twins of other calls."""
        ingested = self._ingest(message, choice, total=True)
        deltas = self._ingest_text(answer_text(message), choice) if emit_if_missing else []
        return Ingested(ingested.updated or bool(deltas), (*ingested.deltas, *deltas))

    def snapshot(self, choice: int = 0) -> tuple[Call, ...]:
        """All calls so far, in the order they began."""
        found = self._choices.get(choice)
        return found.list_calls() if found is not None else ()

    def reset_turn(self, choice: int | None = None) -> None:
        """Forget the calls of one choice, or of all. Registered patterns stay."""
        self._resets += 1
        if choice is None:
            self._choices.clear()
        else:
            self._choices.pop(choice, None)

    @property
    def has_calls(self) -> bool:
        """Whether any choice has a call."""
        return any(choice.table.calls for choice in self._choices.values())

    @property
    def supports_parallel_calls(self) -> bool:
        """False once a payload stated that calls are not made in parallel."""
        return self._parallel

    def register_text_pattern(self, name: str, pattern: TextPattern) -> Callable[[], None]:
        """Register another pattern that finds calls in text; returns a function that removes it."""
        self._patterns[name] = pattern

        def unregister() -> None:
            self._patterns.pop(name, None)

        return unregister

    def _ingest(self, payload: Any, choice: int, *, total: bool) -> Ingested:
        if _denies_parallel(payload):
            self._parallel = False
        deltas: list[CallDelta] = []
        has_named = False  # whether a call that waits for its id has its name and its arguments
        for number, part in _split_choices(payload, choice):
            found, ending = self._open_choice(number), ending_of(part)
            if not total and self._patterns.get("text") is _extract_all:
                deltas += found.read(text_delta_of(part))
            if other := other_block_of(part):
                deltas += found.skip_block(other)
            fragments = read_fragments(part, total=total)
            if fragments and ending == "length" and ends_with_blank_call(part):
                fragments[-1] = msgspec.structs.replace(fragments[-1], text="")
            for fragment in fragments:
                snapshot = self._snapshots and not fragment.total and bool(fragment.text)
                if snapshot:
                    fragment = msgspec.structs.replace(fragment, total=True)  # noqa: PLW2901
                elif ending == "length" and fragment.ended and fragment.kind != "custom" and not is_json(fragment.text):
                    fragment = msgspec.structs.replace(fragment, complete=False)  # noqa: PLW2901
                deltas += found.take_fragment(fragment)
                has_named = has_named or (fragment.early and fragment.final and bool(fragment.name))
            if ending:
                deltas += found.end(ending)
        return Ingested(bool(deltas) or has_named, tuple(deltas))

    def _ingest_text(self, text: str, choice: int) -> list[CallDelta]:
        found = self._open_choice(choice)
        made = Counter((call.name, canonicalise(call.arguments or "{}")) for call in found.list_calls())
        deltas: list[CallDelta] = []
        for pattern in tuple(self._patterns.values()):
            for name, arguments in pattern(text):
                call = name, canonicalise(arguments)
                if made[call]:
                    made[call] -= 1
                else:
                    deltas += found.add(name, arguments)
        return deltas

    def _open_choice(self, choice: int) -> "_Choice":
        if choice not in self._choices:
            seed = self._seed if choice == self._resets == 0 else f"{self._seed}_{self._resets}_{choice}_"
            self._choices[choice] = _Choice(seed, self._names)
        return self._choices[choice]


class _Choice:
    """The calls of one choice, from fragments and from text. A call found in both counts once."""

    def __init__(self, seed: str, names: Sequence[str]) -> None:
        self.table = CallTable(seed, names)
        self._reader = ReadTextCalls((USE_TOOL, TOOL_CALL), seed, Schemas(()), names or None)
        self._indexes: dict[str, int] = {}  # of the calls that were reported
        self._twins: set[str] = set()  # calls that are reported under another id
        self._ending = ""
        self._other_blocks: set[str] = set()  # items that are not calls
        self._blank_block: CallRow | None = None  # the last call, if it has ended without arguments

    def list_calls(self) -> tuple[Call, ...]:
        stopped = self._ending == "stop"
        calls = (call for call in self.table.calls if call.id not in self._twins and not call.is_bare)
        return tuple(
            _make_call(call, self.table.id_of(call) if call.early and call.final else call.id, stopped)
            for call in calls
            if call.id or call.name or call.parts
        )

    def take_fragment(self, fragment: Fragment) -> list[CallDelta]:
        if fragment.item in self._other_blocks:
            if not fragment.name:
                return []
            self._other_blocks.remove(fragment.item)
        deltas = self._close_block() if fragment.name else []
        feed = self.table.feed
        if fragment.ended and fragment.early:
            call = self.table.find_latest(fragment.item)
            is_blank = call is not None and call.is_blank()
            self._blank_block = call if call is not None and is_blank and not call.default else None
            feed = feed if is_blank else self.table.end_block
        deltas += self._drop_twins(feed(fragment))
        for call in self.table.calls if self._reader.held else ():
            if call.id in self._reader.held and call.text.rstrip().endswith("}") and call.is_whole():
                deltas += self._to_deltas(self._reader.settle(call.id))
        return deltas

    def skip_block(self, item: str) -> list[CallDelta]:
        """Skip a block that starts here and is not a call."""
        self._other_blocks.add(item)
        return self._close_block()

    def _close_block(self, *, complete: bool = True) -> list[CallDelta]:
        """End the call of the last block: the model went on after it, or the turn has ended."""
        if self._blank_block is not None and not complete:
            self._blank_block.closing = False
        self._blank_block = None
        return self._drop_twins(self.table.close_block(complete=complete))

    def read(self, text: str) -> list[CallDelta]:
        """Read a fragment of the answer's text."""
        return self._add_found(self._reader.feed(TextDelta(text))) if text else []

    def add(self, name: str, arguments: str) -> list[CallDelta]:
        """Add a whole call that was found in text."""
        item = f"text {len(self.table.calls)}"
        return self._to_deltas(self.table.feed(Fragment(arguments, item=item, name=name, named=True, ended=True)))

    def end(self, ending: str) -> list[CallDelta]:
        """Read an ending. Some servers send one in every chunk, so it closes only a call whose block has ended."""
        self._ending = ending
        deltas = self._close_block(complete=ending == "stop")
        deltas += self._add_found(self._reader.recover()) + self._drop_twins(self.table.settle_names())
        for id in tuple(self._reader.held):
            deltas += self._to_deltas(self._reader.settle(id))
        return deltas

    def _drop_twins(self, events: Iterable[Event]) -> list[CallDelta]:
        return [delta for event in events for delta in self._to_deltas(self._reader.feed(event))]

    def _add_found(self, events: Iterable[Event]) -> list[CallDelta]:
        """Add the calls that the text reader found."""
        return [delta for call in collect_calls(events) for delta in self.add(call.name, call.arguments)]

    def _to_deltas(self, events: Iterable[Event]) -> list[CallDelta]:
        deltas: list[CallDelta] = []
        for event in events:
            match event:
                case CallStarted(id, name, kind):
                    self._indexes[id] = self.table.ordinal_of(id) - len(self._twins)
                    deltas.append(CallDelta(self._indexes[id], id, name, kind))
                case CallArgs(id, text):
                    deltas.append(CallDelta(self._indexes[id], arguments=text))
                case CallEnded(id, complete):
                    deltas.append(CallDelta(self._indexes[id], complete=complete))
                case CallTwin(id, twin) if twin != id:
                    self._twins.add(twin)
                case _:
                    pass
        return deltas


def extract_use_tool_blocks(text: str) -> list[tuple[str, str]]:
    """The calls written as `<use_tool>` in a text, as name and arguments."""
    return extract_calls(text, (USE_TOOL,))


def _extract_all(text: str) -> list[tuple[str, str]]:
    return extract_calls(text, (USE_TOOL, TOOL_CALL))


def _make_call(call: CallRow, id: str, stopped: bool) -> Call:
    """The call so far. A call without arguments is complete once it, or a turn that was not cut, has ended."""
    if call.default and call.is_blank():
        return Call(id, call.name, call.default, call.kind, stopped and is_json(call.default), namespace=call.namespace)
    is_blank, whole = call.kind == "function" and call.is_blank(), bool(call.closing)
    if not call.ended:
        whole = (call.is_whole() and not is_blank) or (stopped and call.may_be_whole())
    arguments, complete = "{}" if is_blank and whole else join_surrogates(call.text), whole and not call.broken
    return Call(id, call.name, arguments, call.kind, complete, namespace=call.namespace, signature=call.signature)


def _split_choices(payload: Any, choice: int) -> list[tuple[int, Any]]:
    """The payload, or each of its choices with its index."""
    choices = cast("Mapping[str, Any]", payload).get("choices") if isinstance(payload, Mapping) else None
    if not isinstance(choices, list):
        stated = choice_of(payload)
        return [(choice if stated is None else stated, payload)]
    numbered: list[tuple[int, Any]] = []
    for index, each in enumerate(cast("list[Any]", choices)):
        number = choice_of(each, "index")
        numbered.append((index if number is None else number, each))
    return numbered


def _denies_parallel(payload: Any) -> bool:
    if not isinstance(payload, Mapping):
        return False
    payload = cast("Mapping[str, Any]", payload)
    flags = (payload.get("parallel_tool_calls"), payload.get("parallelToolCalls"))
    return False in flags or _denies_parallel(payload.get("response"))
