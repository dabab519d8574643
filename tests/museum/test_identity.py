"""Call identity: an id and a name are given once, and nothing that says nothing can take them away."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.lines import RULES, Answer, aggregate, answer, ask, cc, part, relay
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from toolwire.assembly import ToolRules

theme = Theme("identity")


@theme.row("id-empty-cont")
def _() -> None:
    chunks = (
        cc(part("{", index=0, id="call_8c", type="function", name="calc")),
        cc(part('"e":1}', index=0, id="", name="")),
    )
    assert aggregate(*chunks).calls == relay(*chunks).calls == [("call_8c", "calc", '{"e":1}')]
    # That our own later pieces hold neither id nor name is checked by every folding.


@theme.row("name-resend-full")
def _() -> None:
    chunks = (
        cc(part("", index=0, id="a", name="read_file")),
        cc(part("{", index=0, id="a", name="read_file")),
        cc(part("}", index=0, id="a", name="read_file")),
    )
    for names in ((), ("read_file",), ("read_file", "read_file_again")):
        assert aggregate(*chunks, names=names).calls == [("a", "read_file", "{}")]
        assert relay(*chunks, names=names).calls == [("a", "read_file", "{}")]


@theme.row("name-fragmented")
def _() -> None:
    chunks = (
        cc(part(index=0, id="a", name="edit_ex")),
        cc(part(index=0, name="isting_file")),
        cc(part("{}", index=0)),
    )
    for names in ((), ("edit_existing_file", "edit")):
        found = aggregate(*chunks, names=names)
        assert found.calls == [("a", "edit_existing_file", "{}")]
        assert relay(*chunks, names=names).calls == found.calls
    repeated = cc(part(index=0, id="a", name="go")), cc(part(index=0, name="go")), cc(part("{}", index=0))
    assert relay(*repeated).calls == [("a", "go", "{}")]  # an equal repeat is no piece


@theme.row("type-concat")
def _() -> None:
    chunks = (
        cc(part("", index=0, id="a", type="function", name="f")),
        cc(part("{", index=0, id="a", type="function")),
        cc(part("}", index=0, id="a", type="function")),
    )
    assert aggregate(*chunks).calls == [("a", "f", "{}")]
    relayed = relay(*chunks)
    assert relayed.message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


@theme.row("chunk-id-varies")
def _() -> None:
    # The folding insists on one id, time and model. The upstream's own ids do not reach the client at all.
    streamed = stream(
        rs("created", response={"id": "r1", "model": "m-1"}),
        text("a"),
        rs("in_progress", response={"id": "r2", "model": "m-2"}),
        text("b"),
        rs("completed", response={"id": "r3", "model": "m-3", "status": "completed", "output": []}),
    )
    answered = answer(streamed)
    assert answered.content == "ab"
    assert {(chunk["id"], chunk["model"]) for chunk in answered.chunks} == {("chatcmpl-1", "m")}
    told = [event["response"] for event in answered.received.events if "response" in event]
    assert {(response["id"], response["model"]) for response in told} == {("resp_1", "m")}


@theme.row("id-null-cont")
def _() -> None:
    chunks = (
        cc(part("", index=0, id="a", type="function", name="f"), role="assistant", content=None),
        cc(part("{", index=0, id=None, type=None, name=None), role=None, content=""),
        cc(part("}", index=0, id=None, type=None, name=None), role=None, content=""),
    )
    assert aggregate(*chunks).calls == [("a", "f", "{}")]
    relayed = relay(*chunks)
    assert relayed.calls == [("a", "f", "{}")]
    for chunk in relayed.chunks:
        for each in chunk["choices"][0]["delta"].get("tool_calls", ()):
            assert None not in each.values()
            assert None not in each["function"].values()


@theme.row("id-never")
def _() -> None:
    chunks = cc(part("{", index=0, name="f")), cc(part("}", index=0))
    found = aggregate(*chunks)
    [(id, name, arguments)] = found.calls
    assert (name, arguments) == ("f", "{}")
    assert id
    assert [delta.id for delta in found.deltas if delta.id] == [id]
    assert relay(*chunks).calls == found.calls  # the same, streamed and plain
    other = aggregate(cc(part("{}", index=0, name="f")), cc(part("{}", index=1, name="f")))
    assert len({each.id for each in other.snapshot}) == 2


@theme.row("id-string-null")
def _() -> None:
    for word in ("null", "None", "undefined"):
        chunks = cc(part("", index=0, id="abc123def", name="f")), cc(part("{}", index=0, id=word, name=""))
        assert aggregate(*chunks).calls == relay(*chunks).calls == [("abc123def", "f", "{}")]
        late = cc(part("", index=0, id=word, name="f")), cc(part("{}", index=0, id="abc123def"))
        assert aggregate(*late).calls == relay(*late).calls == [("abc123def", "f", "{}")]


def _nameless(rules: ToolRules = RULES, **fields: Any) -> Answer:
    done = rs("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"q":1}')
    return answer(stream(created(), done, completed()), ask(**fields), rules)


@theme.row("name-guess")
def _() -> None:
    guessless = _nameless(tools=("deleteNote", "search"))
    assert guessless.calls == []
    assert guessless.finish is None
    assert guessless.error is not None
    assert guessless.error["code"] == "tool_name_missing"
    # No item says that a nameless call was made, let alone which.
    assert (guessless.response["status"], guessless.response["output"]) == ("failed", [])

    only = _nameless(tools=("search",))
    assert only.named == [("search", '{"q":1}')]
    assert only.notes == ("name_inferred",)

    forced = _nameless(tools=("deleteNote", "search"), tool_choice={"type": "function", "function": {"name": "search"}})
    assert forced.named == [("search", '{"q":1}')]
    assert forced.notes == ("name_inferred",)

    # The ruling keeps the guess of seed 000 for those who ask for it.
    guessed = _nameless(ToolRules(name_fallback="position"), tools=("deleteNote", "search"))
    assert guessed.named == [("deleteNote", '{"q":1}')]


@theme.row("tx-harmony-name")
def _() -> None:
    for name in ("search<|channel|>commentary", "functions.search"):
        assert relay(cc(part("{}", index=0, id="a", name=name)), names=("search",)).calls == [("a", "search", "{}")]
        answered = answer(stream(created(), call("a", name, "{}"), completed()), ask(tools=("search",)))
        assert answered.calls == [("a", "search", "{}")]
        assert answered.notes == ("name_cleaned",)
    foreign = "other<|channel|>commentary"
    item = call_item("a", foreign, "{}")
    answered = answer(
        stream(created(), rs("output_item.done", output_index=0, item=item), completed()), ask(tools=("search",))
    )
    assert answered.calls == [("a", foreign, "{}")]
    assert answered.notes == ("name_suspect",)


test_museum = theme.test()
