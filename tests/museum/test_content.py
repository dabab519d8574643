"""Content, role and order of what a message holds."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import (
    RULES,
    Answer,
    aggregate,
    answer,
    ask,
    ask_responses,
    cc,
    part,
    sent_for,
    sent_upstream,
)
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.upstream import Pause, Reply
from toolwire.assembly import ToolRules, apply_rules
from toolwire.core.collect import Call, Reasoning, Text
from toolwire.core.events import MessageEnded

theme = Theme("content")

_MADE = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_ABSENT: Any = object()


def _input(content: Any, calls: Any = (_MADE,)) -> list[dict[str, Any]]:
    """What a Responses server gets of an assistant message with this content."""
    message: dict[str, Any] = {"role": "assistant"}
    if content is not _ABSENT:
        message["content"] = content
    if calls:
        message["tool_calls"] = list(calls)
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in calls]
    return sent_upstream(messages=[{"role": "user", "content": "Go."}, message, *results])["input"]


def _types(answered: Answer) -> list[str]:
    """The items a Responses client has, in order."""
    return [item["type"] for item in answered.response["output"]]


@theme.row("role-first-missing")
def _() -> None:
    answered = answer(stream(created(), call("t", "f", "{}"), completed()))
    first, second, *_ = (chunk["choices"][0]["delta"] for chunk in answered.chunks)
    assert first == {"role": "assistant", "content": None}
    assert second["tool_calls"][0]["index"] == 0
    assert answered.received.types[:3] == ["created", "in_progress", "output_item.added"]
    early = answer(stream(call("t", "f", "{}"), completed()))  # nobody said that the turn began
    assert early.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert early.calls == [("t", "f", "{}")]


@theme.row("tc-null")
def _() -> None:
    for nothing in (None, []):
        chunk = cc(content="I", tool_calls=nothing)
        assert aggregate(chunk).calls == []
        assert aggregate(cc(part("{", index=0, id="a", name="f")), chunk, cc(part("}", index=0))).calls == [
            ("a", "f", "{}")
        ]
    spoken = answer(stream(created(), text("I"), text(" am"), completed()))
    assert all("tool_calls" not in chunk["choices"][0]["delta"] for chunk in spoken.chunks)
    assert "tool_calls" not in spoken.message


@theme.row("choices-absent")
def _() -> None:
    begun = cc(part("{}", index=0, id="a", name="f"))
    assert aggregate(begun, {"id": "x", "usage": {"total_tokens": 3}}).calls == [("a", "f", "{}")]
    usage = {"input_tokens": 1, "output_tokens": 2}
    answered = answer(stream(created(), text("I"), completed(usage=usage)), ask(stream_options={"include_usage": True}))
    assert all("choices" in chunk for chunk in answered.chunks)
    assert answered.chunks[-1]["choices"] == []
    assert answered.chunks[-1]["usage"]["total_tokens"] == 3


@theme.row("content-null-vs-empty")
def _() -> None:
    null, empty, absent = _input(None), _input(""), _input(_ABSENT)
    assert null == empty == absent
    assert [item["type"] for item in null] == ["message", "function_call", "function_call_output"]


@theme.row("content-empty-assistant")
def _() -> None:
    assert [item["role"] for item in _input("", calls=())] == ["user"]
    assert [item["role"] for item in _input("Hm.", calls=())] == ["user", "assistant"]


@theme.row("ord-text-after-tool")
def _() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Think."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Say."}]},
        call_item("c", "f", "{}"),
    ]
    done = [rs("output_item.done", output_index=place, item=item) for place, item in enumerate(items)]
    for streamed in (stream(created(), *done, completed()), stream(created(), completed(items))):
        assert answer(streamed).turn.items == (
            Reasoning(("Think.",), id="rs_1"),
            Text("Say."),
            Call("c", "f", "{}"),
        )
        assert _types(answer(streamed)) == ["reasoning", "message", "function_call"]
    _, said, called, _ = _input("Say.")
    assert (said["type"], called["type"]) == ("message", "function_call")
    # And back in a history of its own dialect.
    signed = {**items[0], "encrypted_content": "E"}
    history = [signed, *items[1:], {"type": "function_call_output", "call_id": "c", "output": "ok"}]
    assert sent_for(apply_rules(ask_responses(input=history), RULES))["input"] == history


@theme.row("ord-text-between")
def _() -> None:
    streamed = stream(
        created(),
        text("One. ", "msg_1", 0),
        call("a", "f", "{}", index=1),
        text("Two.", "msg_2", 2),
        call("b", "g", "{}", index=3),
        completed(),
    )
    answered = answer(streamed)
    assert answered.content == "One. \n\nTwo."
    assert answered.calls == [("a", "f", "{}"), ("b", "g", "{}")]
    two = (Text("Two."), Call("b", "g", "{}"))
    assert answered.turn.items == (Text("One. "), Call("a", "f", "{}"), MessageEnded(""), *two)
    assert _types(answered) == ["message", "function_call", "message", "function_call"]
    assert [item["id"] for item in answered.response["output"]] == ["msg_1", "fc_a", "msg_2", "fc_b"]


@theme.row("cursor-empty-array")
def _() -> None:
    assert _input([]) == _input(None)
    assert [item["type"] for item in _input([])] == ["message", "function_call", "function_call_output"]


@theme.row("stop-after-first")
def _(retrying: Wire) -> None:
    two = stream(
        created(), call("a", "f", "{}"), call("b", "g", "{}", index=1), text("Guessing.", "msg_9", 2), completed()
    )
    assert answer(two).calls == [("a", "f", "{}"), ("b", "g", "{}")]
    assert answer(two).content == "Guessing."

    first = answer(two, rules=ToolRules(stop_after=True, stop_after_mode="first"))
    assert (first.calls, first.content, first.finish) == ([("a", "f", "{}")], None, "tool_calls")
    assert first.notes == ("call_cut",)
    capped = answer(two, rules=ToolRules(max_calls=1))
    assert (capped.calls, capped.content, capped.notes) == ([("a", "f", "{}")], "Guessing.", ("call_capped",))

    # A burst: the second call comes 80 ms after the first, well within the grace period.
    model = retrying.script(
        Reply(
            [
                created(),
                call("a", "f", "{}"),
                Pause(0.08),
                call("b", "g", "{}", index=1),
                text("Guessing."),
                completed(),
            ]
        )
    )
    for door in retrying.doors:
        burst = door.stream(model)
        assert [id for id, _, _ in burst.said.calls] == ["a", "b"]
        assert burst.said.text == ""
        assert burst.telemetry["tool_call_count"] == 2
        assert burst.telemetry["tool_call_truncated"] is False
        assert burst.notes == ["tail_withheld"]


test_museum = theme.test()
