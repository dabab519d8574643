"""Parallel calls and `index`: how many calls there are, and which piece belongs to which."""

from tests.museum.cases import Theme
from tests.museum.lines import aggregate, answer, call_events, cc, part, relay
from tests.museum.routes import began, over, told, use
from tests.museum.routes import chunks as stream_of
from tests.support.frames import call, completed, created, stream
from toolwire.core.events import CallArgs, CallEnded, CallStarted, TurnEnded, TurnStarted

theme = Theme("parallel")


@theme.row("par-sameidx-newid")
def _() -> None:
    chunks = (
        cc(part('{"p":"a"}', index=0, id="call_a", name="read")),
        cc(part('{"p":"b"}', index=0, id="call_b", name="read")),
        cc(finish="tool_calls"),
    )
    expected = [("call_a", "read", '{"p":"a"}'), ("call_b", "read", '{"p":"b"}')]
    assert aggregate(*chunks).calls == expected
    assert relay(*chunks).calls == expected


@theme.row("par-counter-reset")
def _() -> None:
    chunks = [cc(part("{}", id=id, name=name)) for id, name in (("a", "f1"), ("b", "f2"), ("c", "f3"))]
    relayed = relay(*chunks)
    assert relayed.calls == [("a", "f1", "{}"), ("b", "f2", "{}"), ("c", "f3", "{}")]
    deltas = [each["choices"][0]["delta"].get("tool_calls", ()) for each in relayed.chunks]
    assert [each["index"] for delta in deltas for each in delta if "id" in each] == [0, 1, 2]


@theme.row("par-interleave")
def _() -> None:
    chunks = (
        cc(part('{"x":', index=0, id="a", name="f")),
        cc(part('{"y":', index=1, id="b", name="g")),
        cc(part("1}", index=0)),
        cc(part("2}", index=1)),
    )
    expected = [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]
    assert aggregate(*chunks).calls == expected
    assert relay(*chunks).calls == expected  # the folding insists on one call after the other


@theme.row("par-anthropic-merge")
def _() -> None:
    chunks = cc(part("{}", index=0, id="a", name="f")), cc(part("{}", index=1, id="b", name="g"))
    assert call_events(*chunks, reason="calls") == [
        TurnStarted(),
        CallStarted("a", "f"),
        CallArgs("a", "{}"),
        CallEnded("a"),
        CallStarted("b", "g"),
        CallArgs("b", "{}"),
        CallEnded("b"),
        TurnEnded("calls"),
    ]
    answered = told("chat", stream_of(*chunks, cc(finish="tool_calls")))
    assert answered.calls == [("a", "f", "{}"), ("b", "g", "{}")]
    assert answered.steps == [(step, block) for block in (0, 1) for step in ("start", "delta", "stop")]
    assert answered.blocks.message["stop_reason"] == "tool_use"
    assert [block["id"] for block in answered.plain["content"]] == ["a", "b"]
    backed = told("messages", began() + use(0, "a", "f", "{}") + use(1, "b", "g", "{}") + over("tool_use"))
    assert (backed.calls, backed.steps) == (answered.calls, answered.steps)


@theme.row("par-multi-json-one-idx")
def _() -> None:
    chunks = (
        cc(part('{"q":"A"}', index=0, id="a", name="search")),
        cc(part('{"q":"B"}', index=0, name="search")),
    )
    for calls in (aggregate(*chunks).calls, relay(*chunks).calls):
        [(first, *one), (second, *other)] = calls
        assert (one, other) == (["search", '{"q":"A"}'], ["search", '{"q":"B"}'])
        assert first == "a"
        assert second not in ("", "a")


@theme.row("idx-missing")
def _() -> None:
    chunks = cc(part("{}", id="a", name="f")), cc(part("{}", id="b", name="g"))
    assert aggregate(*chunks).calls == relay(*chunks).calls == [("a", "f", "{}"), ("b", "g", "{}")]
    in_one_chunk = cc(part('{"a":', name="f"), part('{"b":', name="g")), cc(part("1}"), part("2}"))
    assert aggregate(*in_one_chunk).named == [("f", '{"a":1}'), ("g", '{"b":2}')]


@theme.row("par-dedup-legit")
def _() -> None:
    chunks = cc(part("{}", index=0, id="a", name="roll_die")), cc(part("{}", index=1, id="b", name="roll_die"))
    expected = [("a", "roll_die", "{}"), ("b", "roll_die", "{}")]
    assert aggregate(*chunks).calls == relay(*chunks).calls == expected
    streamed = stream(created(), call("a", "roll_die", "{}"), call("b", "roll_die", "{}", index=1), completed())
    assert answer(streamed).calls == expected


@theme.row("par-ollama-idx0")
def _() -> None:
    chunks = cc(part('{"f":1}', id="a", name="w")), cc(part('{"f":2}', index=1, id="b", name="w"))
    assert aggregate(*chunks).calls == relay(*chunks).calls == [("a", "w", '{"f":1}'), ("b", "w", '{"f":2}')]
    zeros = [cc(part(f'{{"f":{number}}}', index=0, id=f"c{number}", name="w")) for number in range(3)]
    expected = [(f"c{number}", "w", f'{{"f":{number}}}') for number in range(3)]
    assert aggregate(*zeros).calls == relay(*zeros).calls == expected


test_museum = theme.test()
