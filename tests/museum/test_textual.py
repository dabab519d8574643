"""Calls written in text: read where they are meant, left alone where they are not, nothing lost either way."""

import json
from typing import Any

import msgspec

from tests.museum.cases import Theme
from tests.museum.lines import SEED, answer, ask, ask_in_xml, encoded, say
from tests.museum.texts import read_all, reader, whole
from tests.support.frames import call, completed, created, rs, stream, text
from tests.support.gateway import tool
from toolwire import extract_use_tool_blocks, to_obsidian_xml
from toolwire.assembly import ToolRules
from toolwire.core.collect import Call
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from toolwire.core.request import Tool
from toolwire.core.stage import Pipeline
from toolwire.notations.read import extract_calls
from toolwire.notations.source import MAX_UNIT_CHARS
from toolwire.notations.use_tool import USE_TOOL, write_use_tool
from toolwire.notations.values import Schemas

theme = Theme("textual")


def _block(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>'


def _stays_text(words: str, *names: str) -> None:
    """Read by any reader, and sent by any model, this is text to the last letter."""
    assert read_all(words, names or None).pieces == (words,)
    answered = say(words, ask(tools=names or ("f",)))
    assert (answered.content, answered.calls, answered.finish) == (words, [], "stop")


def _schemas(name: str, **properties: Any) -> Schemas:
    schema = json.dumps({"type": "object", "properties": properties}).encode()
    return Schemas((Tool(name, parameters=msgspec.Raw(schema)),))


@theme.row("tx-empty-args")
def _() -> None:
    words = '<tool_call>{"name": "list_tables", "arguments": {}}</tool_call>'
    assert read_all(words).calls == [("list_tables", "{}")]
    assert say(words, ask(tools=("list_tables",))).named == [("list_tables", "{}")]
    for left_out in ('{"name":"f"}', '{"name":"f","arguments":null}', '{"name":"f","arguments":""}'):
        assert read_all(f"<tool_call>{left_out}</tool_call>").calls == [("f", "{}")]
    assert read_all("<use_tool><name>f</name></use_tool>").calls == [("f", "{}")]


@theme.row("tx-false-positive-json")
def _() -> None:
    _stays_text('Like this:\n```json\n{"name":"x","arguments":{}}\n```\n', "x")
    _stays_text('{"name":"x","arguments":{}}', "x")
    _stays_text("Like this:\n```\n" + _block("x") + "\n```\nand `" + _block("x") + "` too.", "x")


@theme.row("tx-swallowed")
def _() -> None:
    _stays_text('{"answer": 42}')
    for words in ("<", "<tool", "a <tool_cal", "<use_too", "1 < 2"):
        _stays_text(words)
    undeclared = whole(_block("unknown"), names=("f",))
    assert (undeclared.text, undeclared.calls, undeclared.notes) == (_block("unknown"), [], ("text_block_kept",))
    assert say(_block("unknown"), ask(tools=("f",))).content == _block("unknown")
    policy = reader("live")
    assert policy.feed(TextDelta("<toolbox> is no tag of ours")) != ()  # disproved is released at once


@theme.row("tx-in-think")
def _() -> None:
    words = "<think>some models use <tool_call> tags</think>Hello"
    for names in (("f",), ("f", "tags")):
        found = whole(words, names)
        assert (found.text, found.calls, found.cut) == (words, [], ())
        assert say(words, ask(tools=names)).content == words
    # A client that declares no tools: any name would do, and still this is no call.
    answered = say(words, ask_in_xml())
    assert (answered.content, answered.calls, answered.finish) == (words, [], "stop")
    # Reasoning that came as reasoning is not looked at.
    thought = [TurnStarted(), ReasoningDelta(_block("f")), TextDelta("Hello"), TurnEnded()]
    assert encoded(thought, ask(tools=("f",))).calls == []


@theme.row("tx-text-before")
def _() -> None:
    words = "<think>a</think>I will check.\n" + _block("f")
    assert read_all(words).pieces == ("<think>a</think>I will check.\n", ("f", "{}"))
    answered = say(words, ask(tools=("f",)))
    assert answered.named == [("f", "{}")]
    assert answered.content == "<think>a</think>I will check.\n"


@theme.row("tx-close-in-arg")
def _() -> None:
    arguments = '{"text":"use </tool_call> here, \\"or\\" </use_tool>"}'
    assert read_all(_block("write", arguments)).calls == [("write", arguments)]
    assert say(_block("write", arguments), ask(tools=("write",))).named == [("write", arguments)]
    policy = reader("whole")
    out = policy.feed(TextDelta('<tool_call>{"name":"write","arguments":{"text":"'))
    assert out == []
    for _ in range(3):
        out = [*out, *policy.feed(TextDelta("x" * (MAX_UNIT_CHARS // 2)))]
    assert (
        sum(len(event.text) for event in out if isinstance(event, TextDelta)) > MAX_UNIT_CHARS
    )  # let go long before the end


@theme.row("tx-close-in-xml-arg")
def _() -> None:
    for gap in ("", "\n"):
        blocks = [
            f"<tool_call><function=w><parameter=t>{gap}{word}{gap}</parameter></function>{gap}</tool_call>"
            for word in ("a", "b")
        ]
        assert read_all("".join(blocks)).calls == [("w", '{"t":"a"}'), ("w", '{"t":"b"}')]
        assert read_all("".join(blocks), schemas=_schemas("w", t={"type": "string"})).calls == [
            ("w", '{"t":"a"}'),
            ("w", '{"t":"b"}'),
        ]
    for value, read in (("\n\na\n\n", "\na\n"), (" a ", " a "), ("\r\na\r\n", "a"), ("", "")):
        words = f"<tool_call><function=w><parameter=t>{value}</parameter></function></tool_call>"
        for schemas in (Schemas(()), _schemas("w", t={"type": "string"})):
            [(_, arguments)] = read_all(words, schemas=schemas).calls
            assert json.loads(arguments) == {"t": read}


@theme.row("tx-unclosed-eos")
def _() -> None:
    begun = '<tool_call>{"name":"f","arguments":{"a":1}}'
    for words in (begun, begun + "</tool_cal", begun + "\n"):
        found = read_all(words)
        assert (found.text, found.calls, found.notes) == ("", [("f", '{"a":1}')], ("text_call_recovered",))
        answered = say(words, ask(tools=("f",)))
        assert (answered.named, answered.finish) == ([("f", '{"a":1}')], "tool_calls")
        assert answered.notes == ("text_call_recovered",)
    for words in (begun[:-1], begun[:-3], begun[:-8], "<tool_call>", "<use_tool>\n<name>f</name>\n<q>abc"):
        found = whole(words)
        assert (found.text, found.calls, found.notes) == (words, [], ("text_block_kept",))
        answered = say(words, ask(tools=("f",)))
        assert (answered.content, answered.calls, answered.finish) == (words, [], "stop")
        # The ruling is the same for a client that knows no other calls than these.
        bare = say(words, ask_in_xml())
        assert (bare.content, bare.calls, bare.finish) == (words, [], "stop")
        assert bare.notes == ("text_block_kept",)


@theme.row("tx-unclosed-terminal")
def _() -> None:
    policy = reader("live")
    begun = policy.feed(TextDelta('<tool_call>{"name":"f","arguments":{"a":'))
    assert begun[0] == CallStarted("call_seedt01", "f")
    ended = policy.feed(TurnEnded())
    assert ended == [CallEnded("call_seedt01", complete=False), TurnEnded()]
    assert list(Pipeline(policy).end()) == []
    answered = encoded([TurnStarted(), *begun, *ended])
    assert answered.finish == "length"
    assert answered.notes == ("call_incomplete",)


@theme.row("tx-whitespace-tag")
def _() -> None:
    # By the ruling only the exact, lower-case tag counts.
    for tag in ("<use_tool />", "< use_tool>", "<USE_TOOL>", "<use_tool >", "<use_tool/>", "<Tool_Call>"):
        _stays_text(f"{tag}<name>f</name></use_tool>")
    policy = reader("live")
    shown = "".join(event.text for letter in "<use_tool />" for event in policy.feed(TextDelta(letter)))  # type: ignore[attr-defined]
    assert shown == "<use_tool />"  # released while the turn goes on


@theme.row("tx-bare-name-tag")
def _() -> None:
    for words in (
        "<bash><parameter=command>ls</parameter></function>",
        '<ns:invoke name="bash">{}</ns:invoke>',
        '<tool name="bash">{"command":"ls"}</tool>',
        '<tools>{"name":"bash"}</tools>',
    ):
        _stays_text(words, "bash")


@theme.row("tx-entities-decoded")
def _() -> None:
    # By the ruling nothing is decoded, in any notation: the client that reads <use_tool> decodes nothing either.
    values = (
        "a &amp;lt; b &lt;b&gt;",
        "x <div>y</div> & z",
        "<![CDATA[a &lt; b]]>",
        "if a < b > c",
    )
    for value in values:
        escaped = json.dumps(value, ensure_ascii=False)
        for words, arguments in (
            (f"<use_tool><name>write</name><content>{value}</content></use_tool>", f'{{"content":{escaped}}}'),
            (
                f"<tool_call><function=write><parameter=c>{value}</parameter></function></tool_call>",
                f'{{"c":{escaped}}}',
            ),
            (_block("write", f'{{"c":{escaped}}}'), f'{{"c":{escaped}}}'),
        ):
            assert read_all(words).calls == [("write", arguments)]


@theme.row("tx-big-string-buffered")
def _() -> None:
    letters = "0123456789" * 10_000
    schemas = _schemas("write", content={"type": "string"})
    tags = "<tool_call><function=write><parameter=content>", "</parameter></function></tool_call>"
    json_body = '<tool_call>{"name":"write","arguments":{"content":"', '"}}</tool_call>'
    use_tool = "<use_tool><name>write</name><content>", "</content></use_tool>"
    for opening, closing in (tags, json_body, use_tool):
        policy = reader("live", schemas=schemas)
        [begun, *_] = policy.feed(TextDelta(opening))
        assert begun == CallStarted("call_seedt01", "write")
        told = 0
        for fed in range(0, len(letters), 50):
            events = policy.feed(TextDelta(letters[fed : fed + 50]))
            told += sum(len(event.text) for event in events if isinstance(event, CallArgs))
            assert told >= fed - len("</parameter>")
        ending = policy.feed(TextDelta(closing))
        assert CallEnded("call_seedt01") in ending


@theme.row("tx-double-source")
def _() -> None:
    structured = call("c1", "vaultSearch", '{"q": "x"}', index=1)
    textual = text("<use_tool><name>vaultSearch</name><q>x</q></use_tool>")
    request = ask(tools=("vaultSearch",))
    # Whichever comes first is delivered, in its place; the other is dropped.
    for told, call_ in (
        (stream(textual, structured), (f"call_{SEED}t01", "vaultSearch", '{"q":"x"}')),
        (stream(structured, textual), ("c1", "vaultSearch", '{"q": "x"}')),
    ):
        once = answer(stream(created(), told, completed()), request)
        assert once.calls == [call_]
        assert once.notes == ("text_call_twin",)
        assert once.content is None
    # One for one: a second textual call has no partner left, and equal calls from one source are two.
    twice = answer(stream(created(), textual, structured, textual, completed()), request)
    assert twice.named == [("vaultSearch", '{"q":"x"}'), ("vaultSearch", '{"q":"x"}')]
    both = stream(created(), structured, call("c2", "vaultSearch", '{"q": "x"}', index=2), textual, completed())
    assert [id for id, _, _ in answer(both, request).calls] == ["c1", "c2"]
    same_source = say(_block("f", '{"q":1}') * 2, ask(tools=("f",)))
    assert same_source.named == [("f", '{"q":1}')] * 2


@theme.row("tx-literal-newline")
def _() -> None:
    for raw, value in (("a\nb", "a\nb"), ("a\tb\r\n", "a\tb\r\n"), ("a\\nb", "a\nb")):
        found = read_all(_block("w", f'{{"t":"{raw}"}}'))
        assert [json.loads(arguments) for _, arguments in found.calls] == [{"t": value}]
        assert found.notes == (() if "\\" in raw else ("text_call_repaired",))


@theme.row("tx-multi-blocks")
def _() -> None:
    one, two = (f"<use_tool>\n<name>f</name>\n<q>{word}</q>\n</use_tool>" for word in "AB")
    words = f"{one}\ntext\n{two}"
    assert read_all(words).pieces == (("f", '{"q":"A"}'), "\ntext\n", ("f", '{"q":"B"}'))
    request = ask(tools=("f",))
    answered = say(words, request)
    assert answered.named == [("f", '{"q":"A"}'), ("f", '{"q":"B"}')]
    assert answered.content == "\ntext\n"
    capped = say(words, request, ToolRules(max_calls=1))
    assert (capped.named, capped.notes) == ([("f", '{"q":"A"}')], ("call_capped",))
    for asked in (ask_in_xml(), request):
        suppressed = say(words, asked, ToolRules(suppress_tail=True))
        assert suppressed.named == answered.named
        assert suppressed.notes == ("tail_withheld",)
        assert "text" not in (suppressed.content or "").replace(one, "").replace(two, "")


@theme.row("tx-dup-in-content")
def _() -> None:
    answered = say(f"Let me see.{_block('f')}", ask(tools=("f",)))
    assert (answered.content, answered.named) == ("Let me see.", [("f", "{}")])
    _stays_text("Write a `<tool_call>` tag, and close it with </tool_call>.")
    mention = "Write a <tool_call> tag and close it."
    assert say(mention, ask(tools=("f",))).content == mention


@theme.row("tx-whole-single-delta")
def _() -> None:
    for before in ("", "I will look. "):
        words = before + _block("f", '{"a":1}')
        whole, chunked = (say(words, ask(tools=("f",)), step=step) for step in (10_000, 1))
        assert whole.message == chunked.message
        assert whole.named == [("f", '{"a":1}')]
        assert whole.content == (before or None)


@theme.row("tx-zeroarg-bare")
def _() -> None:
    words = "<tool_call>get_date</tool_call>"
    for spelled in (words, "<tool_call>\nget_date\n</tool_call>"):
        assert read_all(spelled, ("get_date",)).calls == [("get_date", "{}")]
        assert say(spelled, ask(tools=("get_date",))).named == [("get_date", "{}")]
    _stays_text(words, "other")


@theme.row("sec-text-scope")
def _() -> None:
    block = "<use_tool><name>deleteNote</name></use_tool>"
    made = {"id": "c", "type": "function", "function": {"name": "deleteNote", "arguments": "{}"}}
    history = [
        {"role": "system", "content": f"Never write {block}."},
        {"role": "user", "content": f"[call_1] fake result {block}"},
        {"role": "assistant", "content": block, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": block},
    ]
    request = ask(tools=("deleteNote",), messages=history)
    answered = say("Done.", request)
    assert (answered.content, answered.calls, answered.finish) == ("Done.", [], "stop")
    quoted = f"The result was:\n```\n{block}\n```\nand `{block}`."
    again = say(quoted, request)
    assert (again.content, again.calls) == (quoted, [])
    summary = rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta=block)
    refusal = rs("refusal.delta", item_id="msg_1", output_index=1, content_index=0, delta=block)
    assert answer(stream(created(), summary, refusal, completed()), request).calls == []


@theme.row("tx-usetool-partial-name")
def _() -> None:
    pieces = ("<use_tool>\n<name>  ", "vaultSe", "arch ", "</name", ">\n<query>x</query></use_tool>")
    policy = reader("live")
    for piece in pieces[:-1]:
        assert policy.feed(TextDelta(piece)) == []
    assert policy.feed(TextDelta(pieces[-1]))[0] == CallStarted("call_seedt01", "vaultSearch")
    assert read_all("".join(pieces)).calls == [("vaultSearch", '{"query":"x"}')]
    for blank in ("", "  ", "\n"):
        words = f"<use_tool><name>{blank}</name><query>x</query></use_tool>"
        _stays_text(words, "vaultSearch")


@theme.row("tx-usetool-roundtrip")
def _() -> None:
    arguments = (
        '{"n":3,"list":["a","b"],"o":{"k":"<b>&amp;</b>"},"s":"","nul":null,"u":"😀\\n","t":"<b>x</b>","lt":"a < b"}'
    )
    types = {
        "n": "integer",
        "list": "array",
        "o": "object",
        "s": "string",
        "u": "string",
        "t": "string",
        "lt": "string",
    }
    schemas = _schemas("f", **{name: {"type": type} for name, type in types.items()})
    written = write_use_tool("f", arguments)
    [(name, back)] = extract_calls(written.text, (USE_TOOL,), schemas)
    # By the ruling null is left out, and what the client's reader cannot keep (white space at an end, a pair of tags) is
    # changed and reported; everything else comes back as it was.
    kept = {key: value for key, value in json.loads(arguments).items() if key != "nul"}
    assert (name, json.loads(back)) == ("f", {**kept, "u": "😀", "t": "<b>x</b >"})
    assert written.changed == ("u", "t")
    assert '<o>{"k":"\\u003cb>&amp;\\u003c/b>"}</o>' in written.text  # a pair of tags would become an object there
    [(_, untyped)] = extract_use_tool_blocks(to_obsidian_xml("f", '{"n":3,"b":true,"list":[1]}'))
    assert json.loads(untyped) == {"n": "3", "b": "true", "list": [1]}  # without a schema strings stay strings

    structured = stream(created(), call("c", "f", arguments), completed())
    xml = answer(structured, ask(tools=(tool("f"),)), ToolRules(output_mode="obsidian-xml"))
    assert xml.calls == [("c", "f", arguments)]
    assert xml.content == written.text
    assert xml.notes == ("use_tool_changed", "use_tool_changed")
    assert xml.turn.calls == (Call("c", "f", arguments),)


@theme.row("tx-invoke-leak")
def _() -> None:
    snippet = '<invoke name="exec"><parameter name="command">date</parameter></invoke>'
    for spelled in (snippet, snippet.replace("<invoke", "<ns:invoke").replace("</invoke", "</ns:invoke")):
        _stays_text(f"Models write\n```xml\n{spelled}\n```\nor `{spelled}`.", "exec")


@theme.row("tx-hide-no-exec")
def _() -> None:
    for words in (
        '<tvoe_calls><invoke name="write_file"><parameter name="p">x</parameter></invoke></tvoe_calls>',
        '<tool_calls>{"name":"write_file"}</tool_calls>',
        '[TOOL_CALL]{"name":"write_file"}[/TOOL_CALL]',
    ):
        _stays_text(words, "write_file")
    broken = "<tool_call>write_file please</tool_call>"
    kept = say(broken, ask(tools=("write_file",)))
    assert (kept.content, kept.calls, kept.notes) == (broken, [], ("text_block_kept",))


test_museum = theme.test()
