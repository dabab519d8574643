"""A stage takes items in and gives items out; a pipeline is stages in a row.

`feed(item)` returns what that item caused. A stage that may still hold something back when its input ends also has
`end()`, which returns it. A stage knows nothing of sockets, clocks, randomness or its neighbours.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Stage(Protocol[In_contra, Out_co]):
    """One step of a pipeline."""

    def feed(self, item: In_contra, /) -> Sequence[Out_co]:
        """What this item causes."""
        ...


class Pipeline:
    """Stages in a row, itself a stage. `feed_all` takes all items of one read in one pass."""

    def __init__(self, *stages: Stage[Any, Any]) -> None:
        self._stages = stages
        self._feeds = tuple(stage.feed for stage in stages)

    def feed(self, item: Any) -> Sequence[Any]:
        return self.feed_all((item,))

    def feed_all(self, items: Sequence[Any]) -> Sequence[Any]:
        """What these items cause, in order."""
        return self._push(items, 0)

    def end(self) -> Sequence[Any]:
        """End the stages that have an `end`, front to back; what one releases passes through those behind it."""
        released: list[Any] = []
        for index, stage in enumerate(self._stages):
            end: Callable[[], Sequence[Any]] | None = getattr(stage, "end", None)
            if end is not None:
                released += self._push(end(), index + 1)
        return released

    def _push(self, items: Sequence[Any], index: int) -> Sequence[Any]:
        for feed in self._feeds[index:]:
            if not items:
                return items
            out: list[Any] = []
            for item in items:
                out += feed(item)
            items = out
        return items
