"""Checks captured turns: bytes for other programs and their tests, a file, or the exchanges of a HAR archive."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from toolwire.check.apis import APIS, request_facts
from toolwire.check.exchange import Exchange, SentRequest, is_event_stream, is_framed
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_object, as_objects, as_text, parse_json
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.core.events import Dialect
from toolwire.library.bodies import Body, as_bytes
from toolwire.library.reply import checked_chunk, checked_chunks, checked_dialect
from toolwire.protocols import dialect_of


def check_stream(dialect: Dialect, chunks: Iterable[bytes], request: Body | None = None) -> list[Finding]:
    """What is wrong with a stream, by the rules that a stream can break. With the request more of them apply."""
    check = StreamCheck(_facts(dialect, request))
    for chunk in checked_chunks(chunks):
        check.feed(checked_chunk(chunk))
    return [*check.end()]


def check_body(dialect: Dialect, body: Body, request: Body | None = None) -> list[Finding]:
    """What is wrong with an answer that is not streamed. With the request more rules apply."""
    found, _ = check_plain(as_bytes(body), _facts(dialect, request))
    return found


def _facts(dialect: Dialect, request: Body | None) -> RequestFacts:
    fields: Any = parse_json(as_bytes(request)) if request is not None else {}
    if not isinstance(fields, dict):
        raise ValueError("request: the body of a request is needed, which is a JSON object")  # noqa: TRY004 - as for any value
    return request_facts(checked_dialect(dialect), as_object(fields))


class NothingFound(Exception):
    """The file holds no turn; the message is one line for the user."""


def read_file(data: bytes, api: Dialect | None = None, request: bytes = b"") -> Exchange:
    """The turn in a file: the bytes of a stream, or a plain answer. `request` is what was asked, if it is known."""
    plain = _parse_object(data)
    api = api or _find_api(data)
    if plain.get("error") and "object" not in plain:
        raise NothingFound("this is an error, and no turn")
    if api is None:
        raise NothingFound("this is no stream and no answer of an API that is known here")
    sent = SentRequest("POST", APIS[api].path, request) if request else SentRequest("", "")
    return _check(Exchange(1, "captured", api, sent, 200, "", data), is_stream=not plain)


def _find_api(data: bytes) -> Dialect | None:
    """The API that an answer belongs to, streamed or not; None if it is unknown."""
    plain = _parse_object(data)
    objects = [plain] if plain else [each.fields for each in FrameCheck().feed(data + b"\n\n")]
    return next((api for each in objects if (api := dialect_of(each))), None)


def _parse_object(data: bytes) -> Json:
    return as_object(parse_json(data.removeprefix(b"\xef\xbb\xbf")))


def _check(exchange: Exchange, *, is_stream: bool, is_named: bool = True) -> Exchange:
    exchange.facts = facts = request_facts(exchange.api, _parse_object(exchange.sent.body))
    if is_stream:
        stream = StreamCheck(facts)
        stream.feed(exchange.body)
        found, exchange.turn, exchange.received = stream.end(), stream.turn, tuple(stream.received)
    else:
        found, exchange.turn = check_plain(exchange.body, facts)
    if is_stream and not is_named:
        found = [*found, Finding("sse.content-type", f"A stream has the content type {exchange.content_type!r}.")]
    exchange.findings = tuple(found)
    return exchange


def read_har(data: bytes) -> list[Exchange]:
    """The turns of an archive that a browser or a proxy has written.

    Entries are left out whose request was refused, whose answer is not stored, or that belong to another API.
    """
    exchanges: list[Exchange] = []
    for number, entry in enumerate(as_objects(as_object(_parse_object(data).get("log")).get("entries")), 1):
        request, response = as_object(entry.get("request")), as_object(entry.get("response"))
        content = as_object(response.get("content"))
        url, method = as_text(request.get("url")), as_text(request.get("method"))
        path = url.partition("?")[0].rstrip("/")
        api: Dialect | None = next((api.name for api in APIS.values() if path.endswith(api.path)), None)
        if api is None or method != "POST" or response.get("status") != 200:
            continue
        body = _read_content(number, content)
        posted = as_text(as_object(request.get("postData")).get("text")).encode()
        kind = as_text(content.get("mimeType"))
        if body and ("model" in _parse_object(posted) or _find_api(body) == api):
            exchange = Exchange(number, "captured", api, SentRequest(method, url, posted), 200, kind, body)
            is_stream = is_event_stream(kind) or is_framed(body)
            exchanges.append(_check(exchange, is_stream=is_stream, is_named=not kind or is_event_stream(kind)))
    if not exchanges:
        raise NothingFound("there is no turn of an API that is known here in this archive")
    return exchanges


def _read_content(number: int, content: Json) -> bytes:
    text = as_text(content.get("text"))
    if content.get("encoding") != "base64":
        return text.encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise NothingFound(f"the answer of entry {number} is no base64") from None
