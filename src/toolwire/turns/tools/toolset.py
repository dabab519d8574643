"""Sets of tools: tools that belong together, with what they need while they are used."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from toolwire.turns.tools.registry import Tool, as_tool


class Toolset:
    """Tools with a lifetime: entered before the first run that uses them, left after the last.

    A subclass opens what its tools need in `__aenter__` and closes it in `__aexit__`:

        class Database(Toolset):
            def __init__(self, path: str) -> None:
                super().__init__([self.count])
                self.path = path

            async def __aenter__(self) -> Self:
                self.connection = sqlite3.connect(self.path)
                return self

            async def __aexit__(self, *_: object) -> None:
                self.connection.close()

            async def count(self, table: str) -> int:
                …
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools = [as_tool(each) for each in tools]

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools; asked for when a run begins."""
        return self._tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
