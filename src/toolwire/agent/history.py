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
)
from toolwire.agent.registry import Result
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
            item = self._items[place]
            if isinstance(item, MessageItem) and item.role == "user":
                return self._items[place:]
        return []


def read_items(raw: Iterable[bytes | msgspec.Raw]) -> list[AnyItem]:
    return [read_item(each) for each in raw]
