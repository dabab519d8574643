"""The history of a conversation: items in order, every call with its result."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from toolwire.agent.items import (
    AnyItem,
    MessageItem,
    OutputItem,
    ToolCallItem,
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
        self.items = list(items)
        """The items in order."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def raw(self) -> list[msgspec.Raw]:
        """The items as JSON."""
        return [item.raw for item in self.items]

    def close_calls(self) -> list[OutputItem]:
        """Add a result to every call that has none, behind the calls that were made with it; the added ones."""
        waiting: dict[int, ToolCall] = {}
        for index, item in enumerate(self.items):
            if isinstance(item, ToolCallItem):
                waiting[index] = item.call
            elif isinstance(item, OutputItem):  # of the first call with its id that has none
                answered = (at for at, call in waiting.items() if call.call_id == item.call_id)
                waiting.pop(next(answered, -1), None)
        made = {index: output_item(call, ABORTED) for index, call in waiting.items()}
        closed: list[AnyItem] = []
        for _, batch in groupby(enumerate(self.items), lambda each: isinstance(each[1], ToolCallItem | OutputItem)):
            indexes, items = zip(*batch, strict=True)
            closed += [*items, *(made[index] for index in indexes if index in made)]
        self.items = closed
        return [*made.values()]

    def tail(self) -> list[AnyItem]:
        """The items from the last user message on."""
        prompts = [index for index, item in enumerate(self.items) if _is_prompt(item)]
        return self.items[prompts[-1] :] if prompts else []


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
