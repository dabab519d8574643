"""Reads captured turns: one stream or answer in a file, or the exchanges of a HAR archive."""

import base64
import binascii
from collections.abc import Iterator

from toolwire.check.apis import APIS
from toolwire.check.exchange import Exchange, SentRequest, is_event_stream, is_framed
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_object, as_objects, as_text, parsed
from toolwire.check.turns.rule import Finding, request_facts
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.core.events import Dialect
from toolwire.protocols import dialect_of


class NothingFound(Exception):
    """The file holds no turn; the message is one line for the user."""


def read_file(data: bytes, api: Dialect | None = None, request: bytes = b"") -> Exchange:
    """The turn in a file: the bytes of a stream, or a plain answer. `request` is what was asked, if it is known."""
    plain = _object(data)
    api = api or _api_in(data)
    if plain.get("error") and "object" not in plain:
        raise NothingFound("this is an error, and no turn")
    if api is None:
        raise NothingFound("this is no stream and no answer of an API that is known here")
    sent = SentRequest("POST", APIS[api].path, request) if request else SentRequest("", "")
    return _check(Exchange(1, "captured", api, sent, 200, "", data), is_stream=not plain)


def _api_in(data: bytes) -> Dialect | None:
    """The API that an answer belongs to, streamed or not; None if it is unknown."""
    plain = _object(data)
    objects = [plain] if plain else [each.fields for each in FrameCheck().feed(data + b"\n\n")]
    return next((api for each in objects if (api := dialect_of(each))), None)


def _object(data: bytes) -> Json:
    return as_object(parsed(data.removeprefix(b"\xef\xbb\xbf")))


def _check(exchange: Exchange, *, is_stream: bool, is_named: bool = True) -> Exchange:
    exchange.facts = facts = request_facts(exchange.api, _object(exchange.sent.body))
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
    """The turns of an archive that a browser or a proxy has written."""
    entries = as_objects(as_object(_object(data).get("log")).get("entries"))
    exchanges = [made for number, entry in enumerate(entries, 1) for made in _read_entry(number, entry)]
    if not exchanges:
        raise NothingFound("there is no turn of an API that is known here in this archive")
    return exchanges


def _read_entry(number: int, entry: Json) -> Iterator[Exchange]:
    """The turn of an entry; none if the request was refused, the answer not stored, or the API is another one."""
    request, response = as_object(entry.get("request")), as_object(entry.get("response"))
    content = as_object(response.get("content"))
    url, method = as_text(request.get("url")), as_text(request.get("method"))
    path = url.partition("?")[0].rstrip("/")
    api: Dialect | None = next((api.name for api in APIS.values() if path.endswith(api.path)), None)
    body = _content(number, content) if api and method == "POST" and response.get("status") == 200 else b""
    posted = as_text(as_object(request.get("postData")).get("text")).encode()
    kind = as_text(content.get("mimeType"))
    if api is not None and body and ("model" in _object(posted) or _api_in(body) == api):
        exchange = Exchange(number, "captured", api, SentRequest(method, url, posted), 200, kind, body)
        is_stream = is_event_stream(kind) or is_framed(body)
        yield _check(exchange, is_stream=is_stream, is_named=not kind or is_event_stream(kind))


def _content(number: int, content: Json) -> bytes:
    text = as_text(content.get("text"))
    if content.get("encoding") != "base64":
        return text.encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise NothingFound(f"the answer of entry {number} is no base64") from None
