"""A worker that speaks app-server's JSON-RPC: whatever it forgets, repeats or asks, the client is told the truth once."""

import itertools
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Said
from tests.museum.gate import Door, Routes, Wire
from tests.support.app_server import (
    Rows,
    Step,
    Take,
    Workers,
    ask,
    calls,
    deaf,
    demand,
    done,
    hang,
    item,
    no_end,
    results,
    say,
    sleep,
    tell,
)
from tests.support.client_readers import PATHS, Held, hold
from tests.support.conversations import AGENTS, CLIENTS, Client, Result, ScriptedConversation
from tests.support.conversations import Step as Say
from tests.support.gateway import Gateway
from tests.support.scripts import Name, Script, Seen
from tests.support.upstream import Upstream
from toolwire.core.errors import BackendFault
from toolwire.core.jsonrpc import LineReader

Json = dict[str, Any]

theme, history, transport = Theme("app-server"), Theme("history"), Theme("transport")

CALL = ("c1", "look", '{"path":"a"}')

_HEAD = """
[server]
commit_after = 1.0
keepalive = 0.2

[timeouts]
idle = 4
progress = 3
"""


class Codex(Routes):
    """A gateway with scripted workers, and clients of all dialects."""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client, crews: dict[str, Workers]) -> None:
        super().__init__(gateway, upstream, http)
        self.crews = crews

    def play(self, *takes: list[Step] | Take, crew: str = "usual") -> str:
        """A model that plays this."""
        self.crews[crew].forget()
        return self.crews[crew].script(*takes)

    def rows(self, holds: Callable[[Rows], Any] = bool, crew: str = "usual") -> Rows:
        """What the workers heard and said since the model was made, once this holds of it."""
        return self.crews[crew].wait_for(holds)

    def ask(self, dialect: Name, body: Json, key: str = "") -> Held:
        """For an agent, who keeps a history, and is someone else with every model."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = self.http.post(self.gateway.url + PATHS[dialect], json=body, headers=headers)
        return hold(answer, dialect, stream=bool(body.get("stream")))

    def conversation(self, client: Client, model: str, *steps: Say, stream: bool = True) -> list[Seen]:
        """A conversation of an agent that keeps a history as clients do."""
        agent = AGENTS[client](self, model, ScriptedConversation(()), stream=stream)  # pyright: ignore[reportArgumentType]
        return [agent.take(step) for step in steps]


@pytest.fixture(scope="module")
def codex(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codex]:
    folder = tmp_path_factory.mktemp("app-server")
    crews = {name: Workers(folder, name) for name in ("usual", "single", "retrying")}
    tables = (
        crews["usual"].backend(profile="silence = 0.3")
        + crews["single"].backend(profile="turns = 1, patience = 6.0")
        + crews["retrying"].backend(retries=1)
    )
    gateway = Gateway(folder, _HEAD + tables)
    yield Codex(gateway, upstream, http, crews)
    gateway.stop()


def both(door: Door, model: str, *tools: str) -> list[Said]:
    """What a client is told, streamed and plainly."""
    return [door.stream(model, tools).said, door.said(door.plain(model, tools))]


def apart(door: Door, *messages: str) -> str:
    """Messages as a client of this door reads them: on chat they are one text."""
    return ("\n\n" if isinstance(door, Wire) else "").join(messages)


def go(*given: Result, user: str = "") -> Say:
    return Say(Script(), user or ("" if given else "Go."), given)


def over(status: str = "completed") -> list[Step]:
    return (
        done() + tell("turn/completed", turn={"id": "$turn", "items": [], "status": status, "error": None}) + no_end()
    )


def delta(item: str, text: str) -> list[Step]:
    return tell("item/agentMessage/delta", itemId=item, delta=text)


def message(method: str, id: str, text: str) -> list[Step]:
    return tell(f"item/{method}", item={"type": "agentMessage", "id": id, "text": text, "phase": None})


_CLIENTS: dict[str, Client] = {"chat/completions": "chat", "responses": "responses", "messages": "messages"}


def at_once(codex: Codex, *work: Callable[[Door], None]) -> None:
    """All of it at all doors, at the same time: it takes its time."""
    with ThreadPoolExecutor(3 * len(work)) as pool:
        for future in [pool.submit(each, door) for each in work for door in codex.doors]:
            future.result()


@theme.row("as-no-completed")
def _(codex: Codex) -> None:
    idle = tell("thread/status/changed", status={"type": "idle"})
    model = codex.play(say("All done.") + done() + idle + no_end())
    script = codex.crews["usual"].script
    after_a_tool = {path: script(calls(CALL) + say("Got {results}.") + done() + no_end()) for path in _CLIENTS}
    unknown = {"thread/read": {"error": {"code": -32600, "message": "thread not loaded"}}}
    nobody_knows = script(Take(say("Half.") + done() + no_end(), **unknown))

    def stream(door: Door) -> None:
        streamed = door.stream(model)
        assert (streamed.said.text, streamed.said.finish, streamed.said.error) == ("All done.", "stop", None)
        assert "end_missing" in streamed.notes

    def plain(door: Door) -> None:
        plain = door.plain(model)
        assert (door.said(plain).text, door.said(plain).finish) == ("All done.", "stop")
        assert "end_missing" in plain.headers["x-toolwire-notes"]

    def failing(door: Door) -> None:
        failed = door.stream(nobody_knows)
        assert (failed.said.text, failed.said.finish) == ("Half.", None)
        assert failed.error is not None

    def conversation(door: Door) -> None:
        answered = codex.conversation(_CLIENTS[door.path], after_a_tool[door.path], go(), go(Result("c1", "one")))[-1]
        assert answered.text == "Got one."

    at_once(codex, stream, plain, failing, conversation)
    assert len(codex.rows().heard("thread/read")) >= 12  # each was asked after


@theme.row("as-empty-custom-stall")
def _(codex: Codex) -> None:
    begun = {"type": "dynamicToolCall", "id": "c1", "tool": "look", "arguments": "", "status": "inProgress"}
    custom = {"type": "customToolCall", "id": "c2", "name": "patch", "input": "", "status": "in_progress"}
    model = codex.play(say("Hm.") + tell("item/started", item=begun) + tell("item/started", item=custom) + hang())

    def look(door: Door) -> None:
        streamed = door.stream(model, ("look",))
        assert (streamed.said.text, streamed.said.calls, streamed.said.finish) == ("Hm.", (), None)
        assert streamed.keepalives + streamed.raw.count(b"event: ping\n") >= 2
        assert streamed.error is not None
        assert "timeouts.progress" in streamed.error["message"]

    at_once(codex, look)

    def own(rows: Rows, told: list[Json]) -> list[str]:
        """The threads of this row that were told of; an earlier row may end its turns only now."""
        return sorted(each["threadId"] for each in told if each["threadId"] in rows.threads)

    rows = codex.rows(lambda rows: len(own(rows, [each["params"] for each in rows.said("turn/completed")])) == 3)
    assert len(rows.threads) == 3
    assert own(rows, rows.heard("turn/interrupt")) == sorted(rows.threads)
    assert rows.answers() == []


@theme.row("as-stop-slow")
def _(codex: Codex) -> None:
    late = deaf() + say("Reading.") + sleep(0.5) + ask("c2", "look") + sleep(2.5) + ask("c3", "look") + hang()
    model = codex.play(calls(CALL) + late, crew="single")
    body = codex.chat.body(model, ("look",))
    [call] = codex.chat.plain(model, ("look",)).json()["choices"][0]["message"]["tool_calls"]
    body["messages"] += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ]
    with codex.http.stream("POST", codex.chat.url, json={**body, "stream": True}) as response:
        assert any("Reading." in line for line in response.iter_lines())
    # The next one asks while the turn is still being left: it has its place within two seconds.
    quick = codex.crews["single"].script(say("Hello."))
    assert codex.chat.said(codex.chat.plain(quick)).text == "Hello."
    rows = codex.rows(lambda rows: len(rows.answers()) == 3, crew="single")
    assert len(rows.threads) == 2
    told = [row for row in rows if row["kind"] == "in"]
    stopped = next(row["t"] for row in told if row["line"].get("method") == "turn/interrupt")
    served = [row["t"] for row in told if row["line"].get("method") == "thread/start"][-1]
    assert stopped < served
    asked = {each["params"]["callId"]: each["id"] for each in rows.said("item/tool/call")}
    second = next(row["t"] for row in rows if row["kind"] == "out" and row["line"].get("id") == asked["c2"])
    assert stopped < second
    for id in ("c2", "c3"):
        [answer] = rows.answered(asked[id])
        assert answer["result"]["success"] is False
        assert answer["result"]["contentItems"][0]["text"]


@theme.row("as-error-codes")
def _(codex: Codex) -> None:
    for error, status in (
        ({"code": -32600, "message": "no rollout found for thread id 0199"}, 404),
        ({"code": -32600, "message": "thread not found: 0199"}, 404),
        ({"code": -32600, "message": "failed to load configuration: no such provider"}, 500),
        ({"code": -32600, "message": "dynamic tool name is reserved: look"}, 400),
        ({"code": -32602, "message": "Input is too large.", "data": {"input_error_code": "input_too_large"}}, 400),
        ({"code": -32001, "message": "Server overloaded; retry later."}, 503),
    ):
        for method in ("thread/start", "turn/start"):
            model = codex.play(Take(say("Never."), **{method: {"error": error}}))
            for door in codex.doors:
                streamed, plain = door.stream(model, ("look",)), door.plain(model, ("look",))
                assert (streamed.status, plain.status_code) == (status, status), error
                assert streamed.error is not None
                assert streamed.error["message"] == plain.json()["error"]["message"] == error["message"]


@theme.row("as-unknown-method-loop")
def _(codex: Codex) -> None:
    many = [step for _ in range(300) for step in demand("app/installed")]
    model = codex.play(many + demand("app/installed", threadless=True) + sleep(0.3) + say("Well."))
    for count, door in enumerate(codex.doors, 1):
        assert door.stream(model).said.text == "Well."
        rows = codex.rows(lambda rows, count=count: len(rows.answers()) >= 301 * count)
        ids = [answer["id"] for answer in rows.answers()]
        assert len(ids) == len({*ids}) == 301 * count
        assert {answer["error"]["code"] for answer in rows.answers()} == {-32601}
        assert [answer for answer in rows.answers() if "result" in answer] == []
    assert [line for line in codex.gateway.log if "app/installed" in line] == []
    [turn] = [turn for turn in codex.gateway.turns() if turn["notes"].get("request_declined")][-1:]
    assert turn["notes"]["request_declined"] == 301  # one line, with a number


@theme.row("as-mcp-noise")
def _(codex: Codex) -> None:
    words = "resources/list failed: unknown MCP server 'obsidian'"
    noise = {"type": "function_call_output", "call_id": "call_mcp", "output": words}
    told = tell("rawResponseItem/completed", item=noise)
    model = codex.play(told + say("Let me look.", id="m0") + calls(CALL) + say("Done."))
    for door in codex.doors:
        streamed, plain = door.stream(model, ("look",)), door.plain(model, ("look",))
        for said in (streamed.said, door.said(plain)):
            assert said.text == "Let me look."
            assert [id for id, _, _ in said.calls] == ["c1"]
        assert streamed.notes.count("output_dropped") == 1
        assert b"obsidian" not in streamed.raw + plain.content
    metrics = codex.http.get(f"{codex.gateway.url}/metrics").text
    assert 'code="output_dropped"' in metrics


@theme.row("as-text-twice")
def _(codex: Codex) -> None:
    first = message("started", "m1", "") + delta("m1", "Let me look.") + message("completed", "m1", "Let me look.")
    for second, expected in (
        (delta("m2", "Done.") + message("completed", "m2", "Done"), "Done."),
        (delta("m2", "Done") + message("completed", "m2", "Done, and more."), "Done, and more."),
        (delta("m2", "Done.") + message("completed", "m2", "Otherwise."), "Done."),
        (delta("m2", "Let me look.") + message("completed", "m2", "Let me look."), "Let me look."),
        (delta("m2", "Done.") + message("completed", "m2", "Done.") * 2 + message("completed", "m1", "Let me look."), "Done."),
    ):  # fmt: skip
        model = codex.play(first + second + over())
        for door in codex.doors:
            assert {said.text for said in both(door, model)} == {apart(door, "Let me look.", expected)}
    # The model's own item comes too.
    model = codex.play(say("Let", " me look.", id="m1") + say("Done.", id="m2"))
    for door in codex.doors:
        assert {said.text for said in both(door, model)} == {apart(door, "Let me look.", "Done.")}


@theme.row("as-no-delta")
def _(codex: Codex) -> None:
    for shape in (
        message("started", "m1", "") + message("completed", "m1", "OK"),
        message("completed", "m1", "OK"),
        message("started", "m1", "OK") + message("completed", "m1", "OK"),
        delta("m1", "O") + delta("m1", "K") + message("completed", "m1", "OK"),
        message("started", "m1", "") + delta("m1", "OK") + message("completed", "m1", ""),
        delta("m1", "OK"),
    ):
        model = codex.play(shape + over())
        for door in codex.doors:
            for said in both(door, model):
                assert (said.text, said.finish) == ("OK", "stop")


@theme.row("as-dyn-item")
def _(codex: Codex) -> None:
    shown = {"type": "dynamicToolCall", "tool": "look", "arguments": {"path": "a"}, "success": True}
    shown["contentItems"] = [{"type": "inputText", "text": "x"}]
    named = ({"id": "c1"}, {"id": "x1", "callId": "c1"}, {"id": "x2", "toolCallId": "c1"})
    again = [step for name in named for step in tell("item/completed", item={**shown, **name})]
    for script in (
        item(*CALL) + ask(*CALL) + again + done() + results() + again + say("Got {results}."),
        again + item(*CALL) + ask(*CALL) + done() + results() + say("Got {results}."),
    ):
        model = codex.play(script)
        for door in codex.doors:
            for said in both(door, model, "look"):
                assert ([id for id, _, _ in said.calls], said.finish) == (["c1"], "tool_calls")
        for client in CLIENTS:
            asked, answered = codex.conversation(client, codex.play(script), go(), go(Result("c1", "one")))
            assert ([call.id for call in asked.calls], answered.calls) == (["c1"], ())
            assert answered.text == "Got one."
            [answer] = codex.rows().answers()
            assert answer["result"]["success"] is True


@theme.row("as-dyn-failure")
def _(codex: Codex) -> None:
    script = calls(CALL) + say("I read: {results}")
    model = codex.play(script)
    first = codex.messages.body(model, ("look",))
    content = codex.messages.plain(model, ("look",)).json()["content"]
    result = {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "boom"}
    told = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    _fails(codex, codex.messages, {**first, "messages": first["messages"] + told})
    model = codex.play(script)
    output = codex.responses.plain(model, ("look",)).json()["output"]
    result = {"type": "function_call_output", "call_id": "c1", "output": "boom", "status": "incomplete"}
    asked = [{"role": "user", "content": "Go."}, *output, result]
    _fails(codex, codex.responses, {**codex.responses.body(model, ("look",)), "input": asked})
    # In a thread that is told anew the words must say it: an item has no other place for it.
    model = codex.play(say("New."))
    assert codex.messages.said(codex.http.post(codex.messages.url, json={**first, "model": model, "messages": first["messages"] + told})).text == "New."  # fmt: skip
    output = codex.rows().injected[0][-1]["output"]
    assert "boom" in output
    assert output != "boom"


def _fails(codex: Codex, door: Door, body: Json) -> None:
    answered = door.said(codex.http.post(door.url, json=body))
    [answer] = codex.rows().answers()
    assert answer["result"]["success"] is False
    [part] = answer["result"]["contentItems"]
    assert part["type"] == "inputText"
    assert "boom" in part["text"]
    assert part["text"] in answered.text  # the model sees the words and nothing else
    assert len(codex.rows().threads) == 1


@theme.row("as-dyn-null-args")
def _(codex: Codex) -> None:
    for arguments in (None, "$absent", {}):
        for before in ([], item("c", "ping", "{}")):
            model = codex.play(before + ask("c", "ping", arguments=arguments) + done() + results() + say("Pong."))
            for door in codex.doors:
                for said in both(door, model, "ping"):
                    assert (said.calls, said.finish) == ((("c", "ping", "{}"),), "tool_calls")


@theme.row("as-stdio-64k")
def _(codex: Codex) -> None:
    path = "x" * 5_000_000
    call = ("c1", "look", json.dumps({"path": path}, separators=(",", ":")))
    model = codex.play(calls(call) + say("Done."))
    for door in codex.doors:
        [(id, _, arguments)] = door.said(door.plain(model, ("look",))).calls
        assert (id, json.loads(arguments)) == ("c1", {"path": path})
    held = codex.ask("chat", {**codex.chat.body(model, ("look",)), "stream": True})
    assert [json.loads(each.arguments) for each in held.seen.calls] == [{"path": path}]
    # A result may be as long.
    model = codex.play(calls(CALL) + say("Done."))
    assert codex.conversation("chat", model, go(), go(Result("c1", path)))[-1].text == "Done."
    reader = LineReader(limit=1000)
    assert reader.feed(b"x" * 900) == []
    with pytest.raises(BackendFault) as caught:
        reader.feed(b"x" * 200)
    assert "1000" in caught.value.failure.message


@history.row("hx-steer-lost")
def _(codex: Codex) -> None:
    script = calls(CALL) + say("Got {results}, heard {words}.")
    for client, stream in itertools.product(CLIENTS, (True, False)):
        model = codex.play(script)
        steps = go(), go(Result("c1", "one"), user="also do X")
        assert codex.conversation(client, model, *steps, stream=stream)[-1].text == "Got one, heard also do X."
        rows = codex.rows()
        [steered] = rows.heard("turn/steer")
        assert [part["text"] for part in steered["input"]] == ["also do X"]
        assert len(rows.answers()) == len(rows.threads) == len(rows.heard("turn/start")) == 1
    # If the turn is not to be steered the whole is told anew, these words too, and once.
    refused = {"turn/steer": {"error": {"code": -32600, "message": "no active turn to steer"}}}
    for client in CLIENTS:
        model = codex.play(Take(script, **refused), say("New."), crew="retrying")
        steps = go(), go(Result("c1", "one"), user="also do X")
        assert codex.conversation(client, model, *steps)[-1].text == "New."
        rows = codex.rows(crew="retrying")
        assert len(rows.threads) == 2
        assert json.dumps(rows.injected[-1]).count("also do X") == 1
        assert rows.answers() == []


@transport.row("err-disconnect-mid")
def _(codex: Codex) -> None:
    words = [step for number in range(150) for step in delta("m1", f"{number} ") + sleep(0.03)]
    for door in codex.doors:
        model = codex.play(words + over())
        with codex.http.stream("POST", door.url, json=door.body(model, stream=True)) as response:
            assert len([*itertools.islice(response.iter_lines(), 6)]) == 6
        _is_left(codex)
        model = codex.play(words + over())
        address = urlsplit(door.url)
        body = json.dumps(door.body(model)).encode()
        head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            codex.rows(lambda rows: rows.said("item/agentMessage/delta"))
        _is_left(codex)
    model = codex.play(words + over())
    with codex.responses.socket() as client:
        client.begin(model=model, input="Go.")
    _is_left(codex)


def _is_left(codex: Codex) -> None:
    rows = codex.rows(lambda rows: rows.heard("thread/unsubscribe"))
    [thread], [turn] = rows.heard("turn/interrupt"), rows.said("turn/completed")
    assert (thread["turnId"], turn["params"]["turn"]["status"]) == (turn["params"]["turn"]["id"], "interrupted")


test_museum = theme.test()
test_history = history.test()
test_transport = transport.test()
