"""A model by name, on any configured backend.

The agent uses the Responses dialect in process: its history consists of Responses items, a request is decoded by that
dialect, and the turn comes back as items through its encoder, as for clients of the gateway.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from secrets import token_hex
from typing import Protocol

import msgspec

from toolwire.backends.lowered import LoweredConversation
from toolwire.config.settings import Backend, Settings, bytes_of
from toolwire.core.errors import ReplyTooLarge
from toolwire.core.events import Event
from toolwire.core.policies import Policy
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import StreamEncoder
from toolwire.memory.reasoning import ReasoningCache
from toolwire.turns.context_windows import fetch_window
from toolwire.turns.prepare import Engine, LocalCaller, Options, prepare
from toolwire.turns.recordings import make_recordings
from toolwire.turns.routes import Router
from toolwire.turns.run import Run
from toolwire.upstream.http import HttpSession
from toolwire.upstream.reply import Broken, Timeouts
from toolwire.upstream.scheduling import Alarm, Ticker

NO_DEADLINE = float("inf")


class LocalModel(Protocol):
    """A model that answers in this process, such as `toolwire.testing.ScriptedModel`."""

    name: str

    def conversation(self, request: Request, seed: str) -> LoweredConversation:
        """Begin the answer to a request."""
        ...


class _IdleTimeouts(Timeouts, frozen=True):
    """Timeouts with the agent's own `idle`, which limits the time between bytes and between events alike."""

    def name_of(self, limit: str) -> str:
        return "idle" if limit in ("idle", "progress") else super().name_of(limit)


class ModelTurn(msgspec.Struct, frozen=True):
    """One request in progress: its run, and the encoder that turns its events into items."""

    run: Run
    encoder: StreamEncoder
    max_reply: int
    """Size limit in bytes: a turn is held in memory until it ends."""

    def feed(self, event: Event) -> None:
        """Add an event to the items. Raises `ReplyTooLarge`."""
        self.encoder.feed(event)
        if self.encoder.held > self.max_reply:
            raise ReplyTooLarge(self.max_reply)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self.run.finished:
            for event in await self.run.read(NO_DEADLINE):
                yield event


class Model:
    """One model on one backend. `key` is sent to its server where the settings name no key for it."""

    def __init__(
        self, settings: Settings, name: str, *, idle: float = 0.0, key: str = "", local: LocalModel | None = None
    ) -> None:
        timeouts = settings.timeouts
        if idle:
            timeouts = _IdleTimeouts(**{**msgspec.structs.asdict(timeouts), "idle": idle, "progress": idle})
        self.settings = settings
        self.name = name
        self._settings = msgspec.structs.replace(settings, timeouts=timeouts)
        self._key = key
        self._local = local
        self._session: HttpSession | None = None
        self._router: Router | None = None
        self._ticker: Ticker | None = None
        self._reasoning = ReasoningCache()
        self._reported_window = 0
        self._listed_window: int | None = None

    @classmethod
    def from_local(cls, model: LocalModel) -> "Model":
        """A model that answers in this process; no settings are read for it."""
        backend = Backend(model.name, "demo", models=(model.name,))
        return cls(Settings(backends=(backend,)), model.name, local=model)

    async def open(self) -> None:
        """Open connections and find the model's backend.

        Raises `BadRequest` if there is none, and `BackendFault` if it is unavailable.
        """
        self._session = HttpSession(self._settings.timeouts)
        self._ticker = Ticker(asyncio.get_running_loop())
        try:
            self._router = Router(self._settings, self._session, listing="The settings name them")
            if self._local is not None:
                self._router.play(self._local.name, self._local.conversation)
            self._router.find(self.name)
        except Exception:
            await self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether turns can be requested."""
        return self._session is not None and not self._session.closed

    async def close(self) -> None:
        """Close all connections."""
        if self._router is not None:
            await self._router.stop()
        if self._session is not None:
            await self._session.close()

    def request(self, fields: Mapping[str, object]) -> Request:
        """Decode the body of a Responses request; the model's name and `stream` are added."""
        usual = {"store": False, "include": ["reasoning.encrypted_content"]}
        return responses.decode_request(msgspec.json.encode({**usual, **fields, "model": self.name, "stream": True}))

    def run(self, request: Request, policies: Sequence[Callable[[], Policy]] = (), *, owner: str = "") -> ModelTurn:
        """Start a turn for a decoded request. Its reasoning is cached for the owner."""
        assert self._router is not None
        assert self._ticker is not None
        seed = token_hex(12)
        engine = Engine(self._settings, self._router, self._reasoning, make_recordings(self._settings))
        # Settings meant for clients of a gateway are off.
        own = {"stop_after": False, "max_calls": 0, "suppress_tail": False, "finish_after_calls": False}
        rules = msgspec.structs.replace(self._settings.tools, output_mode="openai-json", **own)
        job = prepare(engine, request, LocalCaller(owner, self._key), Options(rules, seed, policies, retries=0))
        run = Run(job, asyncio.get_running_loop(), Alarm(self._ticker))
        encoder = StreamEncoder(request, responses.new_id(seed), int(time.time()), run.assembly.stats, time.time)
        return ModelTurn(run, encoder, bytes_of(self._settings.server.max_reply))

    @property
    def place(self) -> tuple[Backend, str]:
        """The backend of the model, and the model's name there."""
        assert self._router is not None
        route, target = self._router.find(self.name)
        return route.backend, target

    @property
    def compacts(self) -> bool:
        """Whether the backend has a compaction endpoint."""
        assert self._router is not None
        return self._router.find(self.name)[0].facts.compacts

    def learn_window(self, tokens: int) -> None:
        """Remember the context window that a reply has reported; 0 if it reported none."""
        self._reported_window = tokens or self._reported_window

    async def context_window(self) -> int:
        """The context window in tokens: from the settings, a reply, or the server's list of models; 0 if unknown."""
        assert self._router is not None
        route, target = self._router.find(self.name)
        window = route.backend.context_window(target) or self._reported_window
        if not window and self._listed_window is None:
            self._listed_window = await fetch_window(route, target, self._key)
        return window or self._listed_window or 0

    async def usage(self) -> bytes:
        """The usage of the account behind a ChatGPT login, as its server reports it; empty for other backends."""
        assert self._router is not None
        route, _ = self._router.find(self.name)
        with contextlib.suppress(Broken):
            return await route.account_usage() if route.account_usage is not None else b""
        return b""
