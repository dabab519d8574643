"""How a turn ends on every route: the words differ, the truth does not."""

import json
from typing import Any

import msgspec

from tests.museum.cases import Theme
from tests.museum.clients import Json, Said
from tests.museum.gate import Routes
from tests.museum.lines import cc, part
from tests.museum.routes import (
    KINDS,
    Kind,
    as_input,
    began,
    chunks,
    completion,
    in_common,
    message,
    over,
    text_block,
    told,
    told_plainly,
    use,
)
from tests.support.frames import call, call_item, completed, created, rs, stream, text

theme = Theme("finish")

_TALKED = ["output_text.done", "content_part.done", "output_item.done", "completed"]
_CALLED = ["function_call_arguments.done", "output_item.done", "completed"]


@theme.row("fin-mid")
def _() -> None:
    answered = told(
        "chat",
        chunks(
            cc(part("{}", index=0, id="a", name="f"), finish="tool_calls"),
            cc(part("{}", index=1, id="b", name="g"), finish="tool_calls"),
            cc(content="done", finish="stop"),
        ),
    )
    assert answered.calls == [("a", "f", "{}"), ("b", "g", "{}")]
    assert (answered.said.text, answered.said.finish) == ("done", "tool_calls")
    assert answered.block_types == ["tool_use", "tool_use", "text"]
    # Servers that write a finish into every chunk; the most telling one of them stands.
    for last, finish in (("stop", "tool_calls"), ("length", "length")):
        always = chunks(
            cc(content="I", finish="stop"),
            cc(part('{"x":', index=0, id="a", name="f"), finish=last),
            cc(part("1}", index=0), finish="stop"),
        )
        each = told("chat", always)
        assert (each.said.text, each.calls, each.said.finish) == ("I", [("a", "f", '{"x":1}')], finish)


@theme.row("fin-absent")
def _() -> None:
    talked = told("chat", chunks(cc(content="hi")))
    assert talked.received.types[-4:] == _TALKED
    called = told("chat", chunks(cc(part("{}", index=0, id="a", name="f"))))
    assert called.received.types[-3:] == _CALLED
    assert (talked.said.finish, called.said.finish) == ("stop", "tool_calls")
    assert talked.notes == called.notes == ("reason_missing",)
    # Where not even [DONE] comes, the stream was cut.
    cut = told("chat", chunks(cc(content="hi"), done=False))
    assert cut.received.types[-3:] == ["output_text.delta", "error", "failed"]
    assert (cut.said.text, cut.said.finish) == ("hi", None)
    # A reason alone is an end too.
    assert told("chat", chunks(cc(content="hi"), cc(finish="stop"), done=False)).said.finish == "stop"
    unsaid = told("messages", began() + text_block(0, "hi") + over("").replace(b'"stop_reason": ""', b'"x": 0'))
    assert (unsaid.said.finish, unsaid.notes) == ("stop", ("reason_missing",))


@theme.row("fin-anthropic-mixed")
def _() -> None:
    called = part("{}", index=0, id="a", name="f")
    whole = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for answered in (
        told("chat", chunks(cc(content="Let me look."), cc(called), cc(finish="tool_calls"))),
        told("chat", chunks(cc(content="Let me look."), cc(called), cc(finish="stop"))),
        told_plainly("chat", completion({"content": "Let me look.", "tool_calls": [whole]}, "tool_calls")),
        told("messages", began() + text_block(0, "Let me look.") + use(1, "a", "f") + over("tool_use")),
        told("messages", began() + text_block(0, "Let me look.") + use(1, "a", "f") + over("end_turn")),
    ):
        assert (answered.said.text, answered.calls) == ("Let me look.", [("a", "f", "{}")])
        assert answered.blocks.message["stop_reason"] == answered.plain["stop_reason"] == "tool_use"
        assert answered.said.finish == "tool_calls"


@theme.row("fin-tooluse-noblock")
def _() -> None:
    for answered in (
        told("messages", began() + text_block(0, "Hi") + over("tool_use")),
        told_plainly("messages", message({"type": "text", "text": "Hi"}, reason="tool_use")),
    ):
        assert (answered.said.text, answered.calls, answered.said.finish) == ("Hi", [], "stop")
        assert answered.blocks.message["stop_reason"] == "end_turn"
        assert answered.notes == ("reason_unfounded",)
    claimed = told("chat", chunks(cc(content="Hi"), cc(finish="tool_calls")))
    assert (claimed.calls, claimed.said.finish, claimed.notes) == ([], "stop", ("reason_unfounded",))


def _same(said: Said) -> Said:
    """Without ids, and with arguments and refusals in one form."""
    calls = tuple(("", name, json.dumps(as_input(arguments))) for _, name, arguments in said.calls)
    return msgspec.structs.replace(in_common(said), calls=calls)


_MODELS = ("demo", "demo-parallel", "demo-use-tool", "demo-refusal", "demo-length", "demo-huge")
_CALLS = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}}]
_USED = {"type": "tool_use", "id": "c", "name": "find", "input": {"x": 1}}
_SPOKEN = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hm."}]}
_TURNS: dict[Kind, tuple[bytes, Json]] = {
    "chat": (
        chunks(cc(content="Hm."), cc(part('{"x": 1}', index=0, id="c", name="find")), cc(finish="tool_calls")),
        completion({"content": "Hm.", "tool_calls": _CALLS}, "tool_calls"),
    ),
    "messages": (
        began() + text_block(0, "Hm.") + use(1, "c", "find", '{"x"', ": 1}") + over("tool_use"),
        message({"type": "text", "text": "Hm."}, _USED, reason="tool_use"),
    ),
    "responses": (
        stream(created(), text("Hm."), call("c", "find", '{"x"', ": 1}", index=1), completed()),
        {"id": "r", "status": "completed", "output": [_SPOKEN, call_item("c", "find", '{"x": 1}')]},
    ),
}


@theme.row("ns-tool-nonstream")
def _(routes: Routes) -> None:
    tools = ("find", "look")
    for model in _MODELS:
        for mode in ("openai-json", "obsidian-xml"):
            headers = {"x-proxy-output-mode": mode}
            said = [
                _same(each)
                for door in routes.doors
                for each in (
                    door.stream(model, tools, headers=headers).said,
                    door.said(door.plain(model, tools, headers=headers)),
                )
            ]
            assert said == [said[0]] * 6, (model, mode)
    for kind in KINDS:
        streamed, plain = _TURNS[kind]
        for answered in (streamed, json.dumps(plain).encode()):  # whatever was asked for
            model = routes.script(kind, answered)
            for door in routes.doors:
                for said in (door.stream(model, tools).said, door.said(door.plain(model, tools))):
                    assert (said.text, said.calls, said.finish) == ("Hm.", (("c", "find", '{"x": 1}'),), "tool_calls")


_ENDINGS: list[tuple[str, str, str, tuple[str, ...]]] = [
    # reason, finish after a call, finish after text, notes
    ("model_context_window_exceeded", "length", "length", ()),
    ("pause_turn", "tool_calls", "stop", ("turn_paused",)),
    ("refusal", "content_filter", "content_filter", ()),
    ("brand_new_reason", "tool_calls", "stop", ("reason_unknown",)),
]


@theme.row("fin-unknown-reason")
def _(routes: Routes) -> None:
    whole = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    for reason, called, talked, notes in _ENDINGS:
        for answered in (
            told("messages", began() + use(0, "a", "f", '{"x": 1}') + over(reason)),
            told_plainly("messages", message(whole, reason=reason)),
        ):
            assert answered.calls == [("a", "f", '{"x": 1}')], reason
            assert (answered.said.finish, answered.notes) == (called, notes)
            assert [item["status"] for item in answered.received.output] == ["completed"]
        spoken = told("messages", began() + text_block(0, "Half an ans") + over(reason))
        assert (spoken.said.text, spoken.said.finish, spoken.notes) == ("Half an ans", talked, notes)
        # A client of the same dialect is told in the server's own word.
        plain = told_plainly("messages", message({"type": "text", "text": "Half an ans"}, reason=reason)).plain
        assert spoken.blocks.message["stop_reason"] == plain["stop_reason"] == reason
    # The others find it in the note.
    model = routes.script("messages", began() + text_block(0, "Hi") + over("brand_new_reason"))
    for door in (routes.chat, routes.responses):
        notes_told = [{"code": "reason_unknown", "subject": "brand_new_reason"}]
        assert door.stream(model).telemetry["notes"] == notes_told
        assert json.loads(door.plain(model).headers["x-toolwire-notes"]) == notes_told
    odd = told("chat", chunks(cc(part("{}", index=0, id="a", name="f")), cc(finish="brand_new_reason")))
    assert (odd.calls, odd.said.finish, odd.notes) == ([("a", "f", "{}")], "tool_calls", ("reason_unknown",))


def _incomplete(reason: str) -> bytes:
    usage = {"input_tokens": 7, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 5}}
    details: Any = {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": usage}
    return stream(
        created(),
        rs("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1"}),
        rs("incomplete", response={**details, "output": [{"type": "reasoning", "id": "rs_1"}]}),
    )


@theme.row("fin-incomplete")
def _() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    for theirs, stop, finish in (
        ("max_output_tokens", "max_tokens", "length"),
        ("content_filter", "refusal", "content_filter"),
    ):
        counted = {"input_tokens": 7, "output_tokens": 5}
        opening = began(counted)
        for answered in (
            told("responses", _incomplete(theirs)),
            told("chat", chunks(cc(role="assistant", content=""), {**cc(finish=finish), "usage": usage})),
            told_plainly("chat", completion({"content": ""}, finish, usage=usage)),
            told("messages", opening + over(stop, usage={"output_tokens": 5})),
            told_plainly("messages", message(reason=stop, counted=counted)),
        ):
            assert (answered.said.text, answered.calls, answered.said.finish) == ("", [], finish)
            assert answered.blocks.message["stop_reason"] == stop
            assert answered.received.types[-1] == "incomplete"
            assert answered.received.response["incomplete_details"] == {"reason": theirs}
            assert answered.usage is not None
            assert (answered.usage["prompt_tokens"], answered.usage["completion_tokens"]) == (7, 5)
            tokens = answered.blocks.message["usage"]
            assert (tokens["input_tokens"], tokens["output_tokens"]) == (7, 5)


test_museum = theme.test()
