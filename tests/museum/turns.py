"""Whole upstream turns, made up by hypothesis: what a Responses server might send, and what it means.

A server tells the same fact up to four times (deltas, done, item done, final output) and leaves out any of them, as long
as one is left. It names an item by its id, by its place, or both. Items may interleave. Whatever it does, the turn means
what its items say.
"""

import json
from typing import Any, Literal, TypeAlias

import msgspec
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.frames import created, rs

NAMES = ("find", "look")

letters = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
nasty = st.sampled_from(
    ("<", "<tool", "</tool_call>", "`", "```\n", "\n", "\r\n", "[DONE]", "data: x\n\n", "{", '"', "\\")
)
words = st.lists(letters | nasty, max_size=5).map("".join)
values = st.recursive(st.none() | st.booleans() | st.integers() | words, lambda inner: st.lists(inner, max_size=3))
objects = st.dictionaries(words, values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))

Keys: TypeAlias = Literal["both", "item_id", "output_index"]
BOTH: st.SearchStrategy[Keys] = st.just("both")
Step: TypeAlias = tuple[str, dict[str, Any]]
"""An event's type and fields, before it is decided which keys it has."""


class Telling(msgspec.Struct, frozen=True):
    """Which of the ways to tell an item are used, beside the final output."""

    added: bool = True
    deltas: bool = True
    done: bool = True
    item_done: bool = True


tellings = st.builds(Telling, st.booleans(), st.booleans(), st.booleans(), st.booleans())


class Spoken(msgspec.Struct, frozen=True):
    text: str
    pieces: list[str]
    telling: Telling

    @property
    def is_told(self) -> bool:
        return self.telling.deltas or self.telling.done or self.telling.item_done

    def item(self, place: int) -> dict[str, Any]:
        return {"type": "message", "id": f"msg_{place}", "content": [{"type": "output_text", "text": self.text}]}

    def steps(self, place: int) -> list[Step]:
        where = {"item_id": f"msg_{place}", "output_index": place, "content_index": 0}
        return [
            *(
                [("output_text.delta", {"delta": piece, **where}) for piece in self.pieces]
                if self.telling.deltas
                else ()
            ),
            *([("output_text.done", {"text": self.text, **where})] if self.telling.done else ()),
            *([_item_done(self.item(place), place)] if self.telling.item_done else ()),
        ]


class Thought(msgspec.Struct, frozen=True):
    parts: list[str]
    telling: Telling

    @property
    def is_told(self) -> bool:
        return self.telling.deltas or self.telling.item_done

    def item(self, place: int) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": part} for part in self.parts]
        return {"type": "reasoning", "id": f"rs_{place}", "summary": summary, "encrypted_content": f"signature {place}"}

    def steps(self, place: int) -> list[Step]:
        where = {"item_id": f"rs_{place}", "output_index": place}
        deltas = [
            ("reasoning_summary_text.delta", {"delta": part, "summary_index": number, **where})
            for number, part in enumerate(self.parts)
        ]
        done = [_item_done(self.item(place), place)]
        return [*(deltas if self.telling.deltas else ()), *(done if self.telling.item_done else ())]


class Called(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    pieces: list[str]
    telling: Telling
    custom: bool = False
    """The arguments are any text."""

    @property
    def is_told(self) -> bool:
        """Both its name and its arguments were."""
        telling = self.telling
        return telling.item_done or (telling.added and (telling.deltas or telling.done))

    def item(self, place: int, arguments: str | None = None) -> dict[str, Any]:
        type, field = ("custom_tool_call", "input") if self.custom else ("function_call", "arguments")
        text = self.arguments if arguments is None else arguments
        return {"type": type, "id": f"fc_{place}", "call_id": f"call_{place}", "name": self.name, field: text}

    def steps(self, place: int) -> list[Step]:
        where = {"item_id": f"fc_{place}", "output_index": place}
        type, field = ("custom_tool_call_input", "input") if self.custom else ("function_call_arguments", "arguments")
        added = ("output_item.added", {"output_index": place, "item": self.item(place, "")})
        deltas = [(f"{type}.delta", {"delta": piece, **where}) for piece in self.pieces]
        done = (f"{type}.done", {field: self.arguments, **where})
        return [
            *([added] if self.telling.added else ()),
            *(deltas if self.telling.deltas else ()),
            *([done] if self.telling.done else ()),
            *([_item_done(self.item(place), place)] if self.telling.item_done else ()),
        ]


Item: TypeAlias = Spoken | Thought | Called


def _item_done(item: dict[str, Any], place: int) -> Step:
    return "output_item.done", {"output_index": place, "item": item}


class RawFrame(msgspec.Struct, frozen=True):
    """A turn as it goes over the wire, and what it means."""

    items: list[Item]
    frames: list[bytes]

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)

    @property
    def text(self) -> str:
        return "".join(item.text for item in _by_arrival(self.items) if isinstance(item, Spoken))

    @property
    def thoughts(self) -> str:
        return "".join("".join(item.parts) for item in _by_arrival(self.items) if isinstance(item, Thought))

    @property
    def calls(self) -> dict[str, tuple[str, str]]:
        """Name and arguments by id."""
        return {
            f"call_{place}": (item.name, item.arguments)
            for place, item in enumerate(self.items)
            if isinstance(item, Called)
        }

    @property
    def output(self) -> list[dict[str, Any]]:
        return [item.item(place) for place, item in enumerate(self.items)]


def _by_arrival(items: list[Item]) -> list[Item]:
    """What is told by the final output alone comes last."""
    return [*(item for item in items if item.is_told), *(item for item in items if not item.is_told)]


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, at random places."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def _items(draw: st.DrawFn, telling: st.SearchStrategy[Telling]) -> Item:
    kind = draw(st.sampled_from((Spoken, Called, Called, Thought)))
    if kind is Thought:
        parts = draw(st.lists(st.text("abc ", min_size=1, max_size=6), min_size=1, max_size=3))
        return Thought(parts, draw(telling))
    if kind is Spoken:
        text = draw(words)
        return Spoken(text, draw(cut(text)), draw(telling))
    custom = draw(st.integers(0, 3)) == 3
    text = draw(words if custom else objects)
    return Called(draw(st.sampled_from(NAMES)), text, draw(cut(text)), draw(telling), custom)


@st.composite
def turns(draw: st.DrawFn, keys: st.SearchStrategy[Keys] = BOTH) -> RawFrame:
    """A turn that the server finishes, with or without saying everything again at the end."""
    final = draw(st.booleans())
    items = draw(st.lists(_items(tellings), max_size=5))
    if not final:
        items = [item if item.is_told else msgspec.structs.replace(item, telling=Telling()) for item in items]
    key = draw(keys)
    frames = [rs(type, **_with_keys(key, fields)) for type, fields in _merged(draw, items)]
    usage = {"input_tokens": draw(st.integers(0, 9)), "output_tokens": 3}
    output = RawFrame(items, []).output if final else []
    ending = rs("completed", response={"id": "resp_1", "status": "completed", "output": output, "usage": usage})
    told = RawFrame(items, [created(), *frames, ending])
    assume(not has_tags(told.text))
    return told


def has_tags(text: str) -> bool:
    """Whether a textual call might begin here."""
    return "<tool_call>" in text or "<use_tool>" in text


def _merged(draw: st.DrawFn, items: list[Item]) -> list[Step]:
    """The items' events: one item after the other, or calls mixed with each other and with everything else."""
    queues = [item.steps(place) for place, item in enumerate(items)]
    if not draw(st.booleans()):
        return [step for queue in queues for step in queue]
    calls = [queue for item, queue in zip(items, queues, strict=True) if isinstance(item, Called)]
    others = [queue for item, queue in zip(items, queues, strict=True) if not isinstance(item, Called)]
    waiting = [[step for queue in others for step in queue], *calls]
    merged: list[Step] = []
    while any(waiting):
        ready = [queue for queue in waiting if queue]
        merged.append(ready[draw(st.integers(0, len(ready) - 1))].pop(0))
    return merged


def _with_keys(key: Keys, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without the key that this server does not use."""
    if key == "item_id":
        return {name: value for name, value in fields.items() if name != "output_index"}
    if key == "both":
        return fields
    kept = {name: value for name, value in fields.items() if name != "item_id"}
    if "item" in kept:
        kept["item"] = {name: value for name, value in kept["item"].items() if name != "id"}
    return kept
