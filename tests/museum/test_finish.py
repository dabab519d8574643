"""How a turn ends: once, and with the truth."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import aggregate, answer, ask, cc, encoded, part, plain_answer, relay
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from toolwire.core.events import TextDelta, TurnEnded, TurnStarted

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
    answered = answer(stream(created(), text("Let me look."), call("a", "f", "{}", place=1), completed()))
    assert (answered.content, answered.finish) == ("Let me look.", "tool_calls")
    assert answered.turn.reason == "calls"  # what every dialect starts from


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
    whole = answer(stream(created(), call("a", "w", "{}"), _incomplete("max_output_tokens")))
    assert (whole.calls, whole.finish) == ([("a", "w", "{}")], "length")
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
            headers = {"x-proxy-output-mode": mode}
            streamed = wire.stream(model, ("find", "look"), headers=headers).folded
            [plain] = wire.plain(model, ("find", "look"), headers=headers).json()["choices"]
            assert _without_ids(streamed["message"]) == _without_ids(plain["message"]), (model, mode)
            assert streamed["finish"] == plain["finish_reason"]
    # Every case here compares the two; this one has more than one item of the same kind.
    summary = [{"type": "summary_text", "text": "Think."}]
    thoughts = [
        rs("output_item.done", output_index=place, item={"type": "reasoning", "id": f"rs_{place}", "summary": summary})
        for place in range(2)
    ]
    assert answer(stream(created(), *thoughts, completed())).message["reasoning_content"] == "Think.\n\nThink."


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in message.items() if value}
    said["tool_calls"] = [each["function"] for each in message.get("tool_calls", ())]
    return said


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


test_museum = theme.test()
