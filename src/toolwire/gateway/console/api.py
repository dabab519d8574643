"""The handlers of the page's requests. An answer covers all worker processes, within the viewer's rights."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from toolwire import __version__
from toolwire.config.settings import CONSOLE_NAME
from toolwire.core.cache import BoundedDict
from toolwire.core.errors import BadRequest
from toolwire.core.recording import Expectation
from toolwire.dialects.reading import as_bad_request, read
from toolwire.gateway.console.access import Access, Viewer
from toolwire.gateway.console.backends import Checks, CheckState, ModelLists
from toolwire.gateway.console.conversations import (
    ConversationTurn,
    group_turns,
    locate_difference,
    make_timeline,
    make_version,
    summarize,
)
from toolwire.gateway.console.fan_out import FanOut
from toolwire.gateway.console.handlers import Handlers
from toolwire.gateway.console.http import HEADERS, address_of, read_body, run_in_thread
from toolwire.gateway.console.recorder import MAX_CAPTURES, TurnRecorder
from toolwire.gateway.console.replays import RecordedRequest, Replays
from toolwire.gateway.console.search import Findings, SearchQuery, merge_findings
from toolwire.gateway.console.statistics import CountReport, merge_reports, summarize_latencies
from toolwire.gateway.console.store_browser import StoreBrowser
from toolwire.gateway.keys import Caller
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.shared import Shared
from toolwire.note_texts import NOTE_TEXTS

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"
MAX_FORM_SIZE = 4 * 1024 * 1024
"""Bytes of a request that the page composes."""
MAX_ASKED = 100
"""Maximum number of turns in one question for what was asked in them."""
MAX_BODY_SIZE = 64 * 1024
"""Bytes of other bodies."""

Handler: TypeAlias = Callable[[Request, Viewer], Coroutine[None, None, object]]
"""Answers with a value to be encoded as JSON, or with an ASGI application such as a response."""
T = TypeVar("T")


class PinBody(msgspec.Struct):
    pinned: bool


class CaptureBody(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_CAPTURES)]


class ReplayBody(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1)]


class CaseBody(msgspec.Struct):
    expected: Expectation | None = None


class CheckBody(msgspec.Struct):
    model: str = ""


_decode_after = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]).decode


class ConsoleApi:
    """The handlers of all paths below `/console/api`."""

    def __init__(
        self, shared: Shared, recorder: TurnRecorder, endpoints: Mapping[str, ASGIApp], access: Access
    ) -> None:
        self._shared = shared
        self._access = access
        self._recorder = recorder
        self._replays = Replays(endpoints)
        self._checks = Checks(shared.settings, recorder.secrets)
        stored = StoreBrowser(shared.store, recorder.secrets, shows_everything=recorder.keeps_everything)
        self._models = ModelLists(shared.engine.router)
        self._own = own = Handlers(shared.settings, recorder, shared.engine.router, self._checks)
        self._fan_out = FanOut(own.questions, shared.process)
        self._breaks: BoundedDict[tuple[str, str], dict[str, Any]] = BoundedDict(
            lambda _, found: 1000 + len(found["now"]) + len(found["was"]) + len(found["label"])
        )
        recorder.on_capture = lambda name: self._fan_out.notify(own.count_capture, name=name)
        self.routes: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/me", self.me),
            ("GET", "/advice", self.advice),
            ("GET", "/turns", self.turns),
            ("GET", "/search", self.search),
            ("GET", "/asked", self.asked),
            ("GET", "/turns/{id}", self.turn),
            ("GET", "/turns/{id}/results", self.results),
            ("GET", "/turns/{id}/recording", self.recording),
            ("GET", "/turns/{id}/case", self.case),
            ("POST", "/turns/{id}/case", self.save_case),
            ("POST", "/turns/{id}/pin", self.pin),
            ("POST", "/turns/{id}/replay", self.replay),
            ("POST", "/capture", self.capture),
            ("POST", "/try", self.try_request),
            ("GET", "/conversations", self.conversations),
            ("GET", "/conversations/{id}", self.conversation),
            ("GET", "/stored", stored.list_responses),
            ("GET", "/stored/{id}", stored.show_response),
            ("GET", "/backends", self.backends),
            ("POST", "/backends/{name}/check", self.start_check),
            ("GET", "/check", self.check),
            ("GET", "/check/report", self.check_report),
            ("GET", "/numbers", self.numbers),
        )

    async def close(self) -> None:
        await self._checks.stop()
        await self._models.stop()
        await self._fan_out.close()

    # Turns

    async def me(self, request: Request, viewer: Viewer) -> object:
        """The viewer, and the settings that the page needs."""
        settings = self._shared.settings
        return {
            "version": __version__,
            "key": viewer.key,
            "sees_all": viewer.sees_all,
            "has_keys": settings.needs_key,
            "keeps_everything": self._recorder.keeps_everything,
            "max_size": str(settings.console.max_size),
            "notes": {code: text.meaning for code, text in NOTE_TEXTS.items()},
            "models": [*settings.model_names],
            "backends": [{"name": each.name, "kind": each.kind, "models": each.models} for each in settings.backends],
        }

    async def advice(self, request: Request, viewer: Viewer) -> object:
        """Advice for each note."""
        return {code: text.advice for code, text in NOTE_TEXTS.items()}

    async def turns(self, request: Request, viewer: Viewer) -> object:
        try:
            after = _decode_after(request.query_params.get("after", "{}"))
        except msgspec.DecodeError:
            raise BadRequest("after must hold the numbers of the previous answer.", "after") from None
        return {"now": time.time(), "workers": await self._fan_out.ask(self._own.rows, viewer, after=after)}

    async def search(self, request: Request, viewer: Viewer) -> object:
        """The turns with these words, the latest first; if there are more, the next search is for those `before`."""
        try:
            query = msgspec.convert(dict(request.query_params), SearchQuery, strict=False)
        except msgspec.ValidationError as error:
            raise as_bad_request(error) from None
        asked = {"words": query.q, "before": query.before, "since": query.since}
        answers = await self._fan_out.ask(self._own.search, viewer, **asked)
        findings = merge_findings([msgspec.convert(each, Findings) for each in answers])
        more = {"before": findings.reached} if findings.reached else {}
        return {"ids": [id for _, id in findings.found], "more": bool(more), **more}

    async def asked(self, request: Request, viewer: Viewer) -> object:
        """What was asked in some turns, by id; those without content are left out, and those that take too long."""
        ids = request.query_params.get("ids", "").split(",")
        if len(ids) > MAX_ASKED:
            raise BadRequest(f"ids may name at most {MAX_ASKED} turns.", "ids")
        answers = await self._fan_out.ask(self._own.asked, viewer, ids=ids)
        return {id: each for answer in answers for id, each in answer.items()}

    async def turn(self, request: Request, viewer: Viewer) -> object:
        return await self._fan_out.ask_one(self._own.turn, viewer, id=request.path_params["id"])

    async def results(self, request: Request, viewer: Viewer) -> object:
        return await self._fan_out.ask_one(self._own.results, viewer, id=request.path_params["id"])

    async def recording(self, request: Request, viewer: Viewer) -> object:
        id = request.path_params["id"]
        return _make_file(id, await self._fan_out.ask_one(self._own.recording, viewer, id=id))

    async def case(self, request: Request, viewer: Viewer) -> object:
        """What the client of a turn got, to be expected in a test case, and what this version does otherwise."""
        made = await self._make_case(request, viewer, b"")
        return {"expected": msgspec.Raw(made["expected"]), "differences": made["differences"]}

    async def save_case(self, request: Request, viewer: Viewer) -> object:
        """A test case as a recording."""
        expected = (await _read(request, CaseBody, MAX_FORM_SIZE)).expected
        made = await self._make_case(request, viewer, msgspec.json.encode(expected) if expected is not None else b"")
        return _make_file(request.path_params["id"], made["recording"])

    async def _make_case(self, request: Request, viewer: Viewer, expected: bytes) -> dict[str, Any]:
        made = await self._fan_out.ask_one(self._own.case, viewer, id=request.path_params["id"], expected=expected)
        if "obstacle" in made:
            raise BadRequest(f"This turn cannot be a test case: {made['obstacle']}.", code="no_case")
        return made

    async def pin(self, request: Request, viewer: Viewer) -> object:
        body = await _read(request, PinBody)
        return await self._fan_out.ask_one(self._own.pin, viewer, id=request.path_params["id"], pinned=body.pinned)

    async def capture(self, request: Request, viewer: Viewer) -> object:
        body = await _read(request, CaptureBody)
        await self._fan_out.ask(self._own.capture, viewer, count=body.count)
        return body

    async def replay(self, request: Request, viewer: Viewer) -> object:
        id, body = request.path_params["id"], await _read(request, ReplayBody)
        recorded = RecordedRequest(**await self._fan_out.ask_one(self._own.request, viewer, id=id))
        return await self._replays.replay(viewer.key, recorded, id, body.model, request.receive)

    async def try_request(self, request: Request, viewer: Viewer) -> object:
        """Answer a request that the page composed."""
        claim = Reservation(self._shared.memory_budget)
        try:
            body = await read_body(request, MAX_FORM_SIZE, claim)
            caller = Caller(viewer.key or (CONSOLE_NAME if self._shared.settings.needs_key else ""))
            return self._replays.submit_form(request.query_params.get("dialect", ""), body, caller, claim)
        except BaseException:
            claim.release()
            raise

    # Conversations

    async def _group(self, viewer: Viewer) -> list[list[ConversationTurn]]:
        """All conversations. A thread groups them, because there may be many turns."""
        answers = await self._fan_out.ask(self._own.prompts, viewer)

        def group() -> list[list[ConversationTurn]]:
            found = [each for answer in answers for each in msgspec.convert(answer, list[ConversationTurn])]
            return group_turns({each.row.id: each for each in found}.values())

        return await run_in_thread(group)

    async def conversations(self, request: Request, viewer: Viewer) -> object:
        found = await self._group(viewer)
        return await run_in_thread(lambda: [summarize(members) for members in found])

    async def conversation(self, request: Request, viewer: Viewer) -> object:
        """The conversation of a turn, or only its version if the page has that one already."""
        id = request.path_params["id"]
        groups = await self._group(viewer)
        members = next((each for each in groups if any(member.row.id == id for member in each)), None)
        if members is None:
            raise BadRequest("There is no such conversation here; its turns may have been dropped.", status=404)
        version = await run_in_thread(make_version, members)
        if request.query_params.get("unless") == version:
            return {"version": version}
        turns = await run_in_thread(make_timeline, members)
        for turn in turns:
            if turn["cache"] is not None and turn["cache"]["broken"]:
                await self._locate_break(turn, viewer)
        return {"version": version, "overview": summarize(members), "turns": turns}

    async def _locate_break(self, turn: dict[str, Any], viewer: Viewer) -> None:
        """Add the byte at which the prompt cache broke, and the text there."""
        cache = turn["cache"]
        ids = turn["row"]["id"], cache["against"]
        found = self._breaks.find(ids)
        if found is None:
            segment, index = self._own.segment, cache["segment"]
            one, other = [await self._fan_out.ask(segment, viewer, id=id, index=index) for id in ids]
            if not one or not other:
                return
            found = await run_in_thread(locate_difference, one[0], other[0])
            self._breaks.keep(ids, found)
        cache |= {**found, "byte": cache["byte"] + found["at"]}

    # Backends and numbers

    async def backends(self, request: Request, viewer: Viewer) -> object:
        router = self._shared.engine.router
        workers, models = await asyncio.gather(self._fan_out.ask(self._own.backends, viewer), self._models.load())
        out: list[dict[str, object]] = []
        for backend in self._shared.settings.backends:
            found = [worker[backend.name] for worker in workers if backend.name in worker]
            turns = sorted(turn for each in found for turn in each["turns"])
            out.append(
                {
                    "name": backend.name,
                    "kind": backend.kind,
                    "url": router.url_of(backend.name) if viewer.sees_all else "",
                    "models": models.get(backend.name) or list(backend.models),
                    "unavailable": next((each["unavailable"] for each in found if each["unavailable"]), ""),
                    "cooling": max((each["cooling"] for each in found), default=0),
                    "failovers": sum(each["failovers"] for each in found),
                    "turns": turns,
                    **summarize_latencies(turns),
                    "checkable": viewer.sees_all,
                }
            )
        return out

    async def start_check(self, request: Request, viewer: Viewer) -> object:
        latest = await self._find_check(viewer)
        settings = self._shared.settings
        backend = next((each for each in settings.backends if each.name == request.path_params["name"]), None)
        if backend is None:
            raise BadRequest("There is no such backend.", code="not_found", status=404)
        model = (await _read(request, CheckBody)).model or next(iter(backend.literal_models), "")
        if not model.isprintable():
            raise BadRequest("model must name a model.", "model")
        key = self._access.make_own_key() if settings.needs_key else ""
        if latest.running or not self._checks.start(backend, model, address_of(request), key):
            raise BadRequest("A check is already running.", code="busy", status=409)
        return self._checks.state

    async def check(self, request: Request, viewer: Viewer) -> object:
        return await self._find_check(viewer)

    async def check_report(self, request: Request, viewer: Viewer) -> object:
        _require_all(viewer)
        found = await self._fan_out.ask(self._own.report, viewer)
        if not found:
            raise BadRequest("There is no report.", code="not_found", status=404)
        headers = {**HEADERS, "content-security-policy": REPORT_POLICY}
        _, report = max((began, report) for began, report in found)
        return Response(report, 200, headers, "text/html; charset=utf-8")

    async def _find_check(self, viewer: Viewer) -> CheckState:
        """The latest check of any process."""
        _require_all(viewer)
        found = [msgspec.convert(each, CheckState) for each in await self._fan_out.ask(self._own.check, viewer)]
        return max(found, key=lambda each: each.began, default=CheckState())

    async def numbers(self, request: Request, viewer: Viewer) -> object:
        found = await self._fan_out.ask(self._own.numbers, viewer)
        shown = await run_in_thread(lambda: merge_reports([msgspec.convert(each, CountReport) for each in found]))
        return {**shown, "own": not viewer.sees_all}


def _require_all(viewer: Viewer) -> None:
    if not viewer.sees_all:
        raise BadRequest('This needs the token, or a key with console = "all".', code="forbidden", status=403)


def _make_file(id: str, data: bytes) -> Response:
    """A recording, to be saved under the id of its turn."""
    name = "".join(char for char in id if char.isalnum())
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}.jsonl"'}
    return Response(data, 200, headers, "application/jsonl")


async def _read(request: Request, type: type[T], limit: int = MAX_BODY_SIZE) -> T:
    """The body of a request that changes something; `BadRequest` names the field that is wrong."""
    body = await read_body(request, limit) or b"{}"
    return read(msgspec.json.Decoder(type).decode, body)
