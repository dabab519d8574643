"""The blocks of a Messages answer: opened, filled and closed one after the other, whatever the server mixed up."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import ask, ask_responses, cc, part
from tests.museum.routes import (
    am,
    ask_all,
    ask_messages,
    began,
    chunks,
    over,
    sent,
    text_block,
    told,
    told_plainly,
    types_of,
    use,
)
from tests.support.frames import call, completed, created, stream, text

theme = Theme("blocks")


def _unclosed(index: int, content: Json, **delta: str) -> bytes:
    """A block that its server forgets to close."""
    start = am("content_block_start", index=index, content_block=content)
    return start + am("content_block_delta", index=index, delta=delta)


_TALKS_AND_CALLS = {
    "chat": chunks(cc(content="Hi"), cc(part("{}", index=0, id="a", name="Bash")), cc(finish="tool_calls")),
    "responses": stream(created(), text("Hi"), call("a", "Bash", "{}", index=1), completed()),
    "messages": stream(
        began(),
        _unclosed(0, {"type": "text", "text": ""}, type="text_delta", text="Hi"),
        use(1, "a", "Bash", "{}"),
        over("tool_use"),
    ),
}


@theme.row("am-overlap")
def _() -> None:
    for kind, data in _TALKS_AND_CALLS.items():
        answered = told(kind, data, ask_all("Bash"))
        assert answered.block_types == ["text", "tool_use"], kind
        assert answered.calls == [("a", "Bash", "{}")]
    thinks = chunks(cc(reasoning_content="Hm."), done=False) + _TALKS_AND_CALLS["chat"]
    assert told("chat", thinks, ask_all("Bash")).block_types == ["thinking", "text", "tool_use"]


@theme.row("am-reasoning-split")
def _() -> None:
    wavering = (cc(reasoning_content="a"), cc(content="x"), cc(reasoning_content="b"), cc(content="y"))
    answered = told("chat", chunks(*wavering, cc(finish="stop")))
    assert (answered.said.text, answered.said.finish) == ("xy", "stop")
    assert answered.said.reasoning == "ab"  # as the server wrote it
    thoughts = [block["thinking"] for block in answered.blocks.message["content"] if block["type"] == "thinking"]
    assert thoughts == ["a", "b"]
    # A thought that comes late stands behind the text, which stays one.
    assert answered.block_types == ["thinking", "text", "thinking"]
    assert answered.item_types == ["reasoning", "message", "reasoning"]
    assert answered.plain["content"][1]["text"] == "xy"


_ZEROS = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
_UNCOUNTED = {
    "chat": chunks(cc(content="Hi"), cc(finish="stop")),
    "chat, null": chunks({**cc(content="Hi", finish="stop"), "usage": None}),
    "responses": stream(created(), text("Hi"), completed()),
    "messages": began() + text_block(0, "Hi") + over(),
    "messages, null": am("message_start", message={"usage": None}) + text_block(0, "Hi") + over(usage=None),
}


def counted(usage: Json) -> Json:
    """The numbers among the fields, of which others are null where nobody knows them."""
    return {name: number for name, number in usage.items() if number is not None}


@theme.row("am-usage-null")
def _() -> None:
    for server, data in _UNCOUNTED.items():
        answered = told(server.partition(",")[0], data)
        assert answered.said.text == "Hi"
        assert [counted(usage) for usage in answered.blocks.usages] == [_ZEROS, _ZEROS], server
        assert counted(answered.plain["usage"]) == _ZEROS


def _calls_after(content: Any) -> list[Json]:
    """A chat history whose assistant calls a tool and says this beside it."""
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": content, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]


def _items_after(words: str) -> list[Json]:
    """The same of a Responses client."""
    return [
        {"role": "user", "content": "Go."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "ok"},
    ]


def _blocks_after(words: str) -> list[Json]:
    """The same of a Messages client."""
    called: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [{"type": "text", "text": words}, called]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
    ]


@theme.row("am-empty-text")
def _() -> None:
    histories = [
        ask(messages=_calls_after(content)) for content in ("", " \n", None, [], [{"type": "text", "text": ""}])
    ]
    histories += [ask_responses(input=_items_after(words)) for words in ("", " \n")]
    histories += [ask_messages(messages=_blocks_after(words)) for words in ("", " \n")]
    for request in histories:
        _, assistant, _ = sent("messages", request).messages
        assert types_of(assistant["content"]) == ["tool_use"]
    for content in ("", None):
        items = sent("responses", ask(messages=_calls_after(content))).body["input"]
        assert types_of(items) == ["message", "function_call", "function_call_output"]
    # Nor is such a block made for a client, who would bring it back.
    opened = (cc(role="assistant", content=""), cc(content=""), cc(part("{}", index=0, id="a", name="f")))
    answered = told("chat", chunks(*opened, cc(content="", finish="tool_calls")), ask_all("f"))
    assert (answered.block_types, answered.item_types) == (["tool_use"], ["function_call"])


_LISTS = '{"command":"ls"}'
_PLAIN: dict[str, Json] = {
    "chat": {
        "choices": [
            {
                "message": {
                    "content": None,
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "Bash", "arguments": _LISTS}}],
                },
                "finish_reason": "tool_calls",
            }
        ]
    },
    "responses": {
        "status": "completed",
        "output": [{"type": "function_call", "id": "fc_1", "call_id": "a", "name": "Bash", "arguments": _LISTS}],
    },
    "messages": {
        "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "ls"}}],
        "stop_reason": "tool_use",
    },
}


@theme.row("am-tool-as-text")
def _() -> None:
    for kind, body in _PLAIN.items():
        answered = told_plainly(kind, body, ask_all("Bash"))
        block = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "ls"}}
        written = block if kind == "messages" else {**block, "caller": {"type": "direct"}}
        assert answered.plain["content"] == [written], kind
        assert (answered.said.text, answered.said.finish) == ("", "tool_calls")


@theme.row("am-block-not-found")
def _() -> None:
    mixed = chunks(
        cc(reasoning_content="r"),
        cc(content="t"),
        cc(part("{", index=0, id="a", name="f"), part("{", index=1, id="b", name="g")),
        cc(part("}", index=1), part("}", index=0)),
        cc(finish="tool_calls"),
    )
    answered = told("chat", mixed, ask_all("f", "g"))
    assert answered.block_types == ["thinking", "text", "tool_use", "tool_use"]
    assert answered.calls == [("a", "f", "{}"), ("b", "g", "{}")]
    assert [index for index, _, _ in answered.blocks.deltas] == [0, 1, 2, 2, 3, 3]


@theme.row("am-first-delta-lost")
def _() -> None:
    data = chunks(
        cc(reasoning_content="think"),
        cc(content="Hi"),
        cc(part('{"x":', index=0, id="a", name="f")),
        cc(part("1}", index=0)),
        cc(finish="tool_calls"),
    )
    answered = told("chat", data, ask_all("f"))
    assert answered.blocks.deltas == [
        (0, "thinking_delta", "think"),
        (1, "text_delta", "Hi"),
        (2, "input_json_delta", '{"x":'),
        (2, "input_json_delta", "1}"),
    ]
    assert (answered.said.reasoning, answered.said.text) == ("think", "Hi")
    assert answered.calls == [("a", "f", '{"x":1}')]


test_museum = theme.test()
