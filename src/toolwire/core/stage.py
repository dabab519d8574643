"""A stage turns items into items; a pipeline is a sequence of stages.

`feed(item)` returns the items that it caused. A stage that may hold items back when its input ends also has `end()`,
which returns them. A stage knows nothing of sockets, clocks, randomness or its neighbours.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Stage(Protocol[In_contra, Out_co]):
    """One step of a pipeline."""

    def feed(self, item: In_contra, /) -> Sequence[Out_co]:
        """The items that this item causes."""
        ...


class Pipeline:
    """Stages in a row, itself a stage. `feed_all` takes all items of one read in one pass."""

    def __init__(self, *stages: Stage[Any, Any]) -> None:
        self._stages = stages
        self._feeds = tuple(stage.feed for stage in stages)

    def feed(self, item: Any) -> Sequence[Any]:
        return self.feed_all((item,))

    def feed_all(self, items: Sequence[Any]) -> Sequence[Any]:
        """The items that these items cause, in order."""
        return self._push(items, 0)

    def end(self) -> Sequence[Any]:
        """End the stages in order; the items that one releases pass through the stages after it."""
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
