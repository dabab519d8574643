"""A fault of a reply is never an exception: every field of every frame, missing or with a value that cannot be."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.backend_writers import PLAIN, STREAMED
from tests.support.scripts import NAMES, Calls, Name, Says, Script, Thinks
from toolwire import WrongDialect, collect, decode_stream, translate, translate_body

SCRIPT = Script((Thinks("Hm.", "SEAL"), Says("So."), Calls("call_a", "look", '{"path":"a"}')))
USUAL = {("chat", "responses"), ("responses", "messages"), ("messages", "chat")}
"""Pairs that are always tried: each dialect is read once, and written once."""
WRONG: list[Any] = [None, 0, "", "\ud83d", [], {}, [None], {"a": None}]


def spoilt(value: Any) -> Iterator[Any]:
    """The value with one of its fields left out, or with each wrong value in place of one of its fields."""
    for path in paths(value):
        *above, last = path
        for wrong in WRONG:
            changed = copy.deepcopy(value)
            inside(changed, above)[last] = wrong
            yield changed
        changed = copy.deepcopy(value)
        del inside(changed, above)[last]
        yield changed


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*above, key)
        yield from paths(value[key], (*above, key))


def inside(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def spoilt_streams(kind: Name) -> Iterator[bytes]:
    """The stream of a server, with a fault in one of its frames."""
    frames = b"".join(step for step in STREAMED[kind](SCRIPT) if isinstance(step, bytes)).split(b"\n\n")
    for index, frame in enumerate(frames):
        head, found, data = frame.partition(b"data: {")
        for changed in spoilt(json.loads(b"{" + data)) if found else ():
            faulty = head + b"data: " + json.dumps(changed).encode()
            yield b"\n\n".join([*frames[:index], faulty, *frames[index + 1 :]])


PAIRS = [
    pytest.param(source, target, marks=() if (source, target) in USUAL else pytest.mark.soak)
    for source in NAMES
    for target in NAMES
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_fault_of_a_frame_is_no_exception(source: Name, target: Name):
    for stream in spoilt_streams(source):
        try:
            written = [*translate(source, target, [stream])]
        except WrongDialect:
            continue
        collect(decode_stream(target, written))


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_a_fault_of_a_plain_answer_is_no_exception(source: Name, target: Name):
    for body in spoilt(json.loads(PLAIN[source](SCRIPT))):
        try:
            json.loads(translate_body(source, target, json.dumps(body)))
        except WrongDialect:
            continue


def test_a_frame_about_an_item_that_is_not_in_it_is_not_passed_on():
    frame = b'data: {"type":"response.output_item.done","output_index":0,"item":null}\n\n'
    pieces = [step for step in STREAMED["responses"](SCRIPT) if isinstance(step, bytes)]
    written = b"".join(translate("responses", "responses", [pieces[0], frame, *pieces[1:]], id="resp_1", created=0))
    assert written == b"".join(translate("responses", "responses", pieces, id="resp_1", created=0))
