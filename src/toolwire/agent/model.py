"""A model by name, on whatever backend serves it: the engine's end of the wire.

The engine speaks Responses with itself: its history is items of that API, a request is decoded by that dialect, and the
turn comes back as items through that dialect's encoder. So everything holds that holds for clients of the gateway.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any

import aiohttp
import msgspec

from toolwire.assembly import ToolRules
from toolwire.core.policies import Policy
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import StreamEncoder
from toolwire.runs.plan import Planning
from toolwire.runs.routes import Router
from toolwire.runs.run import Run
from toolwire.runs.settings import Backend, Settings, SettingsError
from toolwire.runs.thoughts import Thoughts
from toolwire.runs.windows import listed_window
from toolwire.transport.alarm import Alarm, Ticker
from toolwire.transport.http import HttpUpstream, make_session
from toolwire.transport.reply import Broken, Timeouts

GIVEN = "given"
"""What a backend is named that is given as `KIND:URL`."""
USAGE_PATH = "/wham/usage"


class _Nobody(msgspec.Struct, frozen=True):
    """Who asks: this process, with the keys of its environment."""

    owner: str = ""
    upstream_key: str = ""


class Turn(msgspec.Struct, frozen=True):
    """One request under way: its run, and the encoder that makes items of it."""

    run: Run
    encoder: StreamEncoder


class Model:
    """One model, ready to be asked."""

    def __init__(self, settings: Settings, name: str, *, idle: float = 0.0) -> None:
        self._settings = msgspec.structs.replace(settings, timeouts=_timeouts(settings.timeouts, idle))
        self.name = name
        self._session: aiohttp.ClientSession | None = None
        self._router: Router | None = None
        self._ticker: Ticker | None = None
        self._thoughts = Thoughts()
        self._told_window = 0
        self._listed_window: int | None = None

    async def open(self) -> None:
        self._session = make_session(self._settings.timeouts)
        self._ticker = Ticker(asyncio.get_running_loop())
        try:
            self._router = Router(self._settings, self._session)
            self._router.find(self.name)
        except Exception:
            await self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._session is not None and not self._session.closed

    async def close(self) -> None:
        if self._router is not None:
            await self._router.close()
        if self._session is not None:
            await self._session.close()

    def turn(self, fields: Mapping[str, Any]) -> Turn:
        """Ask for a turn. What is asked is a body of the Responses API, but for the model and the stream."""
        return self.run(self.request(fields))

    def request(self, fields: Mapping[str, Any]) -> Request:
        usual = {"store": False, "include": ["reasoning.encrypted_content"]}
        return responses.decode_request(msgspec.json.encode({**usual, **fields, "model": self.name, "stream": True}))

    def run(self, request: Request, policies: Sequence[Callable[[], Policy]] = ()) -> Turn:
        assert self._router is not None
        assert self._ticker is not None
        task = asyncio.current_task()
        assert task is not None
        seed = token_hex(12)
        rules = msgspec.structs.replace(self._settings.tools, output_mode="openai-json", stop_after=False)
        planning = Planning(
            self._settings, self._router, self._thoughts, request, _own(rules), seed, _Nobody(), policies, {}
        )
        plan = msgspec.structs.replace(planning.plan(), retries=0)
        run = Run(plan, asyncio.get_running_loop(), Alarm(self._ticker, task))
        created = int(time.time())
        return Turn(run, StreamEncoder(request, responses.new_id(seed), created, run.assembly.tally, time.time))

    @property
    def compacts(self) -> bool:
        """Whether the backend makes compactions by itself."""
        assert self._router is not None
        return self._router.find(self.name)[0].compacts

    def told_window(self, tokens: int) -> None:
        """A reply has said how many tokens the model takes; 0 says nothing."""
        self._told_window = tokens or self._told_window

    async def context_window(self) -> int:
        """Tokens that the model takes: by the settings, by its replies, or by its server's list. 0 if nobody says."""
        assert self._router is not None
        route, target = self._router.find(self.name)
        window = route.backend.context_window(target) or self._told_window
        if not window and self._listed_window is None:
            self._listed_window = await listed_window(route, target, "")
        return window or self._listed_window or 0

    async def usage(self) -> bytes:
        """What the account behind a ChatGPT login has used, as its server tells it; nothing for any other backend."""
        assert self._router is not None
        route, _ = self._router.find(self.name)
        upstream = route.upstream
        if route.backend.auth != "codex" or not isinstance(upstream, HttpUpstream):
            return b""
        with contextlib.suppress(Broken):
            return await upstream.beside("codex").get_json(USAGE_PATH, "")
        return b""


def _timeouts(timeouts: Timeouts, idle: float) -> Timeouts:
    """Those of the settings. An `idle` of one's own is for bytes and for events alike; 0 is none."""
    return msgspec.structs.replace(timeouts, idle=idle, progress=idle) if idle else timeouts


def _own(rules: ToolRules) -> ToolRules:
    """The rules that make sense where nobody but the engine listens."""
    return msgspec.structs.replace(rules, max_calls=0, suppress_tail=False, finish_after_calls=False)


def with_backend(settings: Settings, backend: str, model: str) -> tuple[Settings, str]:
    """The settings and the model's full name for a backend that is named, or given as `KIND:URL`."""
    if not backend:
        return settings, model
    kind, colon, url = backend.partition(":")
    if colon and url.startswith(("http://", "https://")):
        if kind not in ("responses", "chat", "messages"):
            raise SettingsError(f"--backend: {kind!r} is none of responses, chat and messages")
        made = Backend(GIVEN, msgspec.convert(kind, Any), base_url=url)
        return msgspec.structs.replace(settings, backends=(made, *settings.backends)), f"{GIVEN}/{model}"
    if all(each.name != backend for each in settings.backends):
        known = ", ".join(each.name for each in settings.backends)
        raise SettingsError(f"--backend: there is no backend {backend!r}; there are {known}")
    return settings, f"{backend}/{model}"
