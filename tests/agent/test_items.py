"""Items of a conversation: every kind is read, keeps the JSON it came as, and goes back to the model as it came."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.stage import (
    Far,
    agent_on,
    assert_whole,
    echo,
    end_of,
    ended,
    item_done,
    only,
    outputs_of,
    play,
    runner_on,
    streams,
    turn,
    types_of,
    worked,
)
from tests.support.frames import call_item, completed, created
from tests.support.scripts import NAMES, Calls, Name, Says, Thinks
from toolwire.agent import Context, Result, Session, ToolCall, tool
from toolwire.agent.events import CallEnded, CallStarted, Noted, ReasoningDelta
from toolwire.agent.history import (
    AnyItem,
    MessageItem,
    OtherItem,
    OutputItem,
    ReasoningItem,
    ToolCallItem,
    output_item,
    read_item,
    user_message,
)
from toolwire.core.request import ImagePart, TextPart
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, LocalShellPayload

Json = dict[str, Any]


def raw(text: str | Json) -> msgspec.Raw:
    return msgspec.Raw((text if isinstance(text, str) else json.dumps(text)).encode())


# Read

SHELL: Json = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "s1",
    "status": "completed",
    "action": {
        "type": "exec",
        "command": ["ls", "-l"],
        "working_directory": "/w",
        "timeout_ms": 500,
        "env": {"A": "b"},
        "with_escalated_permissions": True,
        "justification": "why not",
    },
}
READ: dict[str, tuple[Json, AnyItem]] = {
    "a message of the user": (
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
        MessageItem(raw(""), "user", "a"),
    ),
    "a message as plain text": (
        {"type": "message", "role": "user", "content": "hi"},
        MessageItem(raw(""), "user", "hi"),
    ),
    "a message of the model": (
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": t} for t in "ab"]},
        MessageItem(raw(""), "assistant", "ab"),
    ),
    "reasoning": (
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": None},
        ReasoningItem(raw(""), "rs_1", ("s",)),
    ),
    "signed reasoning": (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA+/="},
        ReasoningItem(raw(""), "rs_1", (), "gAAAA+/="),
    ),
    "a function call": (
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
        ToolCallItem(raw(""), ToolCall("look", "c1", FunctionPayload('{"a": 1}'))),
    ),
    "a function call in a namespace": (
        {"type": "function_call", "call_id": "c1", "name": "look", "namespace": "docs", "arguments": ""},
        ToolCallItem(raw(""), ToolCall("look", "c1", FunctionPayload("")), "docs"),
    ),
    "a function call with arguments that are none": (
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{not json"},
        ToolCallItem(raw(""), ToolCall("look", "c1", FunctionPayload("{not json"))),
    ),
    "a function call with an object for arguments": (
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": {"b": 1, "a": 1.10}},
        ToolCallItem(raw(""), ToolCall("look", "c1", FunctionPayload('{"b": 1, "a": 1.1}'))),
    ),
    "a function call without an id": (
        {"type": "function_call", "name": "look", "arguments": "{}"},
        ToolCallItem(raw(""), ToolCall("look", "", FunctionPayload("{}"))),
    ),
    "a custom tool call": (
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        ToolCallItem(raw(""), ToolCall("apply_patch", "c1", CustomPayload("*** Begin"))),
    ),
    "a local shell call": (
        SHELL,
        ToolCallItem(
            raw(""),
            ToolCall("local_shell", "s1", LocalShellPayload(("ls", "-l"), "/w", 500, {"A": "b"}, True, "why not")),
        ),
    ),
    "a local shell call with the least": (
        {"type": "local_shell_call", "id": "lsh_1", "action": {"type": "exec", "command": ["ls"], "env": None}},
        ToolCallItem(raw(""), ToolCall("local_shell", "lsh_1", LocalShellPayload(("ls",)))),
    ),
    "a local shell call without an action": (
        {"type": "local_shell_call", "id": "lsh_1"},
        OtherItem(raw(""), "local_shell_call"),
    ),
    "a web search": (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        OtherItem(raw(""), "web_search_call"),
    ),
    "the result of a function": (
        {"type": "function_call_output", "call_id": "c1", "output": "saw"},
        OutputItem(raw(""), "c1", "saw"),
    ),
    "the result of a function in parts": (
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}]},
        OutputItem(raw(""), "c1", '[{"type":"input_text","text":"a"}]'),
    ),
    "the result of a custom tool": (
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        OutputItem(raw(""), "c1", "ok"),
    ),
    "the result of a local shell": (
        {"type": "local_shell_call_output", "id": "s1", "output": "ok"},
        OutputItem(raw(""), "s1", "ok"),
    ),
    "a snapshot": (
        {"type": "ghost_snapshot", "ghost_commit": {"id": "abc"}},
        OtherItem(raw(""), "ghost_snapshot"),
    ),
    "a compaction": (
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
        OtherItem(raw(""), "compaction"),
    ),
    "something of a later version": ({"type": "later", "name": 7}, OtherItem(raw(""), "later")),
    "a message that is not as it should be": (
        {"type": "message", "role": 7, "content": {}},
        OtherItem(raw(""), "message"),
    ),
    "an item without a type": ({"role": "user"}, OtherItem(raw(""), "")),
}


@pytest.mark.parametrize(("item", "expected"), READ.values(), ids=READ)
def test_every_kind_of_item_is_read_and_keeps_its_json(item: Json, expected: AnyItem) -> None:
    data = json.dumps(item, indent=1).encode()
    read = read_item(data)
    assert bytes(read.raw) == data
    given = msgspec.structs.replace(expected, raw=read.raw)
    if isinstance(expected, ToolCallItem) and isinstance(item.get("arguments"), dict):
        assert json.loads(expected.call.text) == json.loads(read.call.text)  # type: ignore[union-attr]
        payload = msgspec.structs.replace(expected.call.payload, arguments=read.call.text)  # type: ignore[union-attr]
        given = msgspec.structs.replace(given, call=msgspec.structs.replace(expected.call, payload=payload))
    assert read == given


@pytest.mark.parametrize("data", [b'{"type":7}', b"[]", b"null", b'"x"'], ids=repr)
def test_what_is_no_item_is_kept_as_something_else(data: bytes) -> None:
    read = read_item(data)
    assert isinstance(read, OtherItem)
    assert bytes(read.raw) == data


# Made


def test_what_a_user_says() -> None:
    item = user_message("hi", ("data:image/png;base64,AA==",))
    assert msgspec.json.decode(item.raw) == {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "hi"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        ],
    }
    assert read_item(item.raw) == item


IMAGE = ImagePart("data:image/png;base64,AA==", "high")
MADE: dict[str, tuple[Any, Result, Json]] = {
    "of a function": (
        FunctionPayload("{}"),
        Result((TextPart("a"), TextPart("b"))),
        {"type": "function_call_output", "call_id": "c1", "output": "a\nb"},
    ),
    "with one part": (
        FunctionPayload("{}"),
        Result((TextPart("a"),)),
        {"type": "function_call_output", "call_id": "c1", "output": "a"},
    ),
    "with nothing in it": (
        FunctionPayload("{}"),
        Result(()),
        {"type": "function_call_output", "call_id": "c1", "output": ""},
    ),
    "of a custom tool": (
        CustomPayload("x"),
        Result((TextPart("a"),)),
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a"},
    ),
    "of the local shell": (
        LocalShellPayload(("ls",)),
        Result((TextPart("a"),)),
        {"type": "local_shell_call_output", "id": "c1", "output": "a"},
    ),
    "that failed": (
        FunctionPayload("{}"),
        Result((TextPart("no"),), failed=True),
        {"type": "function_call_output", "call_id": "c1", "output": "no", "status": "incomplete"},
    ),
    "with an image": (
        FunctionPayload("{}"),
        Result((TextPart("see"), IMAGE)),
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": IMAGE.url, "detail": "high"},
            ],
        },
    ),
}


@pytest.mark.parametrize(("payload", "result", "expected"), MADE.values(), ids=MADE)
def test_a_result_in_the_form_of_its_call(payload: Any, result: Result, expected: Json) -> None:
    made = output_item(ToolCall("x", "c1", payload), result)
    assert msgspec.json.decode(made.raw) == expected
    assert made.call_id == "c1"
    assert made.text == result.text


def test_the_call_in_an_item() -> None:
    function = read_item(b'{"type":"function_call","call_id":"c1","name":"look","arguments":"{}"}')
    custom = read_item(b'{"type":"custom_tool_call","call_id":"c2","name":"patch","input":"x"}')
    shell = read_item(json.dumps(SHELL).encode())
    assert isinstance(function, ToolCallItem)
    assert isinstance(custom, ToolCallItem)
    assert isinstance(shell, ToolCallItem)
    assert function.call == ToolCall("look", "c1", FunctionPayload("{}"))
    assert custom.call == ToolCall("patch", "c2", CustomPayload("x"))
    assert (shell.call.name, shell.call.call_id) == ("local_shell", "s1")
    assert isinstance(shell.call.payload, LocalShellPayload)


# Back to the model

LOOK = call_item("c1", "look", "{}", status="completed")


def returned(item: Json, *before: bytes) -> list[Json]:
    """What the second request holds when the first turn has this item and a call."""

    async def main() -> list[Json]:
        reply = streams(created(), *before, item_done(item), item_done(LOOK, 1), completed())
        async with Far(reply, turn(Says("done"))) as far:
            agent = agent_on(far, echo())
            assert ended(await worked(agent)).reason == "done"
            assert_whole(agent.session.history)
            return far.inputs[1]

    return play(main())


SEAL = "gAAAAABo+/" + "x" * 200 + "=="
RETURNED: dict[str, Json] = {
    "signed reasoning": {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "é \u2028 \\"}],
        "encrypted_content": SEAL,
        "status": "completed",
    },
    "signed reasoning without a status": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEAL},
    "a message with what we have no word for": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [
            {
                "type": "output_text",
                "text": "hi",
                "annotations": [{"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}],
                "logprobs": [],
            }
        ],
    },
    "a web search": {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": "u"}]},
    },
    "an image that was made": {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "completed",
        "result": "AAAA",
        "size": None,
    },
    "an item of a later version": {"type": "later", "id": "l_1", "status": "completed", "n": 1.10, "deep": [None]},
    "an item with another status": {"type": "later", "id": "l_1", "status": "searching"},
    "a snapshot": {"type": "ghost_snapshot", "ghost_commit": {"id": "abc", "parent": None}},
    "an item with an id and no status": {"type": "later", "id": "l_1", "x": 1},
    "a compaction": {"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"},
}


@pytest.mark.parametrize("item", RETURNED.values(), ids=RETURNED)
def test_an_item_returns_to_a_responses_server_as_it_came(item: Json) -> None:
    assert returned(item)[1] == item


def test_a_seal_returns_letter_by_letter() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEAL}

    async def main() -> bytes:
        async with Far(streams(created(), item_done(item), item_done(LOOK, 1), completed()), turn(Says("done"))) as far:
            await worked(agent_on(far, echo()))
            return far.posted[1]

    assert f'"{SEAL}"'.encode() in play(main())


def test_items_stay_in_their_order() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "A"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "B"},
        LOOK,
    ]

    async def main() -> list[Json]:
        steps = [item_done(item, index) for index, item in enumerate(items)]
        async with Far(streams(created(), *steps, completed()), turn(Says("done"))) as far:
            await worked(agent_on(far, echo()))
            return far.inputs[1]

    sent = play(main())
    assert types_of(sent) == [
        "message", "reasoning", "web_search_call", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert [item.get("encrypted_content") for item in sent[1:4]] == ["A", None, "B"]


def test_a_web_search_is_no_call_of_ours() -> None:
    async def main() -> None:
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
        async with Far(streams(created(), item_done(search), completed())) as far:
            events = await worked(agent_on(far, echo()))
            assert ended(events).reason == "done"
            assert only(events, CallStarted) == []
            assert len(far.asked) == 1

    play(main())


# Calls of every kind


def shell_said(commands: list[Json], *tools: Any) -> tuple[list[Json], list[Any]]:
    """The second request, and what happened, when the model calls its shell."""

    async def main() -> tuple[list[Json], list[Any]]:
        steps = [item_done(item, index) for index, item in enumerate(commands)]
        async with Far(streams(created(), *steps, completed()), turn(Says("done"))) as far:
            agent = agent_on(far, *tools)
            events = await worked(agent)
            assert_whole(agent.session.history)
            return far.inputs[1], events

    return play(main())


@tool(name="local_shell")
async def shell(
    command: list[str],
    working_directory: str = "",
    timeout_ms: int | None = None,
    env: dict[str, str] | None = None,
    with_escalated_permissions: bool = False,
    justification: str = "",
) -> str:
    """Say what would be run."""
    return f"{' '.join(command)} in {working_directory or '.'} with {env} for {timeout_ms}"


def test_a_local_shell_call_is_run_and_answered_as_such() -> None:
    sent, events = shell_said([SHELL], shell)
    assert sent[1] == SHELL
    assert sent[2] == {"type": "local_shell_call_output", "id": "s1", "output": "ls -l in /w with {'A': 'b'} for 500"}
    assert [event.name for event in only(events, CallEnded)] == ["local_shell"]


def test_a_local_shell_call_that_is_done_twice_is_run_once() -> None:
    sent, events = shell_said([SHELL, SHELL], shell)
    assert [event.call_id for event in only(events, CallEnded)] == ["s1"]
    assert types_of(sent) == ["message", "local_shell_call", "local_shell_call_output"]


def test_a_local_shell_call_goes_by_its_item_where_it_has_no_other_id() -> None:
    item = {name: value for name, value in SHELL.items() if name != "call_id"}
    sent, _ = shell_said([item], shell)
    assert sent[2]["id"] == "lsh_1"


def test_a_local_shell_call_without_such_a_tool_is_answered() -> None:
    sent, events = shell_said([SHELL], echo())
    assert outputs_of(sent) == {"s1": "unsupported call: local_shell"}
    assert only(events, CallEnded)[0].failed


def test_a_local_shell_call_without_any_id_is_answered() -> None:
    item = {name: value for name, value in SHELL.items() if name not in ("call_id", "id")}
    sent, events = shell_said([item], shell)
    assert sent[2]["id"]
    assert [(note.code, note.subject) for note in only(events, Noted)] == [("id_missing", "local_shell_call")]


@pytest.mark.parametrize("missing", [(), ("id",), ("call_id",)])
def test_a_local_shell_call_with_an_id_leaves_no_note(missing: tuple[str, ...]) -> None:
    _, events = shell_said([{name: value for name, value in SHELL.items() if name not in missing}], shell)
    assert only(events, Noted) == []


def test_a_local_shell_call_that_was_cut_is_not_run() -> None:
    ran: list[str] = []

    @tool(name="local_shell")
    async def listening(command: list[str], env: Any = None, working_directory: str = "", timeout_ms: Any = None,
                        with_escalated_permissions: bool = False, justification: str = "") -> None:  # fmt: skip
        ran.append(command[0])

    async def main() -> None:
        cut = {**SHELL, "status": "incomplete"}
        async with Far(streams(created(), item_done(cut), completed(status="incomplete")), turn(Says("done"))) as far:
            await worked(agent_on(far, listening))

    play(main())
    assert ran == []


def test_shells_and_functions_are_answered_in_the_order_of_the_calls() -> None:
    sent, _ = shell_said(
        [SHELL, call_item("c1", "look", "{}"), {**SHELL, "id": "lsh_2", "call_id": "s2"}], shell, echo()
    )
    assert list(outputs_of(sent)) == ["s1", "c1", "s2"]


class Patch:
    """A tool that takes free text."""

    name = "apply_patch"
    description = "Change files."
    kind = "custom"
    parallel = False
    writes = True
    parameters = None
    format = msgspec.Raw(b'{"type":"grammar","syntax":"lark","definition":"start: /.+/"}')

    async def run(self, call: ToolCall, context: Context) -> Result:
        assert isinstance(call.payload, CustomPayload)
        return Result((TextPart(f"patched with {call.payload.input!r}"),))


@pytest.mark.parametrize("kind", NAMES)
def test_a_custom_tool_gets_its_text_from_every_kind_of_backend(kind: Name) -> None:
    text = '*** Begin Patch\n+"é"\n'

    async def main() -> tuple[Far, list[Any]]:
        called = turn(Calls("c1", "apply_patch", text, kind="custom"), kind=kind)
        async with Far(called, turn(Says("done"), kind=kind), kind=kind) as far:
            agent = agent_on(far, Patch())
            events = await worked(agent)
            assert_whole(agent.session.history)
            return far, events

    far, events = play(main())
    assert [event.result for event in only(events, CallEnded)] == [f"patched with {text!r}"]
    assert only(events, CallStarted)[0].arguments == text
    assert "patched with" in far.posted[1].decode()


def test_a_custom_tool_is_declared_and_answered_in_its_own_form() -> None:
    async def main() -> Far:
        async with Far(turn(Calls("c1", "apply_patch", "x", kind="custom")), turn(Says("done"))) as far:
            await worked(agent_on(far, Patch()))
            return far

    far = play(main())
    assert far.asked[0].body["tools"] == [
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Change files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        }
    ]
    assert far.inputs[1][-1] == {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched with 'x'"}


class Remote:
    """A tool of an MCP server."""

    kind = "function"
    description = "Search."
    parallel = True
    writes = False
    parameters = format = None
    server, tool, name = "docs", "search", "docs__search"

    async def run(self, call: ToolCall, context: Context) -> Result:
        assert isinstance(call.payload, FunctionPayload)
        return Result((TextPart(f"{self.server} {self.tool} {call.payload.arguments}"),))


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(call_item("c1", "docs__search", '{"q":1}'), id="flat"),
        pytest.param(call_item("c1", "search", '{"q":1}', namespace="docs"), id="namespace"),
        pytest.param(call_item("c1", "search", '{"q":1}', namespace="mcp__docs"), id="as Codex writes it"),
    ],
)
def test_a_servers_tool_is_found_by_its_names(item: Json) -> None:
    sent, events = shell_said([item], Remote())
    assert outputs_of(sent) == {"c1": 'docs search {"q":1}'}
    assert {key: sent[1][key] for key in item} == item
    assert only(events, CallStarted)[0].name == "docs__search"


@pytest.mark.parametrize("kind", NAMES)
def test_a_servers_tool_is_found_on_every_kind_of_backend(kind: Name) -> None:
    async def main() -> list[Any]:
        called = turn(Calls("c1", "docs__search"), kind=kind)
        async with Far(called, turn(Says("done"), kind=kind), kind=kind) as far:
            return await worked(agent_on(far, Remote()))

    assert [event.result for event in only(play(main()), CallEnded)] == ["docs search {}"]


def test_an_image_in_a_result_goes_to_the_model() -> None:
    @tool
    async def picture() -> Result:
        return Result((TextPart("see"), IMAGE))

    async def main() -> list[Json]:
        async with Far(turn(Calls("c1", "picture")), turn(Says("done"))) as far:
            await worked(agent_on(far, picture))
            return far.inputs[1]

    assert play(main())[-1]["output"][1] == {"type": "input_image", "image_url": IMAGE.url, "detail": "high"}


# The same on every kind of backend


@pytest.mark.parametrize("kind", NAMES)
def test_a_turn_comes_to_the_same_items_whatever_the_backend(kind: Name) -> None:
    async def main() -> tuple[list[AnyItem], list[Any]]:
        first = turn(
            Thinks("hm", "SEAL"), Says("I look."), Calls("c1", "look", '{"path":"a"}'), Calls("c2", "look"), kind=kind
        )
        async with Far(first, turn(Says("Both seen."), kind=kind), kind=kind) as far:
            agent = agent_on(far, echo())
            events = await worked(agent)
            return list(agent.session.history.items), events

    items, events = play(main())
    assert [type(item).__name__ for item in items] == [
        "MessageItem", "ReasoningItem", "MessageItem", "ToolCallItem", "ToolCallItem", "OutputItem", "OutputItem",
        "MessageItem",
    ]  # fmt: skip
    assert [item.text for item in items if isinstance(item, MessageItem)] == ["go", "I look.", "Both seen."]
    assert [item.text for item in items if isinstance(item, OutputItem)] == ["saw a", "saw "]
    assert [item.summary for item in items if isinstance(item, ReasoningItem)] in ([("hm",)], [()])
    assert "".join(event.text for event in only(events, ReasoningDelta)) == "hm"
    assert ended(events).text == "Both seen."


def test_seals_survive_a_round_of_tools_on_a_messages_backend() -> None:
    async def main() -> list[Json]:
        thoughts = (Thinks("hm", "SEAL+/="), Thinks("", "HIDDEN", redacted=True))
        first = turn(*thoughts, Calls("c1", "look"), kind="messages")
        async with Far(first, turn(Says("done"), kind="messages"), kind="messages") as far:
            agent = agent_on(far, echo())
            async with agent:
                await end_of(agent, "one")
                far._replies.append(turn(Says("again"), kind="messages"))
                await end_of(agent, "two")
            return [asked.body for asked in far.asked]

    for body in play(main())[1:]:
        assert body["messages"][1]["content"] == [
            {"type": "thinking", "thinking": "hm", "signature": "SEAL+/="},
            {"type": "redacted_thinking", "data": "HIDDEN"},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
        ]


def test_seals_of_one_backend_do_not_go_to_another(tmp_path: Path) -> None:
    async def main() -> bytes:
        session = Session.begin("up/m", tmp_path, None)
        called = turn(Thinks("hm", "SEAL"), Calls("c1", "look"), kind="messages")
        async with Far(called, turn(Says("seen"), kind="messages"), kind="messages") as far:
            await worked(agent_on(far, echo(), session=session))
        async with Far(turn(Says("again"))) as far:
            await worked(agent_on(far, echo(), session=session))
            return far.posted[0]

    assert b"SEAL" not in play(main())


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_a_history_with_items_of_a_responses_server_goes_to_another_kind(kind: Name, tmp_path: Path) -> None:
    async def main() -> Json:
        session = Session.begin("up/m", tmp_path, None)
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
        snapshot = {"type": "ghost_snapshot", "ghost_commit": {"id": "abc"}}
        items = [RETURNED["signed reasoning"], search, snapshot, SHELL, call_item("c1", "look", "{}")]
        steps = [item_done(item, index) for index, item in enumerate(items)]
        async with Far(streams(created(), *steps, completed()), turn(Says("seen"))) as far:
            await worked(agent_on(far, echo(), shell, session=session), "first")
        async with Far(turn(Says("again"), kind=kind), kind=kind) as far:
            agent = agent_on(far, echo(), shell, session=session)
            assert ended(await worked(agent, "second")).text == "again"
            return far.asked[0].body

    sent = json.dumps(play(main()))
    assert '"c1"' in sent
    assert "saw " in sent
    assert SEAL not in sent


def test_the_demo_model_works_with_the_same_agent() -> None:
    @tool(parallel=True)
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"18 degrees in {city}"

    async def main() -> str:
        async with runner_on("demo", tools=[weather], settings=Far().settings) as agent:
            done = await end_of(agent, "What is the weather in Paris?")
            assert_whole(agent.session.history)
            assert done.reason == "done"
            return done.text

    assert play(main()) == "According to weather: 18 degrees in Paris"


def test_plain_functions_are_tools_too() -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    async def main() -> str:
        async with runner_on("demo", tools=[weather], settings=Far().settings) as agent:
            return (await end_of(agent, "What is the weather in Paris?")).text

    assert "rain in Paris" in play(main())
