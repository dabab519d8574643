"""The library writes what the gateway sends: byte for byte, on every route."""

import itertools
import json
import re

import pytest

from tests.gateway.test_matrix import TURNS
from tests.support.backend_writers import PLAIN, STREAMED, reply
from tests.support.routes import Routes, question
from tests.support.scripts import NAMES, Name
from toolwire import convert_request, translate, translate_body

SOME = [
    "text between calls",
    "a thought, text and two calls",
    "a call without arguments",
    "cut in a call",
    "a refusal after text",
    "a custom tool",
    "a tool in a namespace",
    "all kinds of tokens",
]
ROUTES = [
    pytest.param(turn, dialect, kind, id=f"{turn}-{dialect}-{kind}")
    for turn, dialect, kind in itertools.product(SOME, NAMES, NAMES)
    if dialect in TURNS[turn].dialects and kind in TURNS[turn].kinds
]
_END = re.compile(rb'"completed_at":\d+')


def heading(data: bytes, *, stream: bool) -> tuple[str, int]:
    """The id of an answer and when it was made."""
    first = json.loads(next(line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")) if stream else data)
    answer = first.get("response") or first.get("message") or first
    return answer.get("id") or answer["responseId"], answer.get("created") or answer.get("created_at") or 0


def seed_of(id: str) -> str:
    return re.sub(r"^(chatcmpl-|resp_|msg_)", "", id)


def comparable(data: bytes) -> bytes:
    """All but the moment in which a response was completed."""
    return _END.sub(b'"completed_at":0', data)


@pytest.mark.parametrize(("turn", "dialect", "kind"), ROUTES)
def test_a_translated_stream_is_what_the_gateway_sends(routes: Routes, turn: str, dialect: Name, kind: Name):
    script, model = TURNS[turn], f"library {turn} {kind}"
    routes.upstream.replies[model] = reply(script, kind, stream=True)
    fields = {"store": False} if dialect == "responses" else {}
    body = question(dialect, f"{kind}/{model}", script.tools, stream=True, **fields)
    sent = routes.post(dialect, body).content
    id, created = heading(sent, stream=True)
    converted = convert_request(dialect, kind, body, model=model)
    assert json.loads(converted.body) == routes.upstream.of(model)[-1].body
    chunks = [step for step in STREAMED[kind](script) if isinstance(step, bytes)]
    made = translate(kind, dialect, chunks, answers=converted, seed=seed_of(id), created=created)
    assert comparable(b"".join(made)) == comparable(sent)


@pytest.mark.parametrize(("turn", "dialect", "kind"), ROUTES)
def test_a_translated_body_is_what_the_gateway_sends(routes: Routes, turn: str, dialect: Name, kind: Name):
    script, model = TURNS[turn], f"library plain {turn} {kind}"
    routes.upstream.replies[model] = reply(script, kind, stream=False)
    fields = {"store": False} if dialect == "responses" else {}
    body = question(dialect, f"{kind}/{model}", script.tools, stream=False, **fields)
    sent = routes.post(dialect, body).content
    id, created = heading(sent, stream=False)
    converted = convert_request(dialect, kind, body, model=model)
    made = translate_body(kind, dialect, PLAIN[kind](script), answers=converted, seed=seed_of(id), created=created)
    assert comparable(made) == comparable(sent)
