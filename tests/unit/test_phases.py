"""Commentary and a final answer of a Codex model: the same text appears once."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.museum.lines import SEED
from tests.museum.routes import ASK
from tests.support.chunks import in_any_chunking
from tests.support.frames import sse
from tests.unit.codex_lines import delta, ended, raw, talk, told
from toolwire.backends import responses
from toolwire.core.collect import Turn, collect
from toolwire.core.sse import FrameReader

Json = dict[str, Any]
COMMENTARY, ANSWER = "commentary", "final_answer"
DONE = "The tests pass."


def started(item: str, phase: str | None) -> bytes:
    return told("item/started", item={"type": "agentMessage", "id": item, "text": "", "phase": phase})


def whole(item: str, text: str, phase: str | None) -> bytes:
    shown = told("item/completed", item={"type": "agentMessage", "id": item, "text": text, "phase": phase})
    content = [{"type": "output_text", "text": text}]
    return shown + raw(type="message", role="assistant", id=item, content=content, phase=phase)


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def worked(*messages: tuple[str, str | None], size: int = 4, live: bool = True) -> Turn:
    """The turn of a worker whose model sends these messages: text and phase."""
    lines: list[bytes] = []
    for number, (text, phase) in enumerate(messages):
        item = f"msg_{number}"
        lines.append(started(item, phase))
        lines += [delta(piece, item) for piece in pieces(text, size)] if live else []
        lines.append(whole(item, text, phase))
    return talk(*lines, ended()).turn


def item(number: int, text: str, phase: str | None) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content, "phase": phase}  # fmt: skip


def streamed(*messages: tuple[str, str | None], size: int = 4, live: bool = True, dialect: str = "chat") -> Turn:
    """The turn of a Responses server that sends these messages, in any chunking."""
    data = sse({"type": "response.created", "response": {"id": "r"}})
    for number, (text, phase) in enumerate(messages):
        about = {"item_id": f"msg_{number}", "output_index": number, "content_index": 0}
        added = {**item(number, text, phase), "content": [], "status": "in_progress"}
        data += sse({"type": "response.output_item.added", "output_index": number, "item": added})
        for piece in pieces(text, size) if live else ():
            data += sse({"type": "response.output_text.delta", **about, "delta": piece})
        data += sse({"type": "response.output_item.done", "output_index": number, "item": item(number, text, phase)})
    data += sse({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}})

    def read(chunks: list[bytes]) -> Turn:
        reader, made = FrameReader(), responses.Conversation(ASK[dialect](), SEED)
        made.start()
        return collect([event for chunk in chunks for frame in reader.feed(chunk) for event in made.feed(frame)])

    return in_any_chunking(data, read)


def plain(*messages: tuple[str, str | None]) -> Turn:
    output = [item(number, *each) for number, each in enumerate(messages)]
    made = responses.Conversation(ASK["chat"](), SEED)
    made.start()
    return collect(made.feed_plain(json.dumps({"status": "completed", "output": output}).encode()))


READERS = [worked, streamed, lambda *messages: worked(*messages, live=False), lambda *messages: streamed(*messages, live=False), plain]  # fmt: skip
EVERY_READER = pytest.mark.parametrize("read", READERS, ids=["worker", "stream", "worker at once", "stream at once", "plain"])  # fmt: skip


@EVERY_READER
def test_an_answer_that_repeats_the_commentary_appears_once(read: Any):
    turn = read((DONE, COMMENTARY), (DONE, ANSWER))
    assert turn.text == DONE
    assert [(note.code, note.subject) for note in turn.notes] == [("message_repeated", "msg_1")]
    assert turn.reason == "stop"


@EVERY_READER
@pytest.mark.parametrize(
    "messages",
    [
        ((DONE, COMMENTARY), ("The tests fail.", ANSWER)),
        ((DONE, COMMENTARY), (DONE + " All of them.", ANSWER)),
        ((DONE, COMMENTARY), ("The tests", ANSWER)),
        ((DONE, COMMENTARY), (DONE, None)),
        ((DONE, COMMENTARY), (DONE, COMMENTARY)),
        ((DONE, ANSWER), (DONE, ANSWER)),
        ((DONE, None), (DONE, None)),
        ((DONE, COMMENTARY), ("I look again.", COMMENTARY), (DONE, ANSWER)),
        ((DONE, COMMENTARY), ("Hm.", None), (DONE, ANSWER)),
    ],
)
def test_all_else_is_told_as_it_is(read: Any, messages: tuple[tuple[str, str | None], ...]):
    turn = read(*messages)
    assert turn.text == "".join(text for text, _ in messages)
    assert turn.notes == ()


@given(st.lists(st.tuples(st.text("ab", max_size=6), st.sampled_from([COMMENTARY, ANSWER, None])), max_size=5), st.integers(1, 4))  # fmt: skip
def test_no_text_is_lost_or_doubled_whatever_the_phases(messages: list[tuple[str, str | None]], size: int):
    said = [(text, phase) for text, phase in messages if text]
    pairs = zip([("", None), *said], said, strict=False)
    repeated = [index for index, (before, now) in enumerate(pairs) if (before[1], now[1]) == (COMMENTARY, ANSWER) and before[0] == now[0]]  # fmt: skip
    expected = "".join(text for index, (text, _) in enumerate(said) if index not in repeated)
    for turn in (worked(*said, size=size), streamed(*said, size=size), plain(*said)):
        assert turn.text == expected
        assert [note.code for note in turn.notes].count("message_repeated") == len(repeated)


def test_a_turn_that_breaks_off_shows_what_was_held_back():
    turn = talk(started("a", COMMENTARY), delta(DONE, "a"), started("b", ANSWER), delta("The tests", "b"), ended()).turn
    assert turn.text == DONE + "The tests"


def test_a_client_of_the_same_dialect_sees_both_messages():
    assert streamed((DONE, COMMENTARY), (DONE, ANSWER), dialect="responses").text == DONE * 2
