"""The registry of protocols: one row for each, and the only shared module that names one.

A protocol has a dialect side (clients speak it to us), a backend side (we speak it to a model), or both. Everything
above this module iterates over `PROTOCOLS`; everything below treats the name of a protocol as plain text. A new
protocol is a package under `dialects/`, a package under `backends/` and a row here.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec

from toolwire.backends import chat as chat_backend
from toolwire.backends import codex as codex_backend
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.backends.lowered import LoweredConversation, ReplayProfile
from toolwire.core.backend import Post
from toolwire.core.bounds import Bounds, Steps
from toolwire.core.collect import Turn
from toolwire.core.errors import Failure
from toolwire.core.events import Event, RawFrame
from toolwire.core.notes import TurnStats
from toolwire.core.request import CallEntry, Request, RequestHead, ResultEntry, SearchOutcome
from toolwire.dialects import chat, messages, openai, responses

Json = dict[str, Any]


class Encoder(Protocol):
    """Makes the stream of a turn from its events."""

    def feed(self, event: Event, /) -> Sequence[bytes]: ...

    def keepalive(self, silent: float, /) -> Sequence[bytes]:
        """A sign of life after this many silent seconds."""
        ...

    def break_off(self) -> Sequence[bytes]:
        """The end of the stream when nothing else can be encoded."""
        ...


class EncoderFactory(Protocol):
    """Makes an encoder. `clock` is asked when the turn ends; without it the time of the end is `created`."""

    def __call__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> Encoder: ...


class DialectModule(Protocol):
    """What every package under `dialects/` exports."""

    @property
    def PATH(self) -> str:  # noqa: N802
        """Where it is served."""
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


def openai_search(request: Request) -> SearchFrames:
    """Searches as the Responses API writes them."""
    return partial(responses.search_frames, tuple(tool for tool in request.tools if tool.deferred))


DecodeSteps = Callable[[bytes, Bounds, RequestHead], Steps[Request]]
"""Decodes a body step by step. The head has what the dialect writes outside of the body: path, query, headers."""


class DialectSide(msgspec.Struct, frozen=True, kw_only=True):
    """How clients speak the protocol."""

    module: DialectModule
    decode_steps: DecodeSteps | None
    """None: the body is not the whole request, and a package of the gateway serves the dialect."""
    decode_whole: Callable[[bytes], Request]
    """Decodes a body, and raises `BadRequest` if it refers to something that is stored elsewhere."""
    pattern: re.Pattern[str] | None = None
    """Matches paths with parameters in them, which are its named groups; None: the path is always the module's."""
    history_field: str = "messages"
    """The field of a request that holds the conversation."""
    key_header: bytes = b"authorization"
    """Where clients present their key; in `authorization` it follows the word Bearer."""
    key_parameter: str = ""
    """The parameter of the query in which they may present it instead."""
    client_header: str = ""
    """A header that all clients of the dialect send, by which they are known on shared paths such as `/v1/models`."""
    overload_status: int = 503
    """The status of a refusal because of load."""
    count_path: str = ""
    """Where clients ask for the number of tokens of a request; empty if the gateway serves that elsewhere."""
    encode_model: Callable[[str, str], Json] = openai.encode_model
    """A model in a list, from its name and the name of its backend."""
    encode_models: Callable[[Sequence[tuple[str, str]], Mapping[str, str]], Json] = openai.encode_models
    """The list of these models, for a query."""
    search_frames: Callable[[Request], SearchFrames] = openai_search
    """For a request: writes a search for tools that the gateway has run, with its result, as frames of the dialect."""

    def match(self, path: str) -> Mapping[str, str] | None:
        """The parameters in a path, or None if it is not a path of this dialect."""
        if self.pattern is None:
            return {} if path == self.module.PATH else None
        found = self.pattern.fullmatch(path)
        return found.groupdict() if found else None

    def is_asked(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a client of this dialect asks for this path."""
        is_below = self.module.PATH in path or self.match(path) is not None
        return is_below or (bool(self.client_header) and self.client_header in headers)


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile says about its server."""

    base_url: str = ""
    """The address where the settings have none."""
    headers: Mapping[str, str] = {}
    """Sent with every request, unless the settings say otherwise."""
    hosts: tuple[str, ...] = ()
    """Types of hosted tools that it takes from clients of its own dialect."""
    search: str = ""
    """The dialect whose search for tools it supports."""
    counts_tokens: bool = False
    compacts: bool = False


class HttpBackend(msgspec.Struct, frozen=True, kw_only=True):
    """How a server of the protocol is asked. The type of `profile` is that of the backend."""

    path: str
    """What follows the base URL."""
    converse: Callable[[Request, str, Any], LoweredConversation]
    """From a request, a seed for ids and a profile."""
    profile_from: Callable[[Mapping[str, object], str], Any]
    """From the settings of a profile, and the login that the server is used with."""
    facts: Callable[[Any], ServerFacts]
    """From a profile."""
    hosts_tools: tuple[str, ...] = ()
    """The dialects whose hosted tools, such as web search, it knows by name."""
    results_anywhere: bool = False
    """Whether results may stand anywhere behind their calls; if not, they must follow them."""
    count_tokens: Callable[[Request, Any], Post] | None = None
    """The request that asks for the number of tokens of a request."""
    models_path: str = "/models"
    key_header: str = "authorization"
    unsigned_reasoning: bool = False
    """Reasoning that its server shows may have no signature."""
    adds_include: bool = False
    """Its requests ask for encrypted reasoning although the client has not asked."""
    logins: tuple[str, ...] = ()
    """The values of `auth` in the settings that it supports."""
    usage_path: str = ""
    """Where the usage of the account behind a login is read."""


class BackendSide(msgspec.Struct, frozen=True, kw_only=True):
    """How we speak the protocol to a model."""

    profile: type[msgspec.Struct] | None = None
    """The type of the settings `profile`; None if there are none."""
    http: HttpBackend | None = None
    """None: its servers have no address."""
    reads: Callable[[Request, str], LoweredConversation] | None = None
    """A conversation that reads a recorded reply; None if it makes no recordings of its own."""


class ProtocolRow(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the shared modules know about one protocol."""

    name: str
    title: str = ""
    """For people."""
    dialect: DialectSide | None = None
    backend: BackendSide | None = None
    vendor: str = "openai"
    """Whose keys its servers take. A client's own key is meant for a server of its own vendor."""

    @property
    def client(self) -> DialectSide:
        """The dialect side of a protocol that has one."""
        assert self.dialect is not None
        return self.dialect


def _chatgpt_or_openai(settings: Mapping[str, object], login: str) -> responses_backend.Profile:
    base = responses_backend.CHATGPT if login else responses_backend.OPENAI
    return responses_backend.profile_from(settings, base)


def _chat_facts(profile: chat_backend.Profile) -> ServerFacts:
    return ServerFacts(hosts=profile.hosts, search=profile.limits.search)


def _responses_facts(profile: responses_backend.Profile) -> ServerFacts:
    return ServerFacts(
        base_url=profile.base_url,
        search=profile.limits.search,
        counts_tokens=profile.counts_tokens,
        compacts=profile.compacts,
    )


def _messages_facts(profile: messages_backend.Profile) -> ServerFacts:
    return ServerFacts(
        headers={"anthropic-version": profile.version},
        search=profile.limits.search,
        counts_tokens=profile.counts_tokens,
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
                facts=_chat_facts,
                hosts_tools=chat_backend.HOSTS_TOOLS,
                results_anywhere=chat_backend.RESULTS_ANYWHERE,
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
                profile_from=_chatgpt_or_openai,
                facts=_responses_facts,
                hosts_tools=responses_backend.HOSTS_TOOLS,
                results_anywhere=responses_backend.RESULTS_ANYWHERE,
                count_tokens=responses_backend.count_tokens,
                adds_include=True,
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
            search_frames=lambda request: partial(messages.search_frames, stream=request.stream),
        ),
        backend=BackendSide(
            profile=messages_backend.Profile,
            reads=messages_backend.Conversation,
            http=HttpBackend(
                path=messages_backend.PATH,
                converse=messages_backend.Conversation,
                profile_from=lambda settings, _: messages_backend.profile_from(settings),
                facts=_messages_facts,
                hosts_tools=messages_backend.HOSTS_TOOLS,
                results_anywhere=messages_backend.RESULTS_ANYWHERE,
                count_tokens=messages_backend.count_tokens,
                models_path=messages_backend.MODELS_PATH,
                key_header="x-api-key",
                unsigned_reasoning=True,
            ),
        ),
    ),
    ProtocolRow(name="codex", backend=BackendSide(profile=codex_backend.Profile, reads=codex_backend.Conversation)),
    ProtocolRow(name="demo", backend=BackendSide(reads=responses_backend.Conversation)),
    ProtocolRow(name="replay", backend=BackendSide(profile=ReplayProfile)),
)

PROTOCOLS: dict[str, ProtocolRow] = {row.name: row for row in _ROWS}
"""All protocols by name. The first one writes what no dialect is asked for, such as the error of an unknown path."""


@contextmanager
def register(row: ProtocolRow) -> Generator[None]:
    """Register one more protocol for as long as the block runs: applications and settings made in it know the row."""
    assert row.name not in PROTOCOLS, f"there is a protocol {row.name!r}"
    PROTOCOLS[row.name] = row
    try:
        yield
    finally:
        del PROTOCOLS[row.name]


def dialects() -> dict[str, DialectSide]:
    """The protocols that clients may speak."""
    return {name: row.dialect for name, row in PROTOCOLS.items() if row.dialect is not None}


def kinds() -> list[str]:
    """The kinds of backends, as the settings name them."""
    return sorted(name for name, row in PROTOCOLS.items() if row.backend is not None)


def http_backends() -> dict[str, HttpBackend]:
    """The kinds of backends that have an address."""
    sides = ((name, row.backend) for name, row in PROTOCOLS.items())
    return {name: side.http for name, side in sides if side is not None and side.http is not None}


def converse_as(kind: str, request: Request, seed: str) -> LoweredConversation:
    """A conversation that reads a recorded reply of this kind of backend. Raises `ValueError` if there is none."""
    row = PROTOCOLS.get(kind)
    if row is None or row.backend is None or row.backend.reads is None:
        raise ValueError(f"a recording of a {kind} backend cannot be replayed")
    return row.backend.reads(request, seed)


def dialect_of(fields: Mapping[str, Any]) -> str | None:
    """The dialect in which the data of a frame, or a plain answer, is written; None if it could be any."""
    return next((name for name, side in dialects().items() if side.module.recognises(fields)), None)


def protocol_for(path: str, headers: Mapping[str, str] = {}) -> ProtocolRow:
    """The protocol in which a client is answered that asks for this path with these headers, whatever goes wrong."""
    first, *others = (row for row in PROTOCOLS.values() if row.dialect is not None)
    return next((row for row in (*others, first) if row.client.is_asked(path, headers)), first)


def dialect_for(path: str, headers: Mapping[str, str] = {}) -> DialectSide:
    """The dialect side of `protocol_for`."""
    return protocol_for(path, headers).client
