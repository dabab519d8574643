"""What the page asks for, as JSON. Who looks is known, and is shown what they may see."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from toolwire import __version__
from toolwire.config.settings import CONSOLE_NAME
from toolwire.core.cache import BoundedDict
from toolwire.core.errors import BadRequest
from toolwire.core.notes import CODES
from toolwire.gateway.console.access import Access, Viewer
from toolwire.gateway.console.checks import Checks, CheckState
from toolwire.gateway.console.conversations import Member, grouped, located, overview, timeline, version
from toolwire.gateway.console.fan_out import Everyone
from toolwire.gateway.console.http import HEADERS, PassedOn, address_of, as_json, as_large_json, body_of, given_in
from toolwire.gateway.console.local import Local
from toolwire.gateway.console.model_lists import ModelLists
from toolwire.gateway.console.own_turns import OwnTurns
from toolwire.gateway.console.prompts import Prompt
from toolwire.gateway.console.recorder import MAX_CAPTURES
from toolwire.gateway.console.rows import Row
from toolwire.gateway.console.statistics import CountReport, latencies, merge_reports
from toolwire.gateway.console.stored import Stored
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.exchange import Shared
from toolwire.gateway.flight import Claim
from toolwire.gateway.keys import Caller

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"
MOST_BODY = 4 * 1024 * 1024
"""Bytes of a request that the page puts together."""
PROMPTS = 2000
"""Turns among which conversations are looked for."""

_decode_after = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]).decode

Handler = Callable[[Request, Viewer], Coroutine[None, None, Response]]


class Api:
    """The handlers."""

    def __init__(self, shared: Shared, endpoints: Mapping[str, ASGIApp], access: Access) -> None:
        assert shared.watch is not None
        self._shared = shared
        self._watch = shared.watch
        self._own = OwnTurns(endpoints)
        self._access = access
        self._checks = Checks(shared.settings, shared.watch.secrets)
        self._stored = Stored(shared.store, shared.watch.secrets, shows_everything=shared.watch.keeps_everything)
        self._everyone = Everyone(Local(shared.watch, shared.engine.router, self._checks), shared.process)
        self._models = ModelLists(shared.engine.router)
        self._breaks: BoundedDict[tuple[str, str], dict[str, Any]] = BoundedDict(_size_of_break)
        shared.watch.on_capture = self._everyone.captured
        self.table: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/me", self._me),
            ("GET", "/turns", self._turns),
            ("GET", "/turns/{id}", self._turn),
            ("GET", "/turns/{id}/recording", self._recording),
            ("POST", "/turns/{id}/pin", self._pin),
            ("POST", "/turns/{id}/replay", self._replay),
            ("POST", "/capture", self._capture),
            ("POST", "/try", self._try),
            ("GET", "/conversations", self._conversations),
            ("GET", "/conversations/{id}", self._conversation),
            ("GET", "/stored", self._stored_rows),
            ("GET", "/stored/{id}", self._stored_one),
            ("GET", "/backends", self._backends),
            ("POST", "/backends/{name}/check", self._check),
            ("GET", "/check", self._check_state),
            ("GET", "/check/report", self._check_report),
            ("GET", "/numbers", self._numbers),
        )

    async def close(self) -> None:
        await self._checks.stop()
        await self._models.stop()
        await self._everyone.close()

    # Turns

    async def _me(self, request: Request, viewer: Viewer) -> Response:
        shared = self._shared
        backends = shared.settings.backends
        return as_json(
            {
                "version": __version__,
                "key": viewer.key,
                "sees_all": viewer.sees_all,
                "has_keys": bool(shared.settings.keys),
                "keeps_everything": self._watch.keeps_everything,
                "max_size": str(shared.settings.console.max_size),
                "notes": CODES,
                "models": [*shared.settings.model_names],
                "backends": [{"name": each.name, "kind": each.kind, "models": each.models} for each in backends],
            }
        )

    async def _turns(self, request: Request, viewer: Viewer) -> Response:
        try:
            after = _decode_after(request.query_params.get("after", "{}"))
        except msgspec.DecodeError:
            raise BadRequest("after must be what the last answer gave.", "after") from None
        answers = await self._everyone.ask("rows", viewer, after=after)
        return await as_large_json({"now": time.time(), "workers": answers})

    async def _turn(self, request: Request, viewer: Viewer) -> Response:
        return await as_large_json(await self._everyone.one("turn", viewer, id=request.path_params["id"]))

    async def _recording(self, request: Request, viewer: Viewer) -> Response:
        id = request.path_params["id"]
        data = await self._everyone.one("recording", viewer, id=id)
        named = {"content-disposition": f'attachment; filename="{_file_name(id)}.jsonl"'}
        return Response(data, 200, {**HEADERS, **named}, "application/jsonl")

    async def _pin(self, request: Request, viewer: Viewer) -> Response:
        pinned: Any = (await given_in(request)).get("pinned")
        if not isinstance(pinned, bool):
            raise BadRequest("pinned must be true or false.", "pinned")
        return as_json(await self._everyone.one("pin", viewer, id=request.path_params["id"], pinned=pinned))

    async def _capture(self, request: Request, viewer: Viewer) -> Response:
        count: Any = (await given_in(request)).get("count")
        if type(count) is not int or not 0 <= count <= MAX_CAPTURES:
            raise BadRequest(f"count must be a number of turns, at most {MAX_CAPTURES}.", "count")
        await self._everyone.ask("capture", viewer, count=count)
        return as_json({"count": count})

    async def _replay(self, request: Request, viewer: Viewer) -> Response:
        id = request.path_params["id"]
        model: Any = (await given_in(request)).get("model")
        if not isinstance(model, str) or not model:
            raise BadRequest("model must name a model.", "model")
        kept = await self._everyone.one("request", viewer, id=id)
        return as_json(await self._own.replay(viewer.key, kept, id, model, request.receive))

    async def _try(self, request: Request, viewer: Viewer) -> Response:
        claim = Claim(self._shared.flight)
        try:
            body = await body_of(request, MOST_BODY, claim)
        except BaseException:
            claim.release()
            raise
        caller = Caller(viewer.key or (CONSOLE_NAME if self._shared.settings.keys else ""))
        return PassedOn(self._own, request.query_params.get("dialect", ""), body, caller, claim)

    # Conversations

    async def _members(self, viewer: Viewer) -> list[list[Member]]:
        """All conversations. They are put together in a thread, for there may be many turns."""
        return await in_thread(_grouped, await self._everyone.ask("prompts", viewer, most=PROMPTS))

    async def _conversations(self, request: Request, viewer: Viewer) -> Response:
        found = await self._members(viewer)
        return await as_large_json(await in_thread(lambda: [overview(members) for members in found]))

    async def _conversation(self, request: Request, viewer: Viewer) -> Response:
        """The conversation that a turn belongs to; only its version, if that is the one that the page has."""
        id = request.path_params["id"]
        for members in await self._members(viewer):
            if any(member.row.id == id for member in members):
                break
        else:
            raise BadRequest("There is no such conversation here.", status=404)
        now = await in_thread(version, members)
        if request.query_params.get("unless") == now:
            return as_json({"version": now})
        turns = await in_thread(timeline, members)
        for turn in turns:
            await self._locate(turn, viewer)
        return await as_large_json({"version": now, "overview": overview(members), "turns": turns})

    async def _locate(self, turn: dict[str, Any], viewer: Viewer) -> None:
        """The very byte at which the prompt cache broke, and what stands there."""
        cache = turn["cache"]
        if cache is None or not cache["broken"]:
            return
        ids = turn["row"]["id"], cache["against"]
        found = self._breaks.find(ids)
        if found is None:
            one, other = [await self._everyone.ask("segment", viewer, id=id, index=cache["segment"]) for id in ids]
            if not one or not other:
                return
            found = await in_thread(located, one[0], other[0])
            self._breaks.keep(ids, found)
        cache |= {**found, "byte": cache["byte"] + found["at"]}

    # The store

    async def _stored_rows(self, request: Request, viewer: Viewer) -> Response:
        return as_json(await self._stored.rows(viewer))

    async def _stored_one(self, request: Request, viewer: Viewer) -> Response:
        owner = request.query_params.get("owner", viewer.key)
        found = await self._stored.one(viewer, owner, request.path_params["id"])
        if found is None:
            raise BadRequest("There is no such response in the store.", code="not_found", status=404)
        return as_json(found)

    # Backends and numbers

    async def _backends(self, request: Request, viewer: Viewer) -> Response:
        shared = self._shared
        workers, listed = await asyncio.gather(self._everyone.ask("backends", viewer), self._models.known())
        out: list[dict[str, Any]] = []
        for backend in shared.settings.backends:
            found = [worker[backend.name] for worker in workers if backend.name in worker]
            turns = sorted(turn for each in found for turn in each["turns"])
            out.append(
                {
                    "name": backend.name,
                    "kind": backend.kind,
                    "url": shared.engine.router.url_of(backend.name) if viewer.sees_all else "",
                    "models": listed.get(backend.name) or list(backend.models),
                    "cooling": max((each["cooling"] for each in found), default=0),
                    "failovers": sum(each["failovers"] for each in found),
                    "turns": turns,
                    **latencies(turns),
                    "checkable": viewer.sees_all,
                }
            )
        return as_json(out)

    async def _check(self, request: Request, viewer: Viewer) -> Response:
        _everybody(viewer)
        settings = self._shared.settings
        backend = next((each for each in settings.backends if each.name == request.path_params["name"]), None)
        if backend is None:
            raise BadRequest("There is no such backend.", code="not_found", status=404)
        model: Any = (await given_in(request)).get("model") or next(iter(backend.literal_models), "")
        if not isinstance(model, str) or not model.isprintable():
            raise BadRequest("model must name a model.", "model")
        key = self._access.own_key() if settings.keys else ""
        is_busy = (await self._state_of_check(viewer)).running
        if is_busy or not self._checks.start(backend, model, address_of(request), key):
            raise BadRequest("A check is running already.", code="busy", status=409)
        return as_json(self._checks.state)

    async def _state_of_check(self, viewer: Viewer) -> CheckState:
        """The latest check of any process."""
        found = [msgspec.convert(each, CheckState) for each in await self._everyone.ask("check", viewer)]
        return max(found, key=lambda each: each.began, default=CheckState())

    async def _check_state(self, request: Request, viewer: Viewer) -> Response:
        _everybody(viewer)
        return as_json(await self._state_of_check(viewer))

    async def _check_report(self, request: Request, viewer: Viewer) -> Response:
        _everybody(viewer)
        found = await self._everyone.ask("report", viewer)
        if not found:
            raise BadRequest("There is no report.", code="not_found", status=404)
        headers = {**HEADERS, "content-security-policy": REPORT_POLICY}
        return Response(max(found)[1], 200, headers, "text/html; charset=utf-8")

    async def _numbers(self, request: Request, viewer: Viewer) -> Response:
        found = await self._everyone.ask("numbers", viewer)
        shown = await in_thread(lambda: merge_reports([msgspec.convert(each, CountReport) for each in found]))
        return as_json({**shown, "own": not viewer.sees_all})


def _everybody(viewer: Viewer) -> None:
    if not viewer.sees_all:
        raise BadRequest('This needs the token, or a key with console = "all".', code="forbidden", status=403)


def _grouped(answers: list[Any]) -> list[list[Member]]:
    members: dict[str, Member] = {}
    for found in answers:
        for row, prompt in msgspec.convert(found, list[tuple[Row, Prompt]]):
            members[row.id] = Member(row, prompt)
    return grouped(members.values())


def _size_of_break(ids: tuple[str, str], found: dict[str, Any]) -> int:
    return 1000 + len(found["now"]) + len(found["was"]) + len(found["label"])


def _file_name(id: str) -> str:
    return "".join(char for char in id if char.isalnum())
