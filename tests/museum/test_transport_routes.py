"""What breaks on any route reaches the client as the truth, and a client that leaves stops every server."""

from itertools import islice
from typing import Any

import httpx
import pytest

from tests.museum.cases import Theme
from tests.museum.gate import Door, Routes
from tests.museum.lines import cc
from tests.museum.routes import KINDS, Kind, am, began, chunks, over, told
from tests.support.frames import created, text
from tests.support.upstream import Pause, Reply

theme = Theme("transport")

_OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
_HALF = am("content_block_start", index=0, content_block={"type": "text", "text": ""}) + am(
    "content_block_delta", index=0, delta={"type": "text_delta", "text": "Half"}
)
_ERROR = am("error", error=_OVERLOADED)
_NAMELESS = _ERROR.removeprefix(b"event: error\n")
_CHAT_ERROR = {"error": {"message": "Overloaded", "type": "overloaded_error", "code": None}}


@theme.row("err-inband-ignored")
def _(routes: Routes) -> None:
    rest = am("content_block_stop", index=0) + over()
    for kind, told_before, opening, error in _broken():
        answered = told(kind, told_before + error + rest)
        assert (answered.said.text, answered.said.finish) == ("Half", None)
        assert answered.received.types[-2:] == ["error", "failed"]
        model, early = routes.script(kind, told_before + error), routes.script(kind, opening + error)
        for door in routes.doors:
            streamed, plain = door.stream(model), door.plain(model)
            assert (streamed.status, streamed.said.text) == (200, "Half")
            assert streamed.error is not None
            assert streamed.error["message"] == plain.json()["error"]["message"] == "Overloaded"
            assert plain.status_code in (503, 529)
            assert door.stream(early).status in (503, 529)  # nothing was committed yet
            assert len(routes.asked(early)) <= 3, "asked again"
        for answer in (routes.messages.stream(model).error, routes.messages.plain(model).json()["error"]):
            assert answer is not None
            assert answer["type"] == "overloaded_error"


def _broken() -> list[tuple[Kind, bytes, bytes, bytes]]:
    """A server that breaks after half a text: what it said by then, its opening, and the error."""
    spoken = chunks(cc(content="Half"), done=False)
    return [
        ("messages", began() + _HALF, began(), _ERROR),
        ("messages", began() + _HALF, began(), _NAMELESS),
        ("chat", spoken, chunks(cc(role="assistant"), done=False), chunks(_CHAT_ERROR)),
        ("chat", spoken, chunks(cc(role="assistant"), done=False), b"event: error\n" + chunks(_CHAT_ERROR)),
    ]


def _endless(kind: Kind) -> list[Any]:
    """A hundred chunks and more, over some seconds."""
    match kind:
        case "responses":
            opening, words = created(), [text(f"{number} ") for number in range(150)]
        case "chat":
            opening, words = b"", [chunks(cc(content=f"{number} "), done=False) for number in range(150)]
        case "messages":
            deltas = [{"type": "text_delta", "text": f"{number} "} for number in range(150)]
            opening = began() + am("content_block_start", index=0, content_block={"type": "text", "text": ""})
            words = [am("content_block_delta", index=0, delta=delta) for delta in deltas]
    return [opening, *(step for word in words for step in (word, Pause(0.03)))]


def _leaves(routes: Routes, door: Door, model: str) -> None:
    """A client that goes after a few lines, and one that gives a plain request up."""
    routes.upstream.gone.clear()
    with routes.http.stream("POST", door.url, json=door.body(model, stream=True)) as response:
        assert len([*islice(response.iter_lines(), 6)]) == 6
    assert routes.upstream.gone.wait(60), "the upstream is still being read"
    routes.upstream.gone.clear()
    with pytest.raises(httpx.ReadTimeout):
        routes.http.post(door.url, json=door.body(model), timeout=0.3)
    assert routes.upstream.gone.wait(60), "the upstream is still being read"


@theme.row("err-disconnect-mid")
def _(routes: Routes) -> None:
    for kind in KINDS:
        model = routes.script(kind, Reply(_endless(kind)))
        for door in routes.doors:
            _leaves(routes, door, model)


test_museum = theme.test()
