"""What a conversation has come to: items in order, every call with its result."""

from collections.abc import Iterable, Sequence

import msgspec

from toolwire.agent.call import ToolCall
from toolwire.agent.items import (
    CALLS,
    AnyItem,
    CustomCallItem,
    FunctionCallItem,
    LocalShellCallItem,
    MessageItem,
    OutputItem,
    call_of,
    output_item,
    read_item,
    user_message,
    with_output,
)
from toolwire.agent.registry import Result
from toolwire.agent.runtime import shortened
from toolwire.core.request import TextPart

ABORTED = Result((TextPart("aborted"),), failed=True)
"""The result of a call that nobody remembers the end of."""


class History:
    """The items of a session."""

    def __init__(self, items: Iterable[AnyItem] = ()) -> None:
        self._items: list[AnyItem] = list(items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[AnyItem]:
        return self._items

    @property
    def raw(self) -> list[msgspec.Raw]:
        return [item.raw for item in self._items]

    def add(self, items: Iterable[AnyItem]) -> None:
        self._items += items

    def replace(self, items: Iterable[AnyItem]) -> None:
        self._items = list(items)

    def open_calls(self) -> list[ToolCall]:
        """Calls without a result."""
        return [*self._open_calls().values()]

    def _open_calls(self) -> dict[int, ToolCall]:
        """The same by their place. A result belongs to the first call of its id that stands before it and has none."""
        waiting: dict[int, ToolCall] = {}
        for place, item in enumerate(self._items):
            if isinstance(item, FunctionCallItem | CustomCallItem | LocalShellCallItem):
                waiting[place] = call_of(item)
            elif isinstance(item, OutputItem):
                answered = next((at for at, call in waiting.items() if call.call_id == item.call_id), None)
                if answered is not None:
                    del waiting[answered]
        return waiting

    def close_calls(self) -> list[OutputItem]:
        """Give every call that has none a result; those that were made."""
        made = {place: output_item(call, ABORTED) for place, call in self._open_calls().items()}
        out: list[AnyItem] = []
        waiting: list[OutputItem] = []
        for place, item in enumerate(self._items):
            if waiting and not isinstance(item, (*CALLS, OutputItem)):
                out += waiting
                waiting = []
            out.append(item)
            if place in made:
                waiting.append(made[place])
        self._items = [*out, *waiting]
        return [*made.values()]

    def tail(self) -> list[AnyItem]:
        """The items from the last message of the user on."""
        for place in range(len(self._items) - 1, -1, -1):
            if _is_prompt(self._items[place]):
                return self._items[place:]
        return []


LEFT_OUT = user_message("(The beginning of this conversation is left out, because it is too long.)")


def size_of(items: Iterable[AnyItem]) -> int:
    """The size of items as they are sent."""
    return sum(len(bytes(item.raw)) for item in items)


def newest(items: Sequence[AnyItem], letters: int) -> list[AnyItem]:
    """The last items that fit, from the beginning of a turn on, so that calls keep their reasoning and results.

    Of long results the ends are kept.
    """
    items = [_shortened(item, letters // 4) for item in items]
    start, size = len(items), 0
    for place in range(len(items) - 1, 0, -1):
        size += size_of(items[place : place + 1])
        if size > letters and start < len(items):
            break
        if _begins_a_turn(items[place - 1], items[place]):
            start = place
    return items[start:] if start < len(items) and _is_prompt(items[start]) else [LEFT_OUT, *items[start:]]


def _begins_a_turn(before: AnyItem, item: AnyItem) -> bool:
    if isinstance(before, OutputItem) or _is_prompt(before):
        return not isinstance(item, OutputItem)
    return _is_prompt(item)


def _is_prompt(item: AnyItem) -> bool:
    return isinstance(item, MessageItem) and item.role == "user"


def _shortened(item: AnyItem, letters: int) -> AnyItem:
    if not isinstance(item, OutputItem) or len(bytes(item.raw)) <= letters:
        return item
    return with_output(item, shortened(item.text, letters))


def read_items(raw: Iterable[bytes | msgspec.Raw]) -> list[AnyItem]:
    return [read_item(each) for each in raw]
