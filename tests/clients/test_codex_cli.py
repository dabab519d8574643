"""The real Codex CLI: it asks over SSE and over a WebSocket, runs commands, patches files and compacts."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.codex import Codex, Said, needs_codex
from tests.clients.loops import SEAL, item, loop, signed, types
from tests.sdk.turns import USAGE, broken, custom_call, refused, turn
from tests.support.backend_writers import reply
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import Gateway, backend
from tests.support.routes import backends
from tests.support.scripts import NAMES, Calls, Name, Says, Script
from tests.support.upstream import Asked, Reply, Upstream

Start = Callable[..., Codex]

OPENING = ["developer", "developer", "user", "user"]
"""What Codex opens a conversation with: its instructions twice, the surroundings, the prompt."""

MOMENTS = pytest.mark.parametrize("before", [b"", text("Half an")], ids=["at-once", "midway"])
TRANSPORTS = pytest.mark.parametrize("transport", ["sse", "socket"])
ECHO = '{"cmd":"echo hi"}'
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
SUMMARY = "The user greeted; echo said hi."


@pytest.fixture(scope="module", autouse=True)
def codex_is_there() -> None:
    needs_codex()


@pytest.fixture
def start(gateway: Gateway, tmp_path: Path) -> Start:
    """A CLI that asks the gateway for this model."""

    def start(model: str, transport: str, base_url: str = gateway.base_url, **options: str) -> Codex:
        return Codex(tmp_path, base_url, model, socket=transport == "socket", **options)

    return start


def scripted(upstream: Upstream, name: str, transport: str, *replies: Reply) -> str:
    """A model of its own for one run. Codex knows it as a `gpt-5.5`, so it offers the tools that go with that."""
    model = f"gpt-5.5-{name}-{transport}-{len(upstream.replies)}"
    upstream.replies[model] = list(replies)
    return model


def failing(*events: bytes, code: str) -> Reply:
    error = {"code": code, "message": "It broke."}
    return Reply([stream(created(), *events, rs("failed", response={"status": "failed", "error": error}))])


def outputs(asked: Asked, type: str = "function_call_output") -> list[tuple[str, str]]:
    """The last line of what each tool put out, by call id."""
    found = [item for item in asked.body["input"] if item.get("type") == type]
    return [(item["call_id"], item["output"].rstrip("\n").split("\n")[-1]) for item in found]


# Turns


@TRANSPORTS
def test_a_text_turn_arrives(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "text", transport, turn(text("Hello"), text(", world.")))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert (said.messages, said.errors, said.code) == (["Hello, world."], [], 0)


@TRANSPORTS
def test_usage_arrives(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "usage", transport, turn(text("Hello.")))
    usage = start(f"up/{model}", transport).exec("Hello.").end["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (USAGE["input_tokens"], USAGE["output_tokens"])
    assert (usage["cached_input_tokens"], usage["reasoning_output_tokens"]) == (8, 2)


@TRANSPORTS
def test_the_demo_model_has_a_command_run(start: Start, transport: str):
    said = start("demo", transport).exec("Run `echo hi`")
    assert said.commands == [("hi\n", 0)]
    assert said.messages[0].startswith("According to exec_command:")
    assert said.messages[0].endswith("\nhi\n")


# A command and its output


class RoundTrip:
    """A turn with a command, seen from both ends and from the gateway between them."""

    def __init__(self, transport: str, said: Said, asked: list[Asked], turns: list[dict[str, Any]]) -> None:
        self.transport, self.said, self.asked, self.turns = transport, said, asked, turns


@pytest.fixture(scope="module", params=["sse", "socket"])
def round_trip(
    request: pytest.FixtureRequest, gateway: Gateway, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> RoundTrip:
    transport: str = request.param
    replies = loop(f"codex_{transport}", "exec_command", ECHO, "It said hi.")
    model = scripted(upstream, "command", transport, *replies)
    folder = tmp_path_factory.mktemp("codex")
    said = Codex(folder, gateway.base_url, f"up/{model}", socket=transport == "socket").exec("Run echo.")
    return RoundTrip(transport, said, upstream.of(model), logged(gateway, f"up/{model}", 2))


def logged(gateway: Gateway, model: str, count: int) -> list[dict[str, Any]]:
    """The log lines of a model's turns; the last one may come after the CLI has ended."""
    end = time.monotonic() + 60
    while True:
        found = [line for line in gateway.turns() if line.get("model") == model]
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.02)


def test_the_command_is_run(round_trip: RoundTrip):
    assert round_trip.said.commands == [("hi\n", 0)]


def test_the_answer_to_its_output_arrives(round_trip: RoundTrip):
    assert (round_trip.said.messages, round_trip.said.errors) == (["It said hi."], [])


def test_reasoning_is_shown(round_trip: RoundTrip):
    assert [item["text"] for item in round_trip.said.items("reasoning")] == ["Let me look."]


def test_the_model_is_shown_the_whole_history_in_order(round_trip: RoundTrip):
    first, second = round_trip.asked
    assert types(first) == OPENING
    assert types(second) == [*OPENING, "reasoning", "function_call", "function_call_output"]
    assert second.body["input"][: len(OPENING)] == first.body["input"]


def test_the_output_belongs_to_the_call(round_trip: RoundTrip):
    asked = round_trip.asked[1]
    assert item(asked, "function_call")["arguments"] == ECHO
    assert outputs(asked) == [(item(asked, "function_call")["call_id"], "hi")]


def test_reasoning_comes_back_with_its_seal(round_trip: RoundTrip):
    assert item(round_trip.asked[1], "reasoning")["encrypted_content"] == SEAL


def test_the_same_tools_are_offered_again(round_trip: RoundTrip):
    first, second = round_trip.asked
    assert "exec_command" in [tool.get("name") for tool in first.body["tools"]]
    assert second.body["tools"] == first.body["tools"]


def test_state_stays_with_the_gateway(round_trip: RoundTrip):
    for asked in round_trip.asked:
        assert asked.body["store"] is False
        assert "previous_response_id" not in asked.body


def test_it_goes_over_the_transport_that_is_set(round_trip: RoundTrip):
    used = {"sse": None, "socket": "websocket"}[round_trip.transport]
    turns = [turn for turn in round_trip.turns if not turn.get("warm_up")]
    assert [turn.get("transport") for turn in turns] == [used, used]
    assert len(round_trip.turns) == {"sse": 2, "socket": 3}[round_trip.transport], "a socket is warmed up first"


# Other calls


@TRANSPORTS
def test_parallel_calls_are_run_and_answered_in_order(start: Start, upstream: Upstream, transport: str):
    calls = (
        call("c1", "exec_command", '{"cmd":', '"echo one"}', index=1),
        call("c2", "exec_command", '{"cmd":', '"echo two"}', index=2),
    )
    replies = turn(signed("rs_parallel"), *calls), turn(text("Both."))
    model = scripted(upstream, "parallel", transport, *replies)
    said = start(f"up/{model}", transport).exec("Run both.")
    assert sorted(said.commands) == [("one\n", 0), ("two\n", 0)]
    assert outputs(upstream.of(model)[1]) == [("c1", "one"), ("c2", "two")]


@TRANSPORTS
def test_a_patch_is_applied(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "patch", transport, turn(custom_call("c1", "apply_patch", *PATCH)), turn(text("Done.")))
    said = start(f"up/{model}", transport).exec("Write it.")
    assert (said.folder / "hello.txt").read_text() == "hello\n"
    assert item(upstream.of(model)[1], "custom_tool_call")["input"] == PATCH
    assert outputs(upstream.of(model)[1], "custom_tool_call_output") == [("c1", "A hello.txt")]


@TRANSPORTS
def test_a_call_keeps_its_namespace(start: Start, upstream: Upstream, transport: str):
    whole = {**call_item("c1", "close_agent", '{"target":"nobody"}'), "namespace": "multi_agent_v1"}
    calling = stream(
        rs("output_item.added", output_index=0, item={**whole, "arguments": ""}),
        rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=whole["arguments"]),
        rs("output_item.done", output_index=0, item=whole),
    )
    model = f"unheard-of-{transport}"  # whose tools come in namespaces
    upstream.replies[model] = [turn(calling), turn(text("Done."))]
    start(f"up/{model}", transport).exec("Close it.")
    asked = upstream.of(model)[1]
    assert item(asked, "function_call")["namespace"] == "multi_agent_v1"
    assert "unsupported call" not in item(asked, "function_call_output")["output"]


@TRANSPORTS
def test_a_search_for_tools_is_answered(start: Start, upstream: Upstream, transport: str):
    search = {"type": "tool_search_call", "id": "tsc_1", "call_id": "c1", "execution": "client"}
    search |= {"status": "completed", "arguments": {"query": "echo", "limit": 3}}
    searching = rs("output_item.done", output_index=0, item=search)
    model = scripted(upstream, "search", transport, turn(searching), turn(text("Nothing.")))
    start(f"up/{model}", transport).exec("Search.")
    asked = upstream.of(model)[1]
    assert types(asked) == [*OPENING, "tool_search_call", "tool_search_output"]
    assert item(asked, "tool_search_call") == search
    assert item(asked, "tool_search_output")["call_id"] == "c1"


@pytest.fixture(scope="module")
def all_kinds(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    server = Gateway(tmp_path_factory.mktemp("kinds"), backends(upstream.url))
    yield server
    server.stop()


@TRANSPORTS
@pytest.mark.parametrize("kind", NAMES)
def test_tools_that_are_declared_in_the_input_are_called(
    start: Start, upstream: Upstream, all_kinds: Gateway, kind: Name, transport: str
):
    model = f"gpt-6-astra-{kind}-{transport}"  # which Codex shows its tools in an item of the input
    script = Calls("c1", "exec", 'text("it is " + 42)', "custom", "functions")
    upstream.replies[model] = [
        reply(Script((script,)), kind, stream=True),
        reply(Script((Says("Done."),)), kind, stream=True),
    ]
    said = start(f"{kind}/{model}", transport, all_kinds.base_url).exec("Go.")
    first, second = (asked.body for asked in upstream.of(model))
    assert (said.messages, said.errors) == (["Done."], [])
    assert "it is 42" in json.dumps(second.get("messages") or second.get("contents") or second["input"])
    if kind == "responses":
        assert first["input"][0]["type"] == "additional_tools"
        assert "tools" not in first
    else:
        declared = first["tools"][0]["functionDeclarations"] if kind == "gemini" else first["tools"]
        names = [tool.get("name") or tool["function"]["name"] for tool in declared]
        assert {"functions__exec", "functions__wait", "clock__sleep"} <= {*names}
    assert second.get("tools") == first.get("tools")


@TRANSPORTS
def test_a_resumed_session_shows_everything_again(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "resume", transport, turn(text("Hello.")), turn(text("Again.", "msg_2")))
    codex = start(f"up/{model}", transport)
    codex.exec("Hello.")
    said = codex.exec("resume", "--last", "And now?")
    assert said.messages == ["Again."]
    assert types(upstream.of(model)[1]) == [*OPENING, "assistant", "user"]


# Failures


@TRANSPORTS
def test_a_turn_that_breaks_is_asked_for_again(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "retry", transport, broken(text("Half an")), turn(text("Whole.", "msg_2")))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert (said.messages[-1], said.code) == ("Whole.", 0)
    assert len(upstream.of(model)) == 2


def test_a_turn_that_breaks_is_reported(start: Start, upstream: Upstream):
    model = scripted(upstream, "broken", "sse", broken(text("Half an")))
    said = start(f"up/{model}", "sse").exec("Hello.")
    reason = "stream disconnected before completion: It broke."
    assert said.errors == [f"Reconnecting... 1/1 ({reason})", reason]
    assert (said.end, said.code) == ({"type": "turn.failed", "error": {"message": reason}}, 1)


@TRANSPORTS
def test_half_an_answer_does_not_become_history(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "half-text", transport, broken(text("Half an")), turn(text("Whole.", "msg_2")))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert said.messages == ["Whole."]
    assert types(upstream.of(model)[1]) == OPENING


@TRANSPORTS
def test_a_command_that_was_not_finished_is_not_run(start: Start, upstream: Upstream, transport: str):
    begun = stream(
        rs("output_item.added", output_index=0, item=call_item("c1", "exec_command", "")),
        rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=ECHO),
    )
    model = scripted(upstream, "half-call", transport, broken(begun), turn(text("Sorry.")))
    said = start(f"up/{model}", transport).exec("Run echo.")
    assert said.commands == []
    assert types(upstream.of(model)[1]) == OPENING


@TRANSPORTS
def test_a_patch_that_was_not_finished_is_not_applied(start: Start, upstream: Upstream, transport: str):
    opened = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": ""}
    begun = stream(
        rs("output_item.added", output_index=0, item=opened),
        rs("custom_tool_call_input.delta", item_id="ctc_1", output_index=0, delta=PATCH),
    )
    model = scripted(upstream, "half-patch", transport, broken(begun), turn(text("Sorry.")))
    said = start(f"up/{model}", transport).exec("Write it.")
    assert not (said.folder / "hello.txt").exists()
    assert types(upstream.of(model)[1]) == OPENING


@TRANSPORTS
def test_a_command_that_was_finished_is_run_once(start: Start, upstream: Upstream, transport: str):
    calling = call("c1", "exec_command", ECHO)
    model = scripted(upstream, "call-then-break", transport, broken(calling), turn(text("It said hi.")))
    said = start(f"up/{model}", transport).exec("Run echo.")
    assert said.commands == [("hi\n", 0)]
    assert outputs(upstream.of(model)[1]) == [("c1", "hi")]


@TRANSPORTS
@MOMENTS
def test_a_full_context_window_is_named_and_not_asked_again(
    start: Start, upstream: Upstream, transport: str, before: bytes
):
    model = scripted(upstream, "full", transport, failing(before, code="context_length_exceeded"))
    said = start(f"up/{model}", transport).exec("Hello.")
    # Before the first event a failure has a status of its own, which Codex shows word for word.
    named = "ran out of room in the model's context window" if before else "context_length_exceeded"
    assert named in said.end["error"]["message"]
    assert len(upstream.of(model)) == 1


@TRANSPORTS
@MOMENTS
def test_a_rate_limit_inside_the_stream_is_waited_for(start: Start, upstream: Upstream, transport: str, before: bytes):
    limited = failing(before, code="rate_limit_exceeded")
    model = scripted(upstream, "limited-inside", transport, limited, turn(text("Whole.", "msg_2")))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert (said.messages[-1:], said.code) == (["Whole."], 0)


@TRANSPORTS
def test_a_rate_limit_that_says_how_long_is_waited_for(start: Start, upstream: Upstream, transport: str):
    # Without a `retry-after` Codex gives up at once.
    error = {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
    limited = Reply([json.dumps({"error": error}).encode()], 429, "application/json", {"retry-after": "1"})
    model = scripted(upstream, "limited", transport, limited, turn(text("Whole.")))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert (said.messages, said.code) == (["Whole."], 0)
    assert len(upstream.of(model)) == 2


@TRANSPORTS
def test_a_request_at_fault_is_shown_and_not_asked_again(start: Start, upstream: Upstream, transport: str):
    model = scripted(upstream, "at-fault", transport, refused(400, "No such thing."))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert json.loads(said.end["error"]["message"])["error"]["message"] == "No such thing."
    assert (len(upstream.of(model)), said.code) == (1, 1)


# No WebSocket


@pytest.fixture(scope="module")
def without_sockets(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = f"[server]\nwebsocket = false\n{backend(upstream.url)}"
    server = Gateway(tmp_path_factory.mktemp("without-sockets"), config)
    yield server
    server.stop()


def test_an_upgrade_that_is_switched_off_is_answered_with_426(without_sockets: Gateway, http: httpx.Client):
    key = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    headers = {"connection": "Upgrade", "upgrade": "websocket", **key}
    assert http.get(f"{without_sockets.base_url}/responses", headers=headers).status_code == 426


def test_codex_falls_back_without_a_word(start: Start, upstream: Upstream, without_sockets: Gateway):
    replies = loop("codex_fallback", "exec_command", ECHO, "It said hi.")
    model = scripted(upstream, "fallback", "socket", *replies)
    said = start(f"up/{model}", "socket", without_sockets.base_url).exec("Run echo.")
    assert "failed to connect to Responses WebSocket" in said.log  # it did try
    assert (said.errors, said.items("error")) == ([], [])
    assert (said.commands, said.messages) == ([("hi\n", 0)], ["It said hi."])


# Compaction


@pytest.fixture(scope="module")
def compacting(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose backend compacts by itself."""
    config = backend(upstream.url, profile="{ compacts = true }")
    server = Gateway(tmp_path_factory.mktemp("compacting"), config)
    yield server
    server.stop()


def full(*events: bytes) -> Reply:
    """A turn after which the context window is as good as full."""
    return Reply([stream(created(), *events, completed(usage={**USAGE, "input_tokens": 260000}))])


def compacted(upstream: Upstream, name: str, transport: str, compaction: Reply) -> str:
    """A command, then no room for more, then a compaction, then an answer."""
    calling = call("c1", "exec_command", ECHO, item="fc_compacted")
    return scripted(upstream, name, transport, full(calling), compaction, turn(text("After that.", "msg_after")))


@TRANSPORTS
def test_a_conversation_is_compacted_by_a_model_that_cannot(start: Start, upstream: Upstream, transport: str):
    model = compacted(upstream, "compaction", transport, turn(text(SUMMARY)))
    said = start(f"up/{model}", transport, provider="OpenAI").exec("Hello.")
    assert (said.messages, said.errors) == (["After that."], [])
    _, summing, after = upstream.of(model)
    assert types(summing) == [*OPENING, "function_call", "function_call_output", "user"]
    assert "tools" not in summing.body
    assert types(after) == [*OPENING, "user"]
    assert SUMMARY in after.body["input"][-1]["content"][0]["text"]


@TRANSPORTS
def test_a_backend_compacts_by_itself(start: Start, upstream: Upstream, compacting: Gateway, transport: str):
    made = {"type": "compaction", "id": "cmp_1", "encrypted_content": SEAL}
    model = compacted(upstream, "own", transport, turn(rs("output_item.done", output_index=0, item=made)))
    said = start(f"up/{model}", transport, compacting.base_url, provider="OpenAI").exec("Hello.")
    assert (said.messages, said.errors) == (["After that."], [])
    _, triggering, after = upstream.of(model)
    assert types(triggering)[-1] == "compaction_trigger"
    assert types(after) == [*OPENING, "compaction"]
    assert item(after, "compaction")["encrypted_content"] == SEAL


@TRANSPORTS
def test_codex_compacts_by_asking_for_a_summary(start: Start, upstream: Upstream, transport: str):
    model = compacted(upstream, "summary", transport, turn(text(SUMMARY)))
    said = start(f"up/{model}", transport).exec("Hello.")
    assert (said.messages, said.errors) == (["After that."], [])
    _, _, after = upstream.of(model)
    assert types(after) == [*OPENING, "user"]
    assert SUMMARY in after.body["input"][-1]["content"][0]["text"]


def test_what_codex_notes_for_its_own_provider_goes_no_further(start: Start, upstream: Upstream):
    model = scripted(upstream, "noted", "sse", *loop("codex_noted", "exec_command", ECHO, "It said hi."))
    start(f"up/{model}", "sse", provider="OpenAI").exec("Hello.")
    members = {name for asked in upstream.of(model) for item in asked.body["input"] for name in item}
    assert "internal_chat_message_metadata_passthrough" not in members
