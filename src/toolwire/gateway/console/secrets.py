"""Removes secrets from everything that the console shows: from names, headers, bodies and streams.

Secrets are all keys and passwords that this gateway knows, the key that the client sent, and everything that looks like
one, as in recordings. Headers that are not known to be harmless lose their values. A secret that a model spreads over
several frames is found in their joined text; then the whole stream is withheld.
"""

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from html import escape
from itertools import accumulate
from urllib.parse import quote, unquote, urlsplit

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.events import Note
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.core.redact import is_secret_name
from toolwire.core.secret_patterns import REMOVED, find_secret_spans, merge_spans, remove_spans
from toolwire.gateway.console.content import (
    AttemptContent,
    Headers,
    SentBody,
    StreamContent,
    StreamView,
    TurnContent,
    read_stream,
)
from toolwire.gateway.console.rows import FAILED, MAX_NAME_LENGTH, SEARCHED_LENGTH, TurnRow
from toolwire.gateway.console.trace import AttemptTrace, TurnTrace
from toolwire.gateway.keys import find_key

MIN_SECRET_SIZE = 4
"""Minimum bytes of a key that is searched for."""
SLICE = 64 * 1024
"""Bytes that are searched at a time, so that a thread does not hold the interpreter's lock for long."""
MAX_SECRET_SIZE = 16 * 1024
"""Maximum bytes of a secret and its name. A longer one is removed up to the end of its JSON string."""
MAX_NAME_SIZE = 1024
"""Maximum bytes from the beginning of a value's name to the value."""
MAX_SPANS = 10_000
"""A text with more secrets is removed as a whole: real texts have fewer, and replacing more is slow."""
MAX_TEXT_LENGTH = 4 * MAX_NAME_LENGTH
"""Maximum characters of a path, a model's name or a note's subject."""
MAX_HEADER_LENGTH = 1024
COMMON_IDS = ("call_", "toolu_", "fc_", "chatcmpl-tool-", "functions.")
"""Prefixes of call ids that servers make."""
MAX_COMMON_ID_LENGTH = 72
SHOWN_HEADERS = re.compile(
    r"user-agent|accept|content-(type|length|encoding)|host|anthropic-(version|beta|dangerous-direct-browser-access)"
    r"|openai-(beta|organization|project|processing-ms)|x-stainless-[\w-]+|x-app|originator|version|x-proxy-[\w-]+"
    r"|x-codex-[\w-]+|x-toolwire-[\w-]+|x-claude-code-session-id|x-client-request-id|x-request-id|request-id"
    r"|x-upstream-request-id|session[_-]id|conversation_id|x-session-id|(x-|anthropic-)ratelimit-[\w-]+|retry-after"
    r"|cache-control|date|server|origin|access-control-[\w-]+|vary|transfer-encoding|x-accel-buffering"
)
"""Headers whose values are shown; of all others, only the names are."""
_IN_STRING = re.compile(rb'(?:[^"\\]|\\.)+', re.DOTALL)


# The secrets that the gateway knows


def collect_secrets(settings: Settings, token: str) -> tuple[bytes, ...]:
    """Every key and password in the settings and their environment variables, in each form that a body may contain.

    Args:
        settings: The gateway's settings.
        token: The console's token.
    """
    texts = {settings.environment.get(name, "") for name in settings.secret_variables}
    texts |= {settings.key_of(key) for key in settings.keys} | {token}
    backends = settings.backends
    for url in (settings.store.place, *(each.base_url for each in backends)):
        with suppress(ValueError):
            found = urlsplit(url)
            if password := found.password:  # as written, decoded, and as in a header
                login = f"{unquote(found.username or '')}:{unquote(password)}"
                texts |= {password, unquote(password), base64.b64encode(login.encode()).decode()}
    for backend in backends:
        given = (*backend.headers.items(), *backend.query.items())
        texts |= {value for name, value in given if is_secret_name(name)}
    forms = {form for text in texts for form in _list_forms(text)}
    return tuple(sorted((form for form in forms if len(form) >= MIN_SECRET_SIZE), key=len, reverse=True))


def _list_forms(text: str) -> set[bytes]:
    """A secret as it is, as several libraries write it in JSON, in a URL, and in HTML."""
    written = msgspec.json.encode(text)[1:-1].decode()
    forms = {text, quote(text, safe=""), escape(text), written, written.replace("/", "\\/")}
    for case in ("04x", "04X"):
        for escaped in (r"[+&<>'=/]", r"[+&<>']"):
            forms.add(re.sub(escaped, lambda found, case=case: f"\\u{ord(found[0]):{case}}", written))
    return {form.encode(errors="replace") for form in forms}


# Bodies and texts


def redact(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """The data without these secrets and without anything that looks like one, as in recordings."""
    return remove_spans(data, find_secrets(data, secrets))


def redact_text(text: str, secrets: tuple[bytes, ...]) -> str:
    """A short text without secrets."""
    data = text.encode(errors="replace")
    return remove_spans(data, find_secret_spans(data, secrets)).decode(errors="replace")


def redact_name(name: str, secrets: tuple[bytes, ...]) -> str:
    """The beginning of a name without secrets."""
    return redact_text(name[:SEARCHED_LENGTH], secrets)[:MAX_NAME_LENGTH]


def redact_headers(headers: Mapping[str, str], secrets: tuple[bytes, ...]) -> Headers:
    """The names of all headers, and the values of the harmless ones."""
    return [
        (
            name[:MAX_NAME_LENGTH],
            redact_text(value[:MAX_HEADER_LENGTH], secrets) if SHOWN_HEADERS.fullmatch(name.lower()) else "(not kept)",
        )
        for name, value in headers.items()
    ]


def find_secrets(data: bytes, secrets: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """The spans of all secrets, in order.

    The search goes slice by slice. It looks beyond the end of a slice, so that no secret is cut in two, and a little
    before its beginning, so that no long value is separated from its name.
    """
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(data):
        next_start = start + SLICE
        end = min(next_start + MAX_SECRET_SIZE, len(data))
        spans = find_secret_spans(data, secrets, max(0, start - MAX_NAME_SIZE), end)
        is_cut = end < len(data) and spans and spans[-1][1] >= end - 1  # an escape may be cut at the end
        if is_cut and spans[-1][0] < next_start:
            begin, at = spans[-1]
            while match := _IN_STRING.match(data, at, at + SLICE):
                at = match.end()
            spans.append((begin, at))
            next_start = max(next_start, at)
        found += spans
        start = next_start
        if len(found) > MAX_SPANS:
            return [(0, len(data))]
    return merge_spans(found)


# Rows


class RowCleaner:
    """Shortens the names that clients and backends chose, and removes secrets from them.

    Most names come with every turn, so results are cached.
    """

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = secrets
        self._texts = [secret.decode(errors="replace") for secret in secrets]
        self._redact_cached = lru_cache(maxsize=4096)(partial(redact_name, secrets=secrets))

    def clean(self, rows: Sequence[TurnRow], headers: Iterable[Mapping[bytes, bytes]]) -> None:
        """Clean all names of these rows in place; `headers` are those of each turn's request."""
        redact = self._redact_cached
        for row, given in zip(rows, headers, strict=True):
            key = find_key(given).decode("latin-1")  # the gateway may not know it
            if len(key) >= MIN_SECRET_SIZE:
                _remove_key(row, key)
            row.client, row.session, row.model = redact(row.client), redact(row.session), redact(row.model)
            row.error, row.reason = redact(row.error), redact(row.reason)
            if row.calls:
                row.calls = tuple([redact(name) for name in row.calls])
        # Each id is new, so these are not cached. Common ones are only searched for known secrets, all at once.
        ids = [id for row in rows for id in (*row.call_ids, *row.results)]
        joined = "\n".join(ids)
        is_common = all(
            id.startswith(COMMON_IDS) and len(id) <= MAX_COMMON_ID_LENGTH and " " not in id.removesuffix(FAILED)
            for id in ids
        )
        if is_common and not any(secret in joined for secret in self._texts):
            return
        for row in rows:
            row.call_ids = tuple([redact_name(id, self._secrets) for id in row.call_ids])
            row.results = tuple([redact_name(id, self._secrets) for id in row.results])


def _remove_key(row: TurnRow, key: str) -> None:
    removed = REMOVED.decode()
    for field in ("model", "client", "session", "error"):
        if key in getattr(row, field):
            setattr(row, field, getattr(row, field).replace(key, removed))
    for field in ("calls", "call_ids", "results"):
        if names := getattr(row, field):
            setattr(row, field, tuple([name.replace(key, removed) for name in names]))


# Content


def remove_secrets(trace: TurnTrace, row: TurnRow, notes: Sequence[Note], secrets: tuple[bytes, ...]) -> TurnContent:
    """The content of a turn without secrets. This is slow for a large one.

    Args:
        trace: The trace; it must not grow meanwhile.
        row: The turn's row, which tells whether the turn is still running.
        notes: The turn's notes.
        secrets: What to remove; the key that the client sent is removed too.
    """
    own = find_key(trace.request_headers)
    remover = _Remover((*secrets, own) if len(own) >= MIN_SECRET_SIZE else secrets, trace, row.kept == "running")
    request = redact(trace.request, remover.secrets)
    attempts = [remover.clean_attempt(each, request) for each in trace.attempts]
    separator = b"\n" if row.answer_type == JSON_LINES else b""
    written = [(now, b"".join([piece + separator for piece in pieces])) for now, pieces in trace.written]
    answer = remover.clean_stream(row.dialect, row.answer_type, written)
    if any(each.reply.withheld for each in attempts):
        answer = StreamContent(withheld=True)
    return TurnContent(
        request,
        remover.clean_raw_headers(trace.request_headers.items()),
        attempts,
        answer,
        remover.clean_raw_headers(trace.answer_headers),
        [(note.code, remover.clean_text(note.subject)) for note in notes],
        trace.is_cut,
        remover.clean_text(trace.path),
    )


class _Remover:
    """Removes secrets from the parts of one trace."""

    def __init__(self, secrets: tuple[bytes, ...], trace: TurnTrace, is_running: bool) -> None:
        self.secrets = secrets
        self._began = trace.began
        self._client_body = trace.request
        self._is_running = is_running

    def clean_text(self, text: str) -> str:
        return redact_text(text, self.secrets)[:MAX_TEXT_LENGTH]

    def clean_raw_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        decoded = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return redact_headers(decoded, self.secrets)

    def clean_attempt(self, trace: AttemptTrace, request: bytes) -> AttemptContent:
        """An attempt; `request` is the client's body without secrets, which may have been sent as it was."""
        content_type = trace.headers.get("content-type", "")
        sent = [
            (now, path, request if body is self._client_body else redact(body, self.secrets))
            for now, path, body in trace.sent
        ]
        return AttemptContent(
            trace.backend,
            trace.kind,
            self.clean_text(trace.model),
            self._since_begin(trace.asked_at),
            self._since_begin(trace.replied_at),
            trace.status,
            redact_headers(trace.headers, self.secrets),
            redact_headers(trace.sent_headers, self.secrets),
            [SentBody(self._since_begin(now), path, body) for now, path, body in sent],
            self.clean_stream(trace.kind, content_type, trace.reads),
            redact_name(content_type, self.secrets),
            trace.round,
        )

    def clean_stream(self, kind: str, content_type: str, parts: Sequence[tuple[float, bytes]]) -> StreamContent:
        """A stream without secrets; withheld if its frames together spell one, or, while it runs, begin to."""
        data = b"".join([data for _, data in parts])
        spans = find_secrets(data, self.secrets)
        ends = _move_offsets(accumulate(len(data) for _, data in parts), spans)
        marks = [(self._since_begin(now), end) for (now, _), end in zip(parts, ends, strict=True)]
        stream = StreamContent(remove_spans(data, spans), marks)
        texts = _list_texts(read_stream(kind, content_type, parts))
        if self._is_running and any(
            text.endswith(secret[:end])
            for text in (stream.data, *texts)
            for secret in self.secrets
            for end in range(MIN_SECRET_SIZE, len(secret))
        ):
            return StreamContent(withheld=True)
        clean = [redact(text, self.secrets) for text in texts]
        if clean != texts and clean != _list_texts(read_stream(kind, content_type, stream.parts())):
            return StreamContent(withheld=True)
        return stream

    def _since_begin(self, now: float) -> float:
        return round(now - self._began, 5) if now else 0.0


def _list_texts(view: StreamView) -> list[bytes]:
    named = [text for call in view.calls for text in (call.id, call.name, call.arguments)]
    return [text.encode(errors="replace") for text in (view.text, view.reasoning, view.failure, *named)]


def _move_offsets(offsets: Iterable[int], spans: Sequence[tuple[int, int]]) -> Iterable[int]:
    """Where these offsets are once the spans are replaced; one inside a span is moved to the end of its replacement."""
    starts = [start for start, _ in spans]
    shifts = [0, *accumulate(len(REMOVED) - (end - start) for start, end in spans)]
    for offset in offsets:
        count = bisect_right(starts, offset - 1)
        is_inside = count and offset < spans[count - 1][1]
        yield (spans[count - 1][1] if is_inside else offset) + shifts[count]
