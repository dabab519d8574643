"""The models of each backend, as far as they are known: servers are asked beside, and nobody waits for slow ones."""

import asyncio
import time

from toolwire.turns.routes import Router

KEPT = 60.0
"""Seconds after which a server is asked again, also one that did not answer."""
PATIENCE = 0.5
"""Seconds that a page waits for what comes soon."""


class ModelLists:
    """What the backends list."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._known: dict[str, list[str]] = {}
        self._asked: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def known(self) -> dict[str, list[str]]:
        """The models by backend. A server that takes long is shown with what it said before, or nothing."""
        now = time.monotonic()
        for name in (route.backend.name for route in self._router.routes):
            if name not in self._asking and now - self._asked.get(name, -KEPT) >= KEPT:
                self._asked[name] = now
                self._asking[name] = asyncio.create_task(self._ask(name))
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=PATIENCE)
        return self._known

    async def stop(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, name: str) -> None:
        try:
            self._known[name] = await self._router.models_of(name) or self._known.get(name, [])
        finally:
            self._asking.pop(name, None)
