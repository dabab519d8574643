"""Content, role and order on every route."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import ask, ask_responses
from tests.museum.routes import (
    ask_all,
    ask_messages,
    began,
    message,
    over,
    sent,
    text_block,
    thought,
    told,
    told_plainly,
    types_of,
    use,
)
from tests.support.frames import call_item

theme = Theme("content")

_USER = {"role": "user", "content": "Go."}
_MADE = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_RESULT = {"role": "tool", "tool_call_id": "c", "content": "ok"}
_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "ok"}


@theme.row("role-first-missing")
def _() -> None:
    answered = told("messages", began() + use(0, "t", "f", "{}") + over("tool_use"))
    first, second, *_ = (chunk["choices"][0]["delta"] for chunk in answered.chunks)
    assert first == {"role": "assistant", "content": None}
    [part] = second["tool_calls"]
    assert (part["index"], part["id"], part["function"]["name"]) == (0, "t", "f")
    assert answered.received.types[:3] == ["created", "in_progress", "output_item.added"]
    assert answered.steps[0] == ("start", 0)
    early = told("messages", use(0, "t", "f", "{}") + over("tool_use"))  # nobody said that the turn began
    assert early.calls == answered.calls == [("t", "f", "{}")]


@theme.row("content-null-vs-empty")
def _() -> None:
    assistants: list[Json] = [{"content": None}, {"content": ""}, {}, {"content": []}]
    for fields in assistants:
        said = {"role": "assistant", **fields, "tool_calls": [_MADE]}
        request = ask(messages=[_USER, said, _RESULT])
        for rule, expected in (("null", {"content": None}), ("empty", {"content": ""}), ("omit", {})):
            _, made, result = sent("chat", request, content_beside_calls=rule).messages
            # A server that takes anything gets what its client wrote.
            written = fields if rule == "null" else expected
            assert made == {"role": "assistant", "tool_calls": [_MADE], **written}
            assert result == _RESULT
        assert types_of(sent("messages", request).messages[1]["content"]) == ["tool_use"]  # it refuses empty text
    # The others have no text by having no block or item of it.
    used: Json = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}
    for request in (
        ask_messages(messages=[_USER, {"role": "assistant", "content": [used]}, back]),
        ask_messages(messages=[_USER, {"role": "assistant", "content": [{"type": "text", "text": ""}, used]}, back]),
        ask_responses(input=[_USER, call_item("c", "f", "{}"), _OUTPUT]),
    ):
        for rule, expected in (("null", {"content": None}), ("empty", {"content": ""}), ("omit", {})):
            made = sent("chat", request, content_beside_calls=rule).messages[1]
            assert made == {"role": "assistant", "tool_calls": [_MADE], **expected}


_TURN = began() + thought(0, "Think.") + text_block(1, "Say.") + use(2, "c", "f", "{}") + over("tool_use")
_BLOCKS: list[Json] = [
    {"type": "thinking", "thinking": "Think.", "signature": "SIG"},
    {"type": "text", "text": "Say."},
    {"type": "tool_use", "id": "c", "name": "f", "input": {}},
]


@theme.row("ord-text-after-tool")
def _(routes: Routes) -> None:
    for answered in (told("messages", _TURN), told_plainly("messages", message(*_BLOCKS, reason="tool_use"))):
        assert answered.item_types == ["reasoning", "message", "function_call"]
        assert answered.block_types == ["thinking", "text", "tool_use"]
        # Back it goes as it was written, whoever carried it.
        held = ask_responses(input=[_USER, *answered.received.output, _OUTPUT])
        assert sent("messages", held).messages[1] == {"role": "assistant", "content": _BLOCKS}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}
        kept = ask_messages(messages=[_USER, {"role": "assistant", "content": answered.plain["content"]}, result])
        assert sent("messages", kept).messages[1] == {"role": "assistant", "content": _BLOCKS}
    model = routes.script("messages", _TURN)
    said = routes.chat.stream(model, ("f",)).message
    routes.chat.stream(model, ("f",), messages=[_USER, said, _RESULT])
    assert routes.asked(model)[-1].body["messages"][1] == {"role": "assistant", "content": _BLOCKS}
    # A thought of somebody else is left out, with a note, and the order of the rest is kept.
    items: list[Json] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "E",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Say."}]},
        call_item("c", "f", "{}"),
    ]
    foreign = sent("messages", ask_responses(input=[_USER, *items, _OUTPUT], tools=("f",)))
    assert foreign.messages[1] == {"role": "assistant", "content": _BLOCKS[1:]}
    assert foreign.notes == [("reasoning_dropped", "rs_1")]


@theme.row("ord-text-between")
def _() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "One. "},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "text", "text": "Two."},
        {"type": "tool_use", "id": "b", "name": "g", "input": {}},
    ]
    streamed = began() + text_block(0, "One. ") + use(1, "a", "f") + text_block(2, "Two.") + use(3, "b", "g")
    for answered in (
        told("messages", streamed + over("tool_use"), ask_all("f", "g")),
        told_plainly("messages", message(*blocks, reason="tool_use"), ask_all("f", "g")),
    ):
        assert answered.said.text == "One. Two."
        assert answered.calls == [("a", "f", "{}"), ("b", "g", "{}")]
        assert answered.item_types == ["message", "function_call", "message", "function_call"]
        assert answered.block_types == ["text", "tool_use", "text", "tool_use"]
        assert answered.plain["content"] == blocks


test_museum = theme.test()
