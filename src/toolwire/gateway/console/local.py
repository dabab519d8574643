"""What one process answers about its own turns. Whoever asks is asked for nothing: `routes.py` has let them in.

The same questions are asked of every process of a gateway, so arguments and answers are plain values. What takes long
is done in a thread, on turns that nothing changes any more.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from heapq import nlargest
from typing import Any, TypeAlias

import msgspec

from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.checks import Checks
from toolwire.gateway.console.prompts import Prompts
from toolwire.gateway.console.recorder import ALL_KEYS, Recorder
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.rows import Row
from toolwire.gateway.console.statistics import count_rows
from toolwire.gateway.console.stored_trace import unpack
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.console.turn_view import make_recording, view_turn
from toolwire.turns.routes import Router

ROWS, SIZE = 2000, 4 * 1024 * 1024
"""Rows of one answer, and bytes that they take."""
LATENCIES = 200
"""Turns of one backend whose times are drawn."""

CARRIED = re.compile(r"x-proxy-[\w-]+|anthropic-(version|beta)|openai-beta")
"""Headers of a request that change what is answered."""

Question: TypeAlias = Callable[[Viewer, dict[str, Any]], Awaitable[Any]]


class Local:
    """The turns of this process."""

    def __init__(self, watch: Recorder, router: Router, checks: Checks) -> None:
        self._watch = watch
        self._router = router
        self._checks = checks
        self._prompts = Prompts()
        self._questions: dict[str, Question] = {
            "rows": self._rows,
            "turn": self._turn,
            "recording": self._recording,
            "request": self._request,
            "pin": self._pin,
            "capture": self._capture,
            "captured": self._captured,
            "prompts": self._all_prompts,
            "segment": self._segment,
            "numbers": self._numbers,
            "backends": self._backends,
            "check": self._check,
            "report": self._report,
        }

    async def answer(self, question: str, viewer: Viewer, given: dict[str, Any]) -> Any:
        """The answer for somebody who sees so much; None if there is nothing to say."""
        return await self._questions[question](viewer, given)

    def _seen(self, viewer: Viewer) -> Callable[[], list[RecordedTurn]]:
        """What finds the turns that are shown to somebody. There may be many, so a thread does it."""
        turns = list(self._watch.ring)
        return lambda: [kept for kept in turns if viewer.sees(kept.row.key)]

    async def _find(self, viewer: Viewer, id: str) -> RecordedTurn | None:
        kept = self._watch.ring.get(id)
        return await self._watch.find(id) if kept is not None and viewer.sees(kept.row.key) else None

    async def _whole(self, viewer: Viewer, id: str) -> RecordedTurn | None:
        kept = await self._find(viewer, id)
        return kept if kept is not None and kept.packed else None

    async def _rows(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        watch, ring = self._watch, self._watch.ring
        rows = ring.since(given["after"].get(watch.process, 0), ROWS, SIZE)
        seen = [row for row in rows if viewer.sees(row.key)]
        more = len(rows) == ROWS or sum(row.size for row in rows) > SIZE
        sees_all, key = viewer.sees_all, viewer.key
        return {
            "process": watch.process,
            "seq": rows[-1].seq if more else ring.now(),  # a key must not learn when others had turns
            "more": more,
            "rows": await in_thread(msgspec.to_builtins, seen),
            "running": [msgspec.to_builtins(row) for row in watch.running(viewer.sees)],
            "kept_bytes": ring.size if sees_all else ring.sizes[key],
            "busy": watch.busy.total() if sees_all else watch.busy[key],
            "capturing": watch.captures.get(ALL_KEYS if sees_all else key, 0),
        }

    async def _turn(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        kept = await self._watch.snapshot(given["id"], viewer.sees) or await self._find(viewer, given["id"])
        return await in_thread(view_turn, kept) if kept is not None else None

    async def _recording(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        kept = await self._whole(viewer, given["id"])
        return await in_thread(make_recording, kept) if kept is not None else None

    async def _request(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        """What is needed to ask the same again."""
        kept = await self._whole(viewer, given["id"])
        if kept is None:
            return None
        turn = await in_thread(unpack, kept.packed)
        headers = [(name.encode(), value.encode()) for name, value in turn.request_headers if CARRIED.fullmatch(name)]
        return {
            "owner": kept.owner,
            "key": kept.row.key,
            "path": turn.path,
            "headers": headers,
            "body": turn.request,
        }

    async def _pin(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        kept = await self._find(viewer, given["id"])
        if kept is None:
            return None
        ring, id = self._watch.ring, kept.row.id
        if not given["pinned"]:
            ring.unpin(id)
            return {"pinned": False, "full": False}
        share = 1.0 if viewer.sees_all else self._watch.pin_share
        pinned = ring.pin(id, viewer.key, share)
        return {"pinned": pinned, "full": not pinned}

    async def _capture(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        self._watch.capture(ALL_KEYS if viewer.sees_all else viewer.key, given["count"])
        return True

    async def _captured(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        """Another process has kept one of the turns that were asked for."""
        name = given["name"]
        self._watch.capture(name, self._watch.captures.get(name, 0) - 1)
        return True

    async def _all_prompts(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        seen = await in_thread(self._seen(viewer))
        seen = [kept for kept in seen if kept.has_content][-given["most"] :]
        for kept in seen:
            await self._watch.prepare(kept)

        def made() -> Any:
            whole = [kept for kept in seen if kept.packed]
            return [msgspec.to_builtins((kept.row, self._prompts.of(kept))) for kept in whole]

        return await in_thread(made)

    async def _segment(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        kept = await self._whole(viewer, given["id"])
        return await in_thread(self._prompts.segment, kept, given["index"]) if kept is not None else None

    async def _numbers(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        if viewer.sees_all:
            return msgspec.to_builtins(self._watch.statistics.report())
        seen = self._seen(viewer)
        return await in_thread(lambda: msgspec.to_builtins(count_rows(kept.row for kept in seen())))

    async def _check(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        return msgspec.to_builtins(self._checks.state) if self._checks.state.backend else None

    async def _report(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        return [self._checks.state.began, self._checks.report] if self._checks.report else None

    async def _backends(self, viewer: Viewer, given: dict[str, Any]) -> Any:
        """How the backends do, as far as this process knows."""
        failed, turns = await in_thread(_by_backend, self._seen(viewer))
        return {
            route.backend.name: {
                "cooling": self._router.cooling(route),
                "failovers": failed[route.backend.name],
                "turns": turns.get(route.backend.name, []),
            }
            for route in self._router.routes
        }


def _by_backend(seen: Callable[[], list[RecordedTurn]]) -> tuple[Counter[str], dict[str, list[Any]]]:
    """How often others had to stand in for each backend, and the times of its last turns."""
    failed: Counter[str] = Counter()
    rows: dict[str, list[Row]] = {}
    for row in (kept.row for kept in seen()):
        failed.update(each.rpartition(" ")[0] for each in row.tried[:-1] if not each.startswith(f"{row.backend} "))
        if row.backend:
            rows.setdefault(row.backend, []).append(row)
    return failed, {name: _times(found) for name, found in rows.items()}


def _times(rows: list[Row]) -> list[Any]:
    last = nlargest(LATENCIES, rows, key=lambda row: row.at)
    return [[row.at, row.first_ms, row.ms, row.status, row.error] for row in reversed(last)]
