"""The registry of protocols: one row for each.

A protocol has a dialect side (clients speak it to us), a backend side (we speak it to a model), or both. Modules above
this one iterate over `PROTOCOLS`; to modules below it a protocol's name is just a string. A new protocol is a package
under `dialects/`, a package under `backends/` and a row here.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Protocol

import msgspec

from toolwire.adapt.arguments import Validate
from toolwire.assembly import ServerFacts
from toolwire.backends import chat as chat_backend
from toolwire.backends import codex as codex_backend
from toolwire.backends import demo
from toolwire.backends import gemini as gemini_backend
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.backends.lowered import LoweredConversation, ReplayProfile
from toolwire.core.allowance import Allowance
from toolwire.core.backend import Post
from toolwire.core.bounds import Bounds, Steps
from toolwire.core.collect import Turn
from toolwire.core.errors import Failure
from toolwire.core.events import Event, RawFrame
from toolwire.core.notes import TurnStats
from toolwire.core.request import CallEntry, Request, RequestHead, ResultEntry, SearchOutcome
from toolwire.dialects import chat, gemini, messages, openai, responses

Json = dict[str, Any]


class Encoder(Protocol):
    """Encodes the events of a turn as a stream."""

    @property
    def content_type(self) -> bytes:
        """The content type of the stream."""
        ...

    def feed(self, event: Event, /) -> Sequence[bytes]: ...

    def keepalive(self, silent: float, /) -> Sequence[bytes]:
        """A keepalive after this many seconds of silence."""
        ...

    def break_off(self) -> Sequence[bytes]:
        """The end of a stream whose encoding failed."""
        ...


class EncoderFactory(Protocol):
    """Makes an encoder. `clock` gives the time at which the turn ends; without it that is `created`."""

    def __call__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> Encoder: ...


class DialectModule(Protocol):
    """The exports of every package under `dialects/`."""

    @property
    def PATH(self) -> str:  # noqa: N802
        """The path at which it is served."""
        ...

    @property
    def StreamEncoder(self) -> EncoderFactory: ...  # noqa: N802

    def decode_request(self, body: bytes) -> Request: ...

    def encode_turn(self, turn: Turn, request: Request, id: str, created: int) -> bytes: ...

    def encode_error(self, failure: Failure) -> bytes: ...

    def new_id(self, seed: str) -> str: ...

    def recognises(self, fields: Mapping[str, Any]) -> bool:
        """Whether the data of a frame, or a plain answer, is written in this dialect and in no other."""
        ...


SearchFrames = Callable[[CallEntry, ResultEntry, SearchOutcome], list[RawFrame]]


DecodeSteps = Callable[[bytes, Bounds, RequestHead], Steps[Request]]
"""Decodes a body step by step. The head has the parts of a request outside of its body: path, query, headers."""


class DialectSide(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol as clients speak it."""

    module: DialectModule
    decode_steps: DecodeSteps | None
    """None: a package of the gateway serves the dialect, because a request may refer to stored items."""
    decode_whole: Callable[[bytes], Request]
    """Decodes a body. Raises `BadRequest` also if it refers to stored items."""
    pattern: re.Pattern[str] | None = None
    """Matches paths with parameters, as named groups; None: the only path is that of the module."""
    history_field: str = "messages"
    """The field of a request that holds the conversation."""
    key_header: bytes = b"authorization"
    """The header with the client's key; in `authorization` it follows the word Bearer."""
    key_parameter: str = ""
    """The query parameter that may contain the key instead."""
    client_header: str = ""
    """The beginning of the headers that identify clients of the dialect on shared paths such as `/v1/models`."""
    overload_status: int = 503
    """The status of a request that is refused because of overload."""
    count_path: str = ""
    """The path that counts the tokens of a request; empty if a package of the gateway serves it."""
    encode_count: Callable[[int], Json] = lambda tokens: {"input_tokens": tokens}
    """Encodes the number of tokens of a request."""
    models_path: str = "/v1/models"
    """The path of the list of models, which dialects may share."""
    encode_model: Callable[[str, str], Json] = openai.encode_model
    """Encodes a model, from its name and the name of its backend."""
    encode_models: Callable[[Sequence[tuple[str, str]], Mapping[str, str]], Json] = openai.encode_models
    """Encodes a list of models, or the page of it that the query parameters ask for."""
    encode_allowances: Callable[[Sequence[Allowance], float], list[tuple[bytes, bytes]]] = openai.encode_allowances
    """Encodes what is left of the limits of a key as headers, at a time in seconds since 1970."""
    encode_search: Callable[[Request], SearchFrames] = lambda request: partial(
        responses.encode_search, tuple(tool for tool in request.tools if tool.deferred)
    )
    """Returns the function that encodes a search that the gateway ran for this request, and its result."""

    def match(self, path: str) -> Mapping[str, str] | None:
        """The parameters in a path, or None if the path is not of this dialect."""
        if self.pattern is None:
            return {} if path == self.module.PATH else None
        found = self.pattern.fullmatch(path)
        return found.groupdict() if found else None

    def is_spoken(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request with this path and these headers is of this dialect."""
        is_below = self.module.PATH in path or self.match(path) is not None
        return is_below or (bool(self.client_header) and any(name.startswith(self.client_header) for name in headers))


class _TokenCount(msgspec.Struct):
    input_tokens: int


def _read_input_tokens(body: bytes) -> int:
    return msgspec.json.decode(body, type=_TokenCount).input_tokens


class HttpBackend(msgspec.Struct, frozen=True, kw_only=True):
    """How requests to a server of the protocol are made. Each backend has its own type of profile."""

    path: str
    """Follows the base URL."""
    converse: Callable[[Request, str, Any], LoweredConversation]
    """Makes a conversation from a request, a seed for ids and a profile."""
    profile_from: Callable[[Mapping[str, object], str], Any]
    """Makes a profile from its settings and the `auth` of the backend."""
    facts: Callable[[Any], ServerFacts]
    """Returns the facts about the server of a profile."""
    count_tokens: Callable[[Request, Any], Post] | None = None
    """Makes the request that counts the tokens of another request, with a profile."""
    read_count: Callable[[bytes], int] = _read_input_tokens
    """Reads the answer to it. Raises `msgspec.DecodeError`."""
    models_path: str = "/models"
    convert_models: Callable[[bytes], bytes] = bytes
    """Converts the list of models to OpenAI's form."""
    key_header: str = "authorization"
    logins: tuple[str, ...] = ()
    """The values of `auth` in the settings that it supports."""
    usage_path: str = ""
    """The path that returns the usage of a login's account."""


BuiltIn = Callable[[Request, str, Validate], LoweredConversation]
"""Makes a conversation with a built-in model, from a request, a seed for ids and the validator of arguments."""


class BackendSide(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol as we speak it to a model: an HTTP server, a built-in model, a recording, or a worker process."""

    profile: type[msgspec.Struct] | None = None
    """The type of the table `profile` in the settings; None if there is none."""
    http: HttpBackend | None = None
    built_in: BuiltIn | None = None
    models: tuple[str, ...] = ()
    """The models that are built in."""
    is_recording: bool = False
    facts: ServerFacts = ServerFacts()
    """The facts about a built-in model or a worker; those about an HTTP server depend on its profile."""
    is_hosted: bool = False
    """With several workers of the gateway, one process runs the Codex threads of all of them."""
    reads: Callable[[Request, str], LoweredConversation] | None = None
    """Makes a conversation that reads a recorded reply; None if the backend is not recorded."""

    @property
    def has_model(self) -> bool:
        """Whether a model answers, not a script or a recording."""
        return self.built_in is None and not self.is_recording


class ProtocolRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the shared modules know about one protocol."""

    name: str
    title: str = ""
    """The name in messages to users."""
    dialect: DialectSide | None = None
    backend: BackendSide | None = None
    vendor: str = "openai"
    """The vendor whose keys its servers accept. A client's own key is meant for a server of its vendor."""

    @property
    def client(self) -> DialectSide:
        """The dialect side of a protocol that has one."""
        assert self.dialect is not None
        return self.dialect


def _responses_facts(profile: responses_backend.Profile) -> ServerFacts:
    return ServerFacts(
        base_url=profile.base_url,
        hosts_tools=("chat", "responses"),
        search=profile.limits.search,
        results_anywhere=True,
        counts_tokens=profile.counts_tokens,
        compacts=profile.compacts,
        adds_include=True,
    )


def _messages_facts(profile: messages_backend.Profile) -> ServerFacts:
    return ServerFacts(
        headers={"anthropic-version": profile.version},
        hosts_tools=("messages",),
        search=profile.limits.search,
        counts_tokens=profile.counts_tokens,
        unsigned_reasoning=True,
    )


_ROWS = (
    ProtocolRow(
        name="chat",
        title="Chat Completions",
        dialect=DialectSide(module=chat, decode_steps=chat.decode_steps, decode_whole=chat.decode_request),
        backend=BackendSide(
            profile=chat_backend.Profile,
            reads=chat_backend.Conversation,
            http=HttpBackend(
                path=chat_backend.PATH,
                converse=chat_backend.Conversation,
                profile_from=lambda settings, _: chat_backend.profile_from(settings),
                facts=lambda profile: ServerFacts(hosts=profile.hosts, search=profile.limits.search),
            ),
        ),
    ),
    ProtocolRow(
        name="responses",
        title="the Responses API",
        dialect=DialectSide(
            module=responses,
            decode_steps=None,
            decode_whole=responses.decode_whole,
            history_field="input",
        ),
        backend=BackendSide(
            profile=responses_backend.Profile,
            reads=responses_backend.Conversation,
            http=HttpBackend(
                path=responses_backend.PATH,
                converse=responses_backend.Conversation,
                profile_from=lambda settings, login: responses_backend.profile_from(
                    settings, responses_backend.CHATGPT if login else responses_backend.OPENAI
                ),
                facts=_responses_facts,
                count_tokens=responses_backend.count_tokens,
                logins=("codex",),
                usage_path=responses_backend.USAGE_PATH,
            ),
        ),
    ),
    ProtocolRow(
        name="messages",
        title="the Messages API",
        vendor="anthropic",
        dialect=DialectSide(
            module=messages,
            decode_steps=messages.decode_steps,
            decode_whole=messages.decode_request,
            key_header=b"x-api-key",
            client_header="anthropic-version",
            overload_status=529,
            count_path=f"{messages.PATH}/count_tokens",
            encode_model=messages.encode_model,
            encode_models=messages.encode_models,
            encode_allowances=messages.encode_allowances,
            encode_search=lambda request: partial(messages.encode_search, stream=request.stream),
        ),
        backend=BackendSide(
            profile=messages_backend.Profile,
            reads=messages_backend.Conversation,
            http=HttpBackend(
                path=messages_backend.PATH,
                converse=messages_backend.Conversation,
                profile_from=lambda settings, _: messages_backend.profile_from(settings),
                facts=_messages_facts,
                count_tokens=messages_backend.count_tokens,
                models_path=messages_backend.MODELS_PATH,
                key_header="x-api-key",
                logins=("google",),
            ),
        ),
    ),
    ProtocolRow(
        name="gemini",
        title="the Gemini API",
        vendor="google",
        dialect=DialectSide(
            module=gemini,
            decode_steps=gemini.decode_steps,
            decode_whole=gemini.decode_request,
            pattern=gemini.PATTERN,
            history_field="contents",
            key_header=b"x-goog-api-key",
            key_parameter="key",
            client_header="x-goog-",
            count_path=gemini.COUNT_PATH,
            encode_count=gemini.encode_count,
            models_path=gemini.PATH,
            encode_model=gemini.encode_model,
            encode_models=gemini.encode_models,
        ),
        backend=BackendSide(
            profile=gemini_backend.Profile,
            reads=gemini_backend.Conversation,
            http=HttpBackend(
                path=gemini_backend.PATH,
                converse=gemini_backend.Conversation,
                profile_from=lambda settings, _: gemini_backend.profile_from(settings),
                facts=lambda profile: ServerFacts(hosts_tools=("gemini",), counts_tokens=profile.counts_tokens),
                count_tokens=gemini_backend.count_tokens,
                read_count=gemini_backend.read_count,
                models_path=gemini_backend.MODELS_PATH,
                convert_models=gemini_backend.convert_models,
                key_header="x-goog-api-key",
                logins=("google",),
            ),
        ),
    ),
    ProtocolRow(
        name="codex",
        backend=BackendSide(
            profile=codex_backend.Profile,
            facts=ServerFacts(results_anywhere=True, acts=True),
            is_hosted=True,
            reads=codex_backend.Conversation,
        ),
    ),
    ProtocolRow(
        name="demo",
        backend=BackendSide(
            built_in=demo.Conversation,
            models=demo.MODELS,
            facts=ServerFacts(results_anywhere=True),
            reads=responses_backend.Conversation,
        ),
    ),
    ProtocolRow(name="replay", backend=BackendSide(profile=ReplayProfile, is_recording=True)),
)

PROTOCOLS: dict[str, ProtocolRow] = {row.name: row for row in _ROWS}
"""All protocols by name. The first one answers requests of no dialect, such as those for an unknown path."""


@contextmanager
def register(row: ProtocolRow) -> Generator[None]:
    """Register a protocol within a `with` block, for the applications and settings made there."""
    assert row.name not in PROTOCOLS, f"there is a protocol {row.name!r}"
    PROTOCOLS[row.name] = row
    dialects.cache_clear()
    try:
        yield
    finally:
        del PROTOCOLS[row.name]
        dialects.cache_clear()


@cache
def dialects() -> Mapping[str, DialectSide]:
    """The dialect sides by the names of their protocols."""
    return {name: row.dialect for name, row in PROTOCOLS.items() if row.dialect is not None}


def backend_kinds() -> dict[str, BackendSide]:
    """The backend sides by the names of their protocols, which are the kinds of backends in the settings."""
    return {name: row.backend for name, row in sorted(PROTOCOLS.items()) if row.backend is not None}


def http_backends() -> dict[str, HttpBackend]:
    """The kinds of backends that are HTTP servers, in the order of the rows."""
    sides = ((name, row.backend) for name, row in PROTOCOLS.items())
    return {name: side.http for name, side in sides if side is not None and side.http is not None}


def converse_as(kind: str, request: Request, seed: str) -> LoweredConversation:
    """Make a conversation that reads a recorded reply of this kind of backend. Raises `ValueError` for other kinds."""
    side = backend_kinds().get(kind)
    if side is None or side.reads is None:
        raise ValueError(f"a recording of a {kind} backend cannot be replayed")
    return side.reads(request, seed)


def detect_dialect(fields: Mapping[str, Any]) -> str | None:
    """The dialect of the data of a frame or of a plain answer; None if it is not certain."""
    return next((name for name, side in dialects().items() if side.module.recognises(fields)), None)


def find_protocol(path: str, headers: Mapping[str, str] = {}) -> ProtocolRow:
    """The protocol in which a request with this path and these headers is answered, even if it is invalid."""
    first, *others = (row for row in PROTOCOLS.values() if row.dialect is not None)
    return next((row for row in (*others, first) if row.client.is_spoken(path, headers)), first)


def find_dialect(path: str, headers: Mapping[str, str] = {}) -> DialectSide:
    """The dialect side of `find_protocol`."""
    return find_protocol(path, headers).client
