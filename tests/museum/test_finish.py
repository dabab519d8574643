"""How a turn ends: once, and with the truth."""

from typing import Any

import msgspec

from tests.museum.cases import Theme
from tests.museum.clients import Said
from tests.museum.gate import Wire
from tests.museum.lines import aggregate, answer, ask, cc, encoded, part, plain_answer, relay
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from toolwire.core.events import CallArgs, CallEnded, CallStarted, TextDelta, TurnEnded, TurnStarted

theme = Theme("finish")


def _incomplete(reason: str | None, **fields: Any) -> bytes:
    details = None if reason is None else {"reason": reason}
    return rs("incomplete", response={"status": "incomplete", "incomplete_details": details, **fields})


@theme.row("fin-stop")
def _() -> None:
    chunks = cc(part("{}", index=0, id="a", name="f")), cc(finish="stop")
    assert relay(*chunks, reason="stop").finish == "tool_calls"
    streamed = stream(created(), call("a", "f", "{}"), completed())
    assert answer(streamed).finish == "tool_calls"
    # Also for a forced tool: the ruling knows no exception.
    forced = ask(tools=("f",), tool_choice={"type": "function", "function": {"name": "f"}})
    assert answer(streamed, forced).finish == "tool_calls"


@theme.row("fin-mid")
def _() -> None:
    chunks = (
        cc(part("{}", index=0, id="a", name="f"), finish="tool_calls"),
        cc(part("{}", index=1, id="b", name="g"), finish="tool_calls"),
        cc(content="done", finish="stop"),
    )
    assert aggregate(*chunks).calls == [("a", "f", "{}"), ("b", "g", "{}")]
    always = cc(part('{"x":', index=0, id="a", name="f"), finish="stop"), cc(part("1}", index=0), finish="stop")
    assert aggregate(*always).calls == [("a", "f", '{"x":1}')]  # servers that write a finish into every chunk


@theme.row("fin-with-delta")
def _() -> None:
    chunks = cc(part('{"l":[1,2,', index=0, id="a", name="f")), cc(part("3]}", index=0), finish="stop")
    assert aggregate(*chunks).calls == relay(*chunks).calls == [("a", "f", '{"l":[1,2,3]}')]


@theme.row("fin-anthropic-mixed")
def _() -> None:
    answered = answer(stream(created(), text("Let me look."), call("a", "f", "{}", index=1), completed()))
    assert (answered.content, answered.finish) == ("Let me look.", "tool_calls")
    assert answered.turn.reason == "calls"  # what every dialect starts from
    assert answered.response["status"] == "completed"


@theme.row("fin-absent")
def _() -> None:
    # A backend without a word for the end says so by ending; what a Responses client needs is made all the same.
    talked = encoded([TurnStarted(), TextDelta("hi"), TurnEnded()])
    assert talked.received.types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    called = encoded([TurnStarted(), CallStarted("a", "f"), CallArgs("a", "{}"), CallEnded("a"), TurnEnded()])
    assert called.received.types[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert (talked.finish, called.finish) == ("stop", "tool_calls")
    # A Responses server has such a word. Without it [DONE] ends the turn, and what was still open is incomplete.
    cut = answer(stream(created(), text("hi"), b"data: [DONE]\n\n"))
    assert cut.received.types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert [item["status"] for item in cut.response["output"]] == ["incomplete"]
    assert (cut.finish, cut.notes) == ("length", ("end_missing",))
    whole = answer(stream(created(), call("a", "f", "{}"), b"data: [DONE]\n\n"))
    assert (whole.calls, whole.finish, whole.notes) == ([("a", "f", "{}")], "tool_calls", ("end_missing",))
    half = answer(stream(created(), text("hi")))
    assert half.received.types[-3:] == ["output_text.delta", "error", "failed"]
    assert [item["status"] for item in half.response["output"]] == ["incomplete"]


@theme.row("fin-tooluse-noblock")
def _() -> None:
    answered = encoded([TurnStarted(), TextDelta("Hi"), TurnEnded("calls")])
    assert (answered.content, answered.calls, answered.finish) == ("Hi", [], "stop")


@theme.row("fin-length-hidden")
def _() -> None:
    half = '{"t":"abc'
    cut = stream(
        created(),
        rs("output_item.added", output_index=0, item=call_item("a", "w", "")),
        rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=half),
    )
    item = call_item("a", "w", half, status="incomplete")
    endings = (
        _incomplete("max_output_tokens"),
        _incomplete("max_output_tokens", output=[item]),
        stream(rs("output_item.done", output_index=0, item=item), _incomplete("max_output_tokens")),
        completed([item]),  # a server that forgets to say so for the whole response
    )
    for ending in endings:
        answered = answer(cut + ending)
        assert (answered.calls, answered.finish) == ([("a", "w", half)], "length")
        assert answered.notes == ("call_incomplete",)
        assert not answered.turn.calls[0].complete
        [item] = answered.response["output"]
        assert (item["arguments"], item["status"]) == (half, "incomplete")
        assert answered.response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answered.received.types[-1] == "incomplete"
    whole = answer(stream(created(), call("a", "w", "{}"), _incomplete("max_output_tokens")))
    assert (whole.calls, whole.finish) == ([("a", "w", "{}")], "length")
    assert [item["status"] for item in whole.response["output"]] == ["completed"]
    begun = stream(created(), rs("output_item.added", output_index=0, item=call_item("a", "w", "")))
    for reason, finish in (("max_output_tokens", "length"), ("content_filter", "content_filter")):
        nothing_yet = answer(begun + _incomplete(reason))
        assert nothing_yet.calls == [("a", "w", "")]  # cut before its arguments: not repaired to {}
        assert nothing_yet.finish == finish
    relayed = relay(cc(part(half, index=0, id="a", name="w")), reason="length")
    assert (relayed.calls, relayed.finish) == ([("a", "w", half)], "length")
    [left] = aggregate(cc(part(half, index=0, id="a", name="w")), cc(finish="length")).snapshot
    assert not left.complete


_MODELS = ("demo", "demo-parallel", "demo-use-tool", "demo-refusal", "demo-length", "demo-huge")


@theme.row("ns-tool-nonstream")
def _(wire: Wire) -> None:
    for model in _MODELS:
        for mode in ("openai-json", "obsidian-xml"):
            headers, tools = {"x-proxy-output-mode": mode}, ("find", "look")
            said = [
                _without_ids(each)
                for door in wire.doors
                for each in (
                    door.stream(model, tools, headers=headers).said,
                    door.said(door.plain(model, tools, headers=headers)),
                )
            ]
            assert said == [said[0]] * 4, (model, mode)
    # Every case here compares the two; this one has more than one item of the same kind.
    summary = [{"type": "summary_text", "text": "Think."}]
    thoughts = [
        rs("output_item.done", output_index=place, item={"type": "reasoning", "id": f"rs_{place}", "summary": summary})
        for place in range(2)
    ]
    assert answer(stream(created(), *thoughts, completed())).message["reasoning_content"] == "Think.\n\nThink."


def _without_ids(said: Said) -> Said:
    return msgspec.structs.replace(said, calls=tuple(("", *named) for _, *named in said.calls))


@theme.row("fin-unknown-reason")
def _() -> None:
    for reason in ("brand_new_reason", "pause_turn", "max_tokens", None):
        called = answer(stream(created(), call("a", "f", '{"x":1}'), _incomplete(reason)))
        assert called.calls == [("a", "f", '{"x":1}')]
        assert called.error is None
        talked = answer(stream(created(), text("Half an ans"), _incomplete(reason)))
        assert talked.content == "Half an ans"
        # It is not whole, and `stop` would say it is; of the words chat has, `length` is the nearest.
        assert talked.finish == "length", reason


@theme.row("fin-incomplete")
def _() -> None:
    usage = {"input_tokens": 7, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 5}}
    request = ask(stream_options={"include_usage": True})
    for reason, finish in (("max_output_tokens", "length"), ("content_filter", "content_filter")):
        streamed = stream(
            created(),
            rs("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1"}),
            _incomplete(reason, usage=usage, output=[{"type": "reasoning", "id": "rs_1"}]),
        )
        reply = {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": usage, "output": []}
        for answered in (answer(streamed, request), plain_answer(reply, request)):
            assert answered.message["role"] == "assistant"
            assert answered.content in (None, "")
            assert answered.calls == []
            assert answered.finish == finish
            assert answered.usage is not None
            assert (answered.usage["prompt_tokens"], answered.usage["completion_tokens"]) == (7, 5)
            assert answered.usage["completion_tokens_details"] == {"reasoning_tokens": 5}
            told = answered.response
            assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": reason})
            assert told["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}


test_museum = theme.test()
