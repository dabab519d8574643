"""The history of a conversation: items in order, every call with its result."""

from collections.abc import Iterable, Sequence

import msgspec

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
from toolwire.core.request import TextPart
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import shortened
from toolwire.turns.tools.registry import Result

ABORTED = Result((TextPart("aborted"),), failed=True)
"""The result of a call whose outcome is unknown."""


class History:
    """The items of a session."""

    def __init__(self, items: Iterable[AnyItem] = ()) -> None:
        self._items: list[AnyItem] = list(items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[AnyItem]:
        """The items in order."""
        return self._items

    @property
    def raw(self) -> list[msgspec.Raw]:
        """The items as JSON."""
        return [item.raw for item in self._items]

    def add(self, items: Iterable[AnyItem]) -> None:
        """Append items."""
        self._items += items

    def replace(self, items: Iterable[AnyItem]) -> None:
        """Put other items in index of all."""
        self._items = list(items)

    def open_calls(self) -> list[ToolCall]:
        """Calls without a result."""
        return [*self._open_calls().values()]

    def _open_calls(self) -> dict[int, ToolCall]:
        """The same by index. A result belongs to the first earlier call with its id that has none."""
        waiting: dict[int, ToolCall] = {}
        for index, item in enumerate(self._items):
            if isinstance(item, FunctionCallItem | CustomCallItem | LocalShellCallItem):
                waiting[index] = call_of(item)
            elif isinstance(item, OutputItem):
                answered = next((at for at, call in waiting.items() if call.call_id == item.call_id), None)
                if answered is not None:
                    del waiting[answered]
        return waiting

    def close_calls(self) -> list[OutputItem]:
        """Add a result to every call that has none, and return the added ones."""
        made = {index: output_item(call, ABORTED) for index, call in self._open_calls().items()}
        out: list[AnyItem] = []
        waiting: list[OutputItem] = []
        for index, item in enumerate(self._items):
            if waiting and not isinstance(item, (*CALLS, OutputItem)):
                out += waiting
                waiting = []
            out.append(item)
            if index in made:
                waiting.append(made[index])
        self._items = [*out, *waiting]
        return [*made.values()]

    def tail(self) -> list[AnyItem]:
        """The items from the last user message on."""
        for index in range(len(self._items) - 1, -1, -1):
            if _is_prompt(self._items[index]):
                return self._items[index:]
        return []


LEFT_OUT = user_message("(The beginning of this conversation is left out, because it is too long.)")


def size_of(items: Iterable[AnyItem]) -> int:
    """The size of items as they are sent."""
    return sum(len(bytes(item.raw)) for item in items)


def newest(items: Sequence[AnyItem], max_chars: int) -> list[AnyItem]:
    """The last items that fit, beginning with a turn, so that calls keep their reasoning and results.

    Long results are shortened in their middle.
    """
    items = [_shortened(item, max_chars // 4) for item in items]
    start, size = len(items), 0
    for index in range(len(items) - 1, 0, -1):
        size += size_of(items[index : index + 1])
        if size > max_chars and start < len(items):
            break
        if _begins_a_turn(items[index - 1], items[index]):
            start = index
    return items[start:] if start < len(items) and _is_prompt(items[start]) else [LEFT_OUT, *items[start:]]


def _begins_a_turn(before: AnyItem, item: AnyItem) -> bool:
    if isinstance(before, OutputItem) or _is_prompt(before):
        return not isinstance(item, OutputItem)
    return _is_prompt(item)


def _is_prompt(item: AnyItem) -> bool:
    return isinstance(item, MessageItem) and item.role == "user"


def _shortened(item: AnyItem, max_chars: int) -> AnyItem:
    if not isinstance(item, OutputItem) or len(bytes(item.raw)) <= max_chars:
        return item
    return with_output(item, shortened(item.text, max_chars))


def read_items(raw: Iterable[bytes | msgspec.Raw]) -> list[AnyItem]:
    """Read items of any kind from JSON."""
    return [read_item(each) for each in raw]
