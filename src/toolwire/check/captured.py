"""Turns that were captured elsewhere: one stream or answer in a file, or the exchanges of a HAR archive."""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.check.apis import APIS
from toolwire.check.exchange import Exchange, Sent
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_list, as_object, as_objects, as_text
from toolwire.check.turns.rule import Asked
from toolwire.check.turns.streams import StreamCheck, api_of, check_plain
from toolwire.core.events import Dialect


class NothingFound(Exception):
    """There is no turn in what was given, in one line."""


def read_file(data: bytes, api: Dialect = "") -> Exchange:
    """The turn in a file: the bytes of a stream, or a plain answer."""
    plain = _object(data)
    first = plain or _first_event(data)
    api = api or api_of(first)
    if not api:
        raise NothingFound("this is no stream and no answer of an API that is known here")
    return _exchange(1, Asked(api), Sent("", ""), "application/json" if plain else "text/event-stream", data)


def _first_event(data: bytes) -> Json:
    heard = FrameCheck().feed(data)
    return next((each.fields for each in heard if each.fields), {})


def _object(data: bytes) -> Json:
    try:
        return as_object(msgspec.json.decode(data))
    except msgspec.DecodeError:
        return {}


def _exchange(number: int, asked: Asked, sent: Sent, kind: str, body: bytes, status: int = 200) -> Exchange:
    about = Exchange(number, "captured", asked.api, sent, status, kind, body)
    if status != 200:
        return about
    if "event-stream" not in kind:
        found, turn = check_plain(body, asked)
        return msgspec.structs.replace(about, turn=turn, findings=tuple(found))
    stream = StreamCheck(asked)
    stream.feed(body)
    found = stream.end()
    return msgspec.structs.replace(about, heard=tuple(stream.heard), turn=stream.turn, findings=tuple(found))


def read_har(data: bytes) -> list[Exchange]:
    """The turns of an archive that a browser or a proxy has written."""
    entries = as_objects(as_object(_object(data).get("log")).get("entries"))
    exchanges = [made for number, entry in enumerate(entries, 1) for made in _read_entry(number, entry)]
    if not exchanges:
        raise NothingFound("there is no turn of an API that is known here in this archive")
    return exchanges


def _read_entry(number: int, entry: Json) -> Iterator[Exchange]:
    request, response = as_object(entry.get("request")), as_object(entry.get("response"))
    content = as_object(response.get("content"))
    url, method = as_text(request.get("url")), as_text(request.get("method"))
    path = url.partition("?")[0].rstrip("/")
    api = next((api.name for api in APIS.values() if path.endswith(api.path)), "")
    if not api or method != "POST":
        return
    text = as_text(content.get("text"))
    body = base64.b64decode(text) if content.get("encoding") == "base64" else text.encode()
    posted = as_text(as_object(request.get("postData")).get("text")).encode()
    status = response.get("status")
    kind = as_text(content.get("mimeType"))
    sent = Sent(method, url, posted)
    yield _exchange(number, asked_in(api, _object(posted)), sent, kind, body, status if isinstance(status, int) else 0)


def asked_in(api: Dialect, body: Json) -> Asked:
    """What the rules have to know of a request."""
    if not body:
        return Asked(api)
    names = [_name(as_object(tool)) for tool in as_list(body.get("tools"))]
    usage = as_object(body.get("stream_options")).get("include_usage")
    return Asked(
        api, tuple(names) if all(names) else None, bool(usage) if api == "chat" and body.get("stream") else None
    )


def _name(tool: Json) -> str:
    inner: Any = tool.get("function") or tool.get("custom") or tool
    return as_text(as_object(inner).get("name"))
