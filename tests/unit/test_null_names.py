"""Tools whose names are words for nothing: declared, they are names like any other."""

import pytest

from tests.museum.lines import cc, part
from tests.museum.routes import ask_all, began, chunks, completion, message, over, told, told_plainly, use
from tests.support.frames import sse, stream
from tests.unit.codex_lines import asked, completed, raw_call, talk
from toolwire.core.request import Message, Request, TextPart, Tool

WORDS = pytest.mark.parametrize("word", ["null", "None", "undefined"])


def item(word: str, arguments: str) -> dict[str, str]:
    return {"type": "function_call", "id": "fc_1", "call_id": "c", "name": word, "arguments": arguments}


def streams(word: str) -> dict[str, list[bytes]]:
    """A call of the tool, as servers stream it."""
    first = cc(part("", index=0, id="c", name=word))
    response = {"id": "r", "status": "completed", "output": [item(word, '{"q":1}')]}
    return {
        "chat": [
            chunks(first, cc(part('{"q":', index=0)), cc(part("1}", index=0)), cc(finish="tool_calls")),
            chunks(first, cc(part('{"q":1}', index=0, name=word)), cc(finish="tool_calls")),
            chunks(first, cc(part('{"q":1}', index=0, name=None)), cc(finish="tool_calls")),
        ],
        "messages": [began() + use(0, "c", word, '{"q":', "1}") + over("tool_use")],
        "responses": [
            stream(
                sse({"type": "response.created", "response": {"id": "r"}}),
                sse({"type": "response.output_item.added", "output_index": 0, "item": item(word, "")}),
                sse({"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": '{"q":1}'}),
                sse({"type": "response.output_item.done", "output_index": 0, "item": item(word, '{"q":1}')}),
                sse({"type": "response.completed", "response": response}),
            ),
            stream(sse({"type": "response.completed", "response": response})),
        ],
    }  # fmt: skip


@WORDS
@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_streamed_call_has_its_name(kind: str, word: str):
    for data in streams(word)[kind]:
        for tools in ((word,), (word, "find")):
            answered = told(kind, data, ask_all(*tools))
            assert answered.calls == [("c", word, '{"q":1}')]
            assert answered.notes == ()


@WORDS
def test_a_plain_call_has_its_name(word: str):
    call = {"id": "c", "type": "function", "function": {"name": word, "arguments": '{"q":1}'}}
    block = {"type": "tool_use", "id": "c", "name": word, "input": {"q": 1}}
    bodies = {
        "chat": completion({"content": None, "tool_calls": [call]}, "tool_calls"),
        "messages": message(block, reason="tool_use"),
        "responses": {"id": "r", "status": "completed", "output": [item(word, '{"q":1}')]},
    }
    for kind, body in bodies.items():
        answered = told_plainly(kind, body, ask_all(word, "find"))
        assert [(id, name) for id, name, _ in answered.calls] == [("c", word)], kind


@WORDS
def test_a_worker_calls_it(word: str):
    request = Request("m", (Message("user", (TextPart("Go."),)),), tools=(Tool(word), Tool("f")))
    heard = talk(raw_call("c", word), asked(0, "c", word), completed(), request=request)
    assert heard.calls == [("c", word, "{}")]


@WORDS
def test_undeclared_it_is_still_no_name(word: str):
    data = chunks(
        cc(part("", index=0, id="c", name="find")), cc(part("{}", index=0, name=word)), cc(finish="tool_calls")
    )
    assert told("chat", data, ask_all("find")).calls == [("c", "find", "{}")]
