"""Answers of this process about its turns; `fan_out.py` asks all processes.

Viewers are authenticated in `routes.py`; here each sees the turns of its key. Arguments and answers are plain values,
and None means that this process has no answer. Long work runs in a thread.
"""

import re
from collections import Counter
from heapq import nlargest
from time import monotonic
from typing import Any

import msgspec

from toolwire.config.settings import Settings
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.backends import Checks
from toolwire.gateway.console.cases import make_case
from toolwire.gateway.console.content import unpack
from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.console.prompts import (
    MAX_TITLE_LENGTH,
    TurnPrompt,
    decode_request,
    make_prompt,
    read_segment,
    unpack_excerpts,
)
from toolwire.gateway.console.recorder import ALL_KEYS, TurnRecorder
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.rows import TurnRow
from toolwire.gateway.console.said import view_results
from toolwire.gateway.console.search import MAX_FOUND, SEARCH_SECONDS, Findings, has_words
from toolwire.gateway.console.statistics import count_rows
from toolwire.gateway.console.turn_view import make_recording, view_turn
from toolwire.turns.routes import Router

MAX_ROWS, MAX_ROWS_SIZE = 2000, 4 * 1024 * 1024
"""Maximum number of rows of one answer, and of their bytes."""
MAX_PROMPTS = 2000
"""Maximum number of turns that are grouped into conversations."""
ASKED_SECONDS = 1.0
"""Seconds after which no further turns are prepared to show what was asked in them."""
MAX_LATENCIES = 200
"""Maximum number of turns of one backend whose times are plotted."""
REPLAYED_HEADERS = re.compile(r"x-proxy-[\w-]+|anthropic-(version|beta)|openai-beta")
"""Headers that change the answer, and that a replay sends again."""


class Handlers:
    """Each question is a method of this class, called with a viewer and named values."""

    def __init__(self, settings: Settings, recorder: TurnRecorder, router: Router, checks: Checks) -> None:
        self._settings = settings
        self._recorder = recorder
        self._router = router
        self._checks = checks
        self.questions = (
            self.rows, self.asked, self.turn, self.results, self.recording, self.case, self.request, self.pin,
            self.capture, self.count_capture, self.search, self.prompts, self.segment, self.numbers, self.backends,
            self.check, self.report,
        )  # fmt: skip

    async def _list_visible(self, viewer: Viewer) -> list[RecordedTurn]:
        turns = list(self._recorder.ring)
        return await run_in_thread(lambda: [turn for turn in turns if viewer.sees(turn.row.key)])

    async def rows(self, viewer: Viewer, *, after: dict[str, int]) -> dict[str, object]:
        """All running turns, and the rows that changed after the `seq` of the previous answer, by process."""
        recorder, ring = self._recorder, self._recorder.ring
        rows = ring.list_changes(after.get(recorder.process, 0), MAX_ROWS, MAX_ROWS_SIZE)
        seen = [row for row in rows if viewer.sees(row.key)]
        more = len(rows) == MAX_ROWS or sum(row.size for row in rows) > MAX_ROWS_SIZE
        sees_all, key = viewer.sees_all, viewer.key
        return {
            "process": recorder.process,
            "seq": rows[-1].seq if more else ring.next_seq(),  # keys must not learn when others had turns
            "more": more,
            "rows": await run_in_thread(msgspec.to_builtins, seen),
            "running": msgspec.to_builtins(recorder.list_running(viewer.sees)),
            "kept_bytes": ring.size if sees_all else ring.sizes[key],
            "capturing": recorder.captures.get(ALL_KEYS if sees_all else key, 0),
        }

    async def asked(self, viewer: Viewer, *, ids: list[str]) -> dict[str, Any]:
        """What was asked in these turns, by id. After some time the rest is left out, and can be asked for again."""
        found: dict[str, Any] = {}
        deadline = monotonic() + ASKED_SECONDS
        for id in ids:
            turn = self._recorder.ring.get(id)
            if turn is None or not viewer.sees(turn.row.key) or not turn.has_content:
                continue
            prompt = await self._prepare_prompt(turn)
            if prompt is not None:
                found[id] = await run_in_thread(_show_asked, prompt)
            if monotonic() > deadline:
                break
        return found

    async def turn(self, viewer: Viewer, *, id: str) -> dict[str, object] | None:
        """Everything about a turn, running or finished."""
        turn = await self._recorder.snapshot(id, viewer.sees) or await self._recorder.find(id, viewer.sees)
        return await run_in_thread(view_turn, turn) if turn is not None else None

    async def results(self, viewer: Viewer, *, id: str) -> dict[str, Any] | None:
        """The results of calls that came with the request of a turn, by call."""
        turn = await self._recorder.find(id, viewer.sees)
        if turn is None or not turn.packed:
            return None
        dialect = turn.row.dialect

        def view() -> dict[str, Any]:
            return msgspec.to_builtins(view_results(decode_request(dialect, unpack(turn.packed).request)))

        return await run_in_thread(view)

    async def recording(self, viewer: Viewer, *, id: str) -> bytes | None:
        turn = await self._recorder.find(id, viewer.sees)
        return await run_in_thread(make_recording, turn) if turn is not None and turn.packed else None

    async def case(self, viewer: Viewer, *, id: str, expected: bytes) -> dict[str, Any] | None:
        """A turn as a test case; `expected` replaces what its client got, unless it is empty."""
        turn = await self._recorder.find(id, viewer.sees)
        if turn is None or not turn.packed:
            return None
        try:
            return await run_in_thread(make_case, turn, self._settings, self._recorder.secrets, expected)
        except ValueError as error:  # the process that asks reports it
            return {"obstacle": str(error)}

    async def request(self, viewer: Viewer, *, id: str) -> dict[str, Any] | None:
        """The request of a turn, to be sent again; the fields are those of a `RecordedRequest`."""
        turn = await self._recorder.find(id, viewer.sees)
        if turn is None or not turn.packed:
            return None
        trace = await run_in_thread(unpack, turn.packed)
        return {
            "owner": turn.owner,
            "key": turn.row.key,
            "path": trace.path,
            "headers": [(name, value) for name, value in trace.request_headers if REPLAYED_HEADERS.fullmatch(name)],
            "body": trace.request,
        }

    async def pin(self, viewer: Viewer, *, id: str, pinned: bool) -> dict[str, bool] | None:
        ring = self._recorder.ring
        turn = ring.get(id)
        if turn is None or not viewer.sees(turn.row.key):
            return None
        if not pinned:
            ring.unpin(id)
            return {"pinned": False, "full": False}
        is_pinned = ring.pin(id, viewer.key, 1.0 if viewer.sees_all else self._recorder.pin_share)
        return {"pinned": is_pinned, "full": not is_pinned}

    async def capture(self, viewer: Viewer, *, count: int) -> bool:
        """Record the content of the viewer's next turns."""
        self._recorder.capture(ALL_KEYS if viewer.sees_all else viewer.key, count)
        return True

    async def count_capture(self, viewer: Viewer, *, name: str) -> bool:
        """Count a turn that another process has captured."""
        self._recorder.capture(name, self._recorder.captures.get(name, 0) - 1)
        return True

    async def search(self, viewer: Viewer, *, words: str, before: float, since: int = 0) -> Any:
        """The turns with these words that began before this time and changed after this number, as `Findings`.

        Each turn is prepared as for a viewer.
        """
        turns = [turn for turn in await self._list_visible(viewer) if turn.row.at < before and turn.row.seq > since]
        turns.sort(key=lambda turn: -turn.row.at)
        findings, deadline = Findings(), monotonic() + SEARCH_SECONDS
        for number, turn in enumerate(turns, 1):
            await self._recorder.prepare(turn)
            if await run_in_thread(has_words, turn.packed, turn.row, words):
                findings.found.append((turn.row.at, turn.row.id))
            if number < len(turns) and (len(findings.found) == MAX_FOUND or monotonic() > deadline):
                findings.reached = turn.row.at
                break
        return msgspec.to_builtins(findings)

    async def prompts(self, viewer: Viewer) -> list[Any]:
        """The rows and prompts of the latest turns with content."""
        turns = [turn for turn in await self._list_visible(viewer) if turn.has_content][-MAX_PROMPTS:]
        for turn in turns:
            await self._prepare_prompt(turn)
        return await run_in_thread(
            lambda: [msgspec.to_builtins((turn.row, turn.prompt)) for turn in turns if turn.prompt is not None]
        )

    async def _prepare_prompt(self, turn: RecordedTurn) -> TurnPrompt | None:
        """The prompt of a turn, which is made once."""
        await self._recorder.prepare(turn)
        if turn.packed and turn.prompt is None:
            turn.prompt = await run_in_thread(make_prompt, turn.packed, turn.row)
            self._recorder.ring.resize(turn)
        return turn.prompt

    async def segment(self, viewer: Viewer, *, id: str, index: int) -> tuple[str, str, str] | None:
        """A segment of the prompt of a turn."""
        turn = await self._recorder.find(id, viewer.sees)
        if turn is None or not turn.packed:
            return None
        return await run_in_thread(read_segment, turn.packed, turn.row.dialect, index)

    async def numbers(self, viewer: Viewer) -> Any:
        """The counts of all turns; for a key, those of its turns that are still in the ring."""
        if viewer.sees_all:
            return msgspec.to_builtins(self._recorder.statistics.report())
        seen = await self._list_visible(viewer)
        return await run_in_thread(
            lambda: msgspec.to_builtins(count_rows(turn.row for turn in seen if not turn.is_stored))
        )

    async def backends(self, viewer: Viewer) -> dict[str, dict[str, Any]]:
        """The state of each backend, as far as this process knows."""
        seen = await self._list_visible(viewer)
        failovers, turns = await run_in_thread(_group_by_backend, [turn.row for turn in seen if not turn.is_stored])
        unavailable = self._router.unavailable()
        return {
            route.backend.name: {
                "unavailable": unavailable.get(route.backend.name, ""),
                "cooling": self._router.cooling(route),
                "failovers": failovers[route.backend.name],
                "turns": turns.get(route.backend.name, []),
            }
            for route in self._router.routes
        }

    async def check(self, viewer: Viewer) -> Any:
        """The state of the last check of a backend."""
        return msgspec.to_builtins(self._checks.state) if self._checks.state.backend else None

    async def report(self, viewer: Viewer) -> tuple[float, bytes] | None:
        """When the last check began, and its report."""
        return (self._checks.state.began, self._checks.report) if self._checks.report else None


def _show_asked(prompt: TurnPrompt) -> dict[str, object]:
    found = unpack_excerpts(prompt.excerpts)
    text = found.asked.text[:MAX_TITLE_LENGTH]
    return {"text": text, "is_new": found.is_new, "results": found.new_results, "side": prompt.side}


def _group_by_backend(rows: list[TurnRow]) -> tuple[Counter[str], dict[str, list[Any]]]:
    """For each backend, how many turns failed over to another one, and the times of its last turns."""
    failovers: Counter[str] = Counter()
    by_name: dict[str, list[TurnRow]] = {}
    for row in rows:
        failovers.update(each.rpartition(" ")[0] for each in row.tried[:-1] if not each.startswith(f"{row.backend} "))
        if row.backend:
            by_name.setdefault(row.backend, []).append(row)
    times: dict[str, list[Any]] = {}
    for name, found in by_name.items():
        last = nlargest(MAX_LATENCIES, found, key=lambda row: row.at)
        times[name] = [[row.at, row.first_ms, row.ms, row.status, row.error] for row in reversed(last)]
    return failovers, times
