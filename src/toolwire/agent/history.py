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
        answered = {item.call_id for item in self._items if isinstance(item, OutputItem)}
        return [
            call_of(item)
            for item in self._items
            if isinstance(item, FunctionCallItem | CustomCallItem | LocalShellCallItem) and item.call_id not in answered
        ]

    def close_calls(self) -> list[OutputItem]:
        """Give every call that has none a result; those that were made."""
        made = [output_item(call, ABORTED) for call in self.open_calls()]
        by_call = {item.call_id: item for item in made}
        if made:
            out: list[AnyItem] = []
            waiting: list[OutputItem] = []
            for item in self._items:
                if waiting and not isinstance(item, (*CALLS, OutputItem)):
                    out += waiting
                    waiting = []
                out.append(item)
                if isinstance(item, CALLS) and item.call_id in by_call:
                    waiting.append(by_call[item.call_id])
            self._items = [*out, *waiting]
        return made

    def tail(self) -> list[AnyItem]:
        """The items from the last message of the user on."""
        for place in range(len(self._items) - 1, -1, -1):
            item = self._items[place]
            if isinstance(item, MessageItem) and item.role == "user":
                return self._items[place:]
        return []


def read_items(raw: Iterable[bytes | msgspec.Raw]) -> list[AnyItem]:
    return [read_item(each) for each in raw]
