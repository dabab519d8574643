"""A request for a server that knows less, and the way back: names, ids, namespaces, custom tools, signatures."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.adapt.lowering import Restore, lower_request
from toolwire.adapt.names import Limits
from toolwire.adapt.unwrap import Unwrap, wrap
from toolwire.backends import messages, responses
from toolwire.core.backend import Post
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note, TurnEnded
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool, ToolChoice
from toolwire.core.signatures import PREFIX, PackedSignature, pack, unpack
from toolwire.core.stage import Pipeline
from toolwire.dialects import messages as messages_dialect
from toolwire.dialects import responses as dialect

NARROW = Limits(name_length=64, id_chars="A-Za-z0-9_-")
USER = Message("user", (TextPart("Go."),))


def test_a_request_that_fits_is_left_alone():
    request = Request("m", (USER, CallEntry("c1", "f", "{}"), ResultEntry("c1", ())), tools=(Tool("f"),))
    lower, restore = lower_request(request, NARROW)
    assert lower is request
    assert restore.table == {}


@given(st.lists(st.text(max_size=90), min_size=1, max_size=8, unique=True))
def test_names_and_ids_fit_and_stay_apart(texts: list[str]):
    for fit in (NARROW.fit_name, NARROW.fit_id, Limits(id_exact=9).fit_id):
        made = [fit(text) for text in texts]
        assert len(set(made)) == len(texts)
        assert made == [fit(text) for text in texts], "the same in every turn"
    assert all(len(NARROW.fit_name(text)) <= 64 for text in texts)
    assert all(len(Limits(id_exact=9).fit_id(text)) == 9 for text in texts)


@pytest.mark.parametrize("name", ["f", "mcp__docs__search", "A-b_9" * 12])
def test_a_name_that_fits_stays(name: str):
    assert NARROW.fit_name(name) == name


def test_namespaces_and_strange_names_come_back():
    tools = (Tool("search", namespace="docs"), Tool("search", namespace="code"), Tool("a.b"), Tool("a_b"))
    lower, restore = lower_request(Request("m", (USER,), tools=tools), NARROW)
    names = [tool.name for tool in lower.tools]
    assert len(set(names)) == 4
    assert names[:2] == ["docs__search", "code__search"]
    back = [restore.feed(CallStarted("c", name))[0] for name in names]
    assert [(event.namespace, event.name) for event in back if isinstance(event, CallStarted)] == [
        ("docs", "search"),
        ("code", "search"),
        ("", "a.b"),
        ("", "a_b"),
    ]


def test_history_and_choice_go_by_the_same_names():
    entries = (USER, CallEntry("x:1", "search", "{}", namespace="docs"), ResultEntry("x:1", (TextPart("ok"),)))
    choice = ToolChoice("required", "search")
    lower, _ = lower_request(
        Request("m", entries, tools=(Tool("search", namespace="docs"),), tool_choice=choice), NARROW
    )
    _, call, result = lower.entries
    assert isinstance(call, CallEntry)
    assert isinstance(result, ResultEntry)
    assert (call.name, call.namespace) == ("docs__search", "")
    assert call.id == result.call_id != "x:1"
    assert lower.tool_choice is not None
    assert lower.tool_choice.name == "docs__search"


def _restored(tool: Tool, *pieces: str) -> list[Event]:
    _, restore = lower_request(Request("m", (USER,), tools=(tool,)), NARROW)
    events = [CallStarted("c", tool.name), *(CallArgs("c", piece) for piece in pieces), CallEnded("c")]
    return [out for event in events for out in restore.feed(event)]


def test_a_custom_tool_is_a_function_on_the_way_and_itself_again_after_it():
    tool = Tool("patch", "Applies.", kind="custom")
    lower, _ = lower_request(Request("m", (CallEntry("c", "patch", "a\nb", "custom"),), tools=(tool,)), NARROW)
    assert lower.tools[0].kind == "function"
    [call] = lower.entries
    assert isinstance(call, CallEntry)
    assert (call.kind, json.loads(call.arguments)) == ("function", {"input": "a\nb"})
    start, *pieces, end = _restored(tool, '{"inp', 'ut": "a\\', 'n\\u00e9"}')
    assert (start.kind, end) == ("custom", CallEnded("c"))
    assert "".join(piece.text for piece in pieces if isinstance(piece, CallArgs)) == "a\né"


@given(st.text(st.characters(exclude_categories=("Cs",))), st.randoms(use_true_random=False), st.booleans())
def test_an_input_is_unwrapped_however_its_json_is_cut(text: str, random, ascii_only: bool):
    wrapped = json.dumps({"input": text}, ensure_ascii=ascii_only)
    cuts = sorted(random.randrange(len(wrapped) + 1) for _ in range(4))
    pieces = [wrapped[start:end] for start, end in zip([0, *cuts], [*cuts, len(wrapped)], strict=True)]
    for told in (pieces, list(wrapped), [wrapped]):
        unwrap = Unwrap()
        assert "".join([*map(unwrap.feed, told), unwrap.end()]) == text
    assert json.loads(wrap(text)) == {"input": text}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch": "x"}', "x"),
        ('{ "content" : "x" }', "x"),
        ('{"other": "x"}', "x"),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
        ('"x"', '"x"'),
        pytest.param('{"x":' + "[" * 5000, '{"x":' + "[" * 5000, id="deep"),
        ("", ""),
        ('{"input": "cut', "cut"),
        ('{"input": "a\\ud83d b"}', "a\ufffd b"),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"patch": "a\\ud83d\\ude00\\ude00"}', "a😀\ufffd"),
    ],
)
def test_what_is_no_wrapper_is_the_input_itself(given: str, text: str):
    for told in ([given], list(given)):
        unwrap = Unwrap()
        assert "".join([*map(unwrap.feed, told), unwrap.end()]) == text


def test_a_backslash_before_the_letters_of_half_a_character_stays_one():
    given = '{"input": "C:\\\\ud83d.txt"}'
    for cut in range(len(given)):
        unwrap = Unwrap()
        assert unwrap.feed(given[:cut]) + unwrap.feed(given[cut:]) + unwrap.end() == "C:\\ud83d.txt"


def test_a_seal_is_carried_whole_and_only_ours_is_opened():
    signature = PackedSignature("messages", "", ("Hm.",), "SEAL", redacted=False)
    assert unpack(pack(signature)) == signature
    assert unpack("SEAL") is None
    assert unpack(pack(signature)[:-3] + "!!!") is None
    assert unpack(pack(signature)[:-3] + "éé") is None
    assert unpack(PREFIX + urlsafe_b64encode(b'["m","i",[],"s",false,' + b"[" * 100_000).decode()) is None
    assert unpack(PREFIX + urlsafe_b64encode(b'["m","i",[],"\xff"]').decode()) is None


def test_the_name_of_one_tool_is_never_given_to_another():
    taken = NARROW.fit_name("a.b")
    tools = (Tool("a.b"), Tool(taken), Tool("search", namespace="docs"), Tool("docs__search"))
    lower, restore = lower_request(Request("m", (USER,), tools=tools), NARROW)
    names = [tool.name for tool in lower.tools]
    assert len({*names}) == 4
    assert names[1::2] == [taken, "docs__search"], "what fits goes as it is"
    back = [restore.feed(CallStarted("c", name))[0] for name in names]
    assert [event.name for event in back if isinstance(event, CallStarted)] == [tool.name for tool in tools]


def test_history_and_choice_follow_a_tool_that_had_to_give_way():
    tools = (Tool("search", namespace="docs"), Tool("docs__search"))
    entries = (CallEntry("c", "search", "{}", namespace="docs"), CallEntry("d", "docs__search", "{}"))
    choice = ToolChoice(allowed=("search",), limited=True)
    lower, _ = lower_request(Request("m", entries, tools=tools, tool_choice=choice), NARROW)
    assert [entry.name for entry in lower.entries if isinstance(entry, CallEntry)] == [
        tool.name for tool in lower.tools
    ]
    assert lower.tool_choice is not None
    assert lower.tool_choice.allowed == (lower.tools[0].name,)


def test_a_reserved_name_is_replaced_and_comes_back():
    limits = Limits(reserved=("python",))
    lower, restore = lower_request(Request("m", (USER,), tools=(Tool("python"), Tool("f"))), limits)
    name = lower.tools[0].name
    assert name.startswith("python_")
    assert restore.feed(CallStarted("c", name)) == (CallStarted("c", "python"),)


def test_a_bare_name_finds_its_namespace_if_there_is_only_one():
    tools = (Tool("search", namespace="docs"), Tool("read", namespace="docs"), Tool("read", namespace="code"))
    _, restore = lower_request(Request("m", (USER,), tools=tools), NARROW)
    assert restore.feed(CallStarted("c", "search")) == (CallStarted("c", "search", namespace="docs"),)
    assert restore.feed(CallStarted("c", "read")) == (CallStarted("c", "read"),)


def test_a_server_that_knows_namespaces_and_custom_tools_keeps_them():
    limits = Limits(custom=True, namespaces=True)
    tools = (Tool("a.b", namespace="docs"), Tool("a.b", namespace="code"), Tool("p.q", kind="custom"))
    entries = (CallEntry("c", "p.q", "x", "custom"), ResultEntry("c", (), "custom"))
    lower, restore = lower_request(Request("m", entries, tools=tools), limits)
    assert [(tool.namespace, tool.kind) for tool in lower.tools] == [
        ("docs", "function"),
        ("code", "function"),
        ("", "custom"),
    ]
    call, result = lower.entries
    assert isinstance(call, CallEntry)
    assert (call.kind, call.arguments, call.name) == ("custom", "x", lower.tools[2].name)
    assert result is entries[1]
    shown = lower.tools[1].name
    assert restore.feed(CallStarted("c", shown, namespace="code")) == (CallStarted("c", "a.b", namespace="code"),)
    assert restore.feed(CallStarted("c", shown, "custom")) == (CallStarted("c", shown, "custom"),)


# A Responses server

FUNCTION = {"type": "function", "name": "a.b", "parameters": {"type": "object", "properties": {}}, "x": 1}
LONG = "call_" + "x" * 90


def _body(request: Request) -> dict[str, Any]:
    post = responses.Conversation(request, "S").start()
    assert isinstance(post, Post)
    return json.loads(post.body)


def _asked(**fields: Any) -> Request:
    return dialect.decode_request(json.dumps({"model": "m", "input": "Go.", **fields}).encode())


def test_a_responses_request_that_fits_is_sent_as_it_was_written():
    tools = '[ {"type":"function", "name":"f", "parameters":{ "type":"object","properties":{} }} ]'
    request = dialect.decode_request(b'{"model":"m","input":"Go.","tools":%b}' % tools.encode())
    post = responses.Conversation(request, "S").start()
    assert isinstance(post, Post)
    assert tools.encode() in post.body


def test_names_that_do_not_fit_are_changed_in_what_a_responses_client_wrote():
    space = {"type": "namespace", "name": "docs", "description": "d", "tools": [FUNCTION, {**FUNCTION, "name": "ok"}]}
    hosted = {"type": "web_search", "name": "a.b"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a.b"}]}
    body = _body(_asked(tools=[FUNCTION, space, hosted], tool_choice=choice, unknown=[1]))
    name = Limits().fit_name("a.b")
    inside = [{**FUNCTION, "name": name}, {**FUNCTION, "name": "ok"}]
    assert body["tools"] == [{**FUNCTION, "name": name}, {**space, "tools": inside}, hosted]
    assert body["tool_choice"]["tools"] == [{"type": "function", "name": name}]
    assert body["unknown"] == [1]


def test_a_choice_without_names_is_left_alone():
    assert _body(_asked(tools=[FUNCTION], tool_choice={"type": "web_search"}))["tool_choice"] == {"type": "web_search"}
    assert _body(_asked(tools=[FUNCTION], tool_choice="auto"))["tool_choice"] == "auto"


def test_ids_and_names_in_the_history_of_a_responses_client_fit():
    called = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": LONG,
        "name": "a.b",
        "arguments": "{}",
        "status": "completed",
        "x": 1,
    }
    output = {"type": "function_call_output", "call_id": LONG, "output": "ok", "y": 2}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "i"}
    answer = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    tools = [{**FUNCTION, "name": "ok"}]
    body = _body(_asked(input=[{"role": "user", "content": "Go."}, called, output, custom, answer], tools=tools))
    assert body["tools"] == tools
    id = responses.OPENAI.limits.fit_id(LONG)
    assert len(id) == 64
    assert body["input"][1:] == [
        {**called, "call_id": id, "name": Limits().fit_name("a.b")},
        {**output, "call_id": id},
        custom,
        answer,
    ]


def test_a_schema_that_a_server_refuses_is_changed_in_what_its_client_wrote():
    either = {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}
    tool = {"type": "function", "name": "f", "parameters": either, "strict": True, "x": 1}
    [sent] = _body(_asked(tools=[tool]))["tools"]
    assert sent["parameters"] == {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert (sent["x"], sent["strict"]) == (1, True)
    assert "anyOf" in sent["description"]


def test_the_calls_of_a_responses_server_come_back_by_their_own_names():
    request = _asked(tools=[FUNCTION, {"type": "custom", "name": "p.q"}], stream=True)
    conversation = responses.Conversation(request, "S")
    conversation.start()
    names = [Limits().fit_name(name) for name in ("a.b", "p.q")]
    function = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": names[0], "arguments": "{}"}
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": names[1], "input": "raw"}
    plain = {"id": "r", "status": "completed", "output": [function, custom]}
    events = conversation.feed_plain(json.dumps(plain).encode())
    started = [(event.name, event.kind) for event in events if isinstance(event, CallStarted)]
    assert started == [("a.b", "function"), ("p.q", "custom")]


def test_tokens_are_counted_of_what_would_be_sent():
    post = responses.count_tokens(_asked(tools=[FUNCTION]), responses.OPENAI)
    assert json.loads(post.body)["tools"] == [{**FUNCTION, "name": Limits().fit_name("a.b")}]


@pytest.mark.parametrize("strict", [True, False])
def test_strict_is_taken_from_a_messages_client_where_the_server_does_not_know_it(strict: bool):
    tool = {"name": "f", "input_schema": {"type": "object"}, "strict": strict, "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Go."}], "tools": [tool]}
    conversation = messages.Conversation(
        messages_dialect.decode_request(json.dumps(body).encode()), "S", messages.Profile(strict=False)
    )
    [sent] = json.loads(conversation.start().body)["tools"]
    assert sent.get("cache_control") == tool["cache_control"]
    assert "strict" not in sent
    plain = json.dumps({"content": [], "stop_reason": "end_turn"}).encode()
    notes = [event for event in conversation.feed_plain(plain) if isinstance(event, Note)]
    assert notes == ([Note("field_dropped", "f.strict")] if strict else [])


def test_strict_is_taken_from_a_custom_tool_too():
    tool = Tool("patch", kind="custom", strict=True)
    lower, restore = lower_request(Request("m", (), tools=(tool,)), Limits(strict=False))
    assert (lower.tools[0].strict, restore.notes) == (None, [Note("field_dropped", "patch.strict")])


def test_calls_of_a_server_that_counts_anew_in_each_turn_get_ids_of_their_own():
    history = tuple(
        entry
        for words in ("one", "two")
        for entry in (
            Message("user", (TextPart("Go."),)),
            CallEntry("call_0", "f", "{}"),
            ResultEntry("call_0", (TextPart(words),)),
        )
    )
    lower, _ = lower_request(Request("m", history, tools=(Tool("f"),)), Limits(unique_ids=True))
    pairs = [
        entry.id if isinstance(entry, CallEntry) else entry.call_id
        for entry in lower.entries
        if not isinstance(entry, Message)
    ]
    assert pairs[0] == pairs[1] == "call_0"
    assert pairs[2] == pairs[3] != "call_0"


def test_a_tool_is_called_by_the_clients_name_again():
    _, restore = lower_request(Request("m", (), tools=(Tool("my tool"),)), Limits())
    [shown] = restore.table
    assert (restore.restore_name(*shown), restore.restore_name("", "other")) == ("my tool", "other")
    assert list(restore.feed(TurnEnded("stop"))) == [TurnEnded("stop")]
    assert list(Pipeline(restore).end()) == []


# Names as models write them


NODE = Tool("js", namespace="mcp__node_repl")


def restored(name: str, *tools: Tool, namespace: str = "") -> tuple[str, str]:
    _, restore = lower_request(Request("m", (USER,), tools=tools), NARROW)
    [call] = restore.feed(CallStarted("c", name, namespace=namespace))
    assert isinstance(call, CallStarted)
    return call.namespace, call.name


def test_a_dot_between_namespace_and_name_is_understood():
    for name in ("mcp__node_repl.js", "mcp__node_repl__js", "js"):
        assert restored(name, NODE, Tool("find")) == ("mcp__node_repl", "js")
    assert restored("mcp__node_repl.ts", NODE) == ("", "mcp__node_repl.ts")


def test_a_dotted_name_of_another_tool_is_that_tool():
    assert restored("mcp__node_repl.js", NODE, Tool("mcp__node_repl.js")) == ("", "mcp__node_repl.js")


def test_two_tools_of_one_dotted_name_are_never_guessed():
    tools = (Tool("b.c", namespace="a"), Tool("c", namespace="a.b"))
    assert restored("a.b.c", *tools) == ("", "a.b.c")


# The parameter that carries the input of a custom tool


def test_the_input_of_a_custom_tool_keeps_clear_of_the_tools_own_parameters():
    tool = Tool("run", 'Takes JSON: {"input": "text", "mode": "fast"}.', kind="custom")
    again = Tool("again", "Takes `input`, `tool_input`, or 'tool_input_2'.", kind="custom")
    usual = Tool("patch", "The input is a patch.", kind="custom")
    call = CallEntry("c", "run", '{"input": "a"}', "custom")
    request = Request("m", (USER, call, ResultEntry("c", (), "custom")), tools=(tool, again, usual))
    lower, restore = lower_request(request, NARROW)
    keys = [[*json.loads(bytes(each.parameters or b"{}"))["properties"]] for each in lower.tools]
    assert keys == [["tool_input"], ["tool_input_3"], ["input"]]
    written = lower.entries[1]
    assert isinstance(written, CallEntry)
    assert json.loads(written.arguments) == {"tool_input": '{"input": "a"}'}
    for arguments, input in (
        (written.arguments, '{"input": "a"}'),
        ('{"input": "a"}', '{"input": "a"}'),
        ('{"input": "a", "mode": "fast"}', '{"input": "a", "mode": "fast"}'),
    ):
        assert unwrapped_call(restore, "run", arguments) == input


def unwrapped_call(restore: Restore, name: str, arguments: str) -> str:
    """The input of a call that comes letter by letter."""
    sent = (CallStarted("c", name), *(CallArgs("c", letter) for letter in arguments), CallEnded("c"))
    events = [event for each in sent for event in restore.feed(each)]
    return "".join(event.text for event in events if isinstance(event, CallArgs))


@pytest.mark.parametrize("arguments", ['{"code": "a", "timeout": 5}', '{"text": "a", "lang": "en"}', '{"patch": 1, "b": 2}'])  # fmt: skip
def test_an_object_with_several_keys_is_the_input_itself(arguments: str):
    for told in ([arguments], list(arguments)):
        unwrap = Unwrap()
        assert "".join([*map(unwrap.feed, told), unwrap.end()]) == arguments
