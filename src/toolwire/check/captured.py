"""Checks captured turns: the bytes that another program passes, a file, or the exchanges of a HAR archive."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from toolwire.check.apis import APIS, make_facts
from toolwire.check.exchange import Exchange, SentRequest, is_event_stream, is_framed
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_object, as_objects, as_text, parse_json
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import StreamCheck, check_answer, check_plain
from toolwire.core.events import Dialect
from toolwire.library.bodies import Body, as_bytes
from toolwire.library.reply import check_chunk, check_chunks, check_dialect
from toolwire.protocols import detect_dialect


def check_stream(dialect: Dialect, chunks: Iterable[bytes], request: Body | None = None) -> list[Finding]:
    """Check a captured stream; returns its violations of the rules. With the request, more rules apply."""
    check = StreamCheck(_find_facts(dialect, request))
    for chunk in check_chunks(chunks):
        check.feed(check_chunk(chunk))
    return [*check.end()]


def check_body(dialect: Dialect, body: Body, request: Body | None = None) -> list[Finding]:
    """Check a captured plain reply; returns its violations of the rules. With the request, more rules apply."""
    found, _ = check_plain(as_bytes(body), _find_facts(dialect, request))
    return found


def _find_facts(dialect: Dialect, request: Body | None) -> RequestFacts:
    fields: Any = parse_json(as_bytes(request)) if request is not None else {}
    if not isinstance(fields, dict):
        raise ValueError("request: the body of a request must be a JSON object")  # noqa: TRY004 - as for any value
    return make_facts(check_dialect(dialect), as_object(fields))


class NothingFound(Exception):
    """The file holds no turn; the message is one line for the user."""


def read_file(data: bytes, api: Dialect | None = None, request: bytes = b"") -> Exchange:
    """Check the turn in a file: a stream, or a plain answer. `request` is the body of its request, if it is known."""
    plain = _parse_object(data)
    api = api or _find_api(data)
    if plain.get("error") and "object" not in plain:
        raise NothingFound("this is an error, not a turn")
    if api is None:
        raise NothingFound("this is neither a stream nor an answer of a known API")
    sent = SentRequest("POST", APIS[api].path, request) if request else SentRequest("", "")
    return _check(Exchange(1, "captured", api, sent, 200, "", data), is_stream=not plain)


def _find_api(data: bytes) -> Dialect | None:
    """The API that an answer belongs to, streamed or not; None if it is unknown."""
    plain = _parse_object(data)
    elements = as_objects(parse_json(data))
    objects = [plain] if plain else elements or [each.fields for each in FrameCheck().feed(data + b"\n\n")]
    return next((api for each in objects if (api := detect_dialect(each))), None)


def _parse_object(data: bytes) -> Json:
    return as_object(parse_json(data.removeprefix(b"\xef\xbb\xbf")))


def _check(
    exchange: Exchange, *, is_stream: bool, is_named: bool = True, headers: Iterable[tuple[str, str]] = ()
) -> Exchange:
    exchange.facts = facts = make_facts(exchange.api, _parse_object(exchange.sent.body), headers)
    found, exchange.turn, exchange.received = check_answer(exchange.body, facts, is_stream=is_stream)
    if is_stream and not is_named:
        found = [*found, Finding("sse.content-type", f"A stream has the content type {exchange.content_type!r}.")]
    exchange.findings = tuple(found)
    return exchange


def read_har(data: bytes) -> list[Exchange]:
    """Check the turns of an archive that a browser or a proxy wrote.

    Skips refused requests, entries without a stored answer, and other APIs.
    """
    exchanges: list[Exchange] = []
    for number, entry in enumerate(as_objects(as_object(_parse_object(data).get("log")).get("entries")), 1):
        request, response = as_object(entry.get("request")), as_object(entry.get("response"))
        content = as_object(response.get("content"))
        url, method = as_text(request.get("url")), as_text(request.get("method"))
        path = url.partition("?")[0].rstrip("/")
        api: Dialect | None = next((api.name for api in APIS.values() if api.serves(path)), None)
        if api is None or method != "POST" or response.get("status") != 200:
            continue
        text = as_text(content.get("text"))
        try:
            is_base64 = content.get("encoding") == "base64"
            body = base64.b64decode("".join(text.split()), validate=True) if is_base64 else text.encode()
        except binascii.Error:
            raise NothingFound(f"the answer of entry {number} is not valid base64") from None
        posted = as_text(as_object(request.get("postData")).get("text")).encode()
        kind = as_text(content.get("mimeType"))
        if body and ("model" in _parse_object(posted) or _find_api(body) == api):
            exchange = Exchange(number, "captured", api, SentRequest(method, url, posted), 200, kind, body)
            is_stream = is_event_stream(kind) or is_framed(body)
            is_named = not kind or is_event_stream(kind)
            headers = [
                (as_text(each.get("name")), as_text(each.get("value"))) for each in as_objects(request.get("headers"))
            ]
            exchanges.append(_check(exchange, is_stream=is_stream, is_named=is_named, headers=headers))
    if not exchanges:
        raise NothingFound("this archive has no turn of a known API")
    return exchanges
