"""What the console knows of turns of every kind, and what it can do with them."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from websockets.sync.client import connect

from tests.support import processes
from tests.support.app_server import Workers, done, say
from tests.support.app_server import calls as codex_calls
from tests.support.console import ConsoleClient
from tests.support.fleet import Fleet, until
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, response_body, tool
from tests.support.upstream import Cut, Hold, Pause, Reply, Upstream
from toolwire.config.settings import Backend
from toolwire.core.recording import read_recording
from toolwire.gateway.console import backends
from toolwire.turns.routes import Router

WEATHER = [tool("get_weather", city={"type": "string"})]
USAGE = {"input_tokens": 30, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 20}}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Workers:
    return Workers(tmp_path_factory.mktemp("console-codex"))


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = "\n".join(
        (
            backend(upstream.url, "first", models='["shared"]'),
            backend(upstream.url, "second", models='["shared"]', aliases='{ shared = "shared-second" }'),
            backend(upstream.url, "third", models='["common"]'),
            backend(upstream.url, "fourth", models='["common"]', aliases='{ common = "common-fourth" }'),
            backend(upstream.url),
            workers.backend(),
        )
    )
    server = Gateway(tmp_path_factory.mktemp("console"), config, PROXY_TOOL_ARGUMENTS="repair")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Iterator[ConsoleClient]:
    with ConsoleClient(gateway) as client:
        yield client


def ask(gateway: Gateway, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    return httpx.post(gateway.url + path, json=body, headers=headers, timeout=90, trust_env=False)


def test_a_streamed_turn_has_its_facts_and_every_byte(gateway, upstream, console):
    said = stream(
        created(), text("Let me look."), call("c1", "get_weather", '{"city":', '"Paris"}'), completed(usage=USAGE)
    )
    upstream.replies["streamed"] = Reply([said])
    answer = ask(gateway, chat_body("up/streamed", stream=True, tools=WEATHER), **{"user-agent": "tester/1"})
    found = console.turn(model="up/streamed")
    row, whole = found["row"], found["whole"]
    assert (row["status"], row["backend"], row["client"], row["dialect"]) == (200, "up", "tester/1", "chat")
    assert (row["input"], row["output"], row["cached"]) == (30, 7, 20)
    assert (row["calls"], row["call_ids"]) == (["get_weather"], ["c1"])
    assert 0 < row["first_ms"] <= row["ms"]
    [attempt] = whole["attempts"]
    assert "".join(part for _, part in attempt["parts"]) == said.decode()
    assert "".join(part for _, part in whole["answer"]["parts"]) == answer.text
    assert json.loads(attempt["sent"][0]["body"])["model"] == "streamed"
    assert json.loads(whole["request"]["body"])["messages"][0]["content"] == "Go."
    [made] = whole["calls"]
    assert made["same"]
    assert made["model"]["arguments"] == made["client"]["arguments"] == '{"city":"Paris"}'
    assert [lane for _, _, lane, _ in attempt["frames"]].count("call") == 4


def test_a_plain_turn_is_kept_too(gateway, upstream, console):
    body = {"id": "r", "status": "completed", "output": [], "usage": USAGE}
    upstream.replies["plain"] = Reply([json.dumps(body).encode()], content_type="application/json")
    ask(gateway, chat_body("up/plain"))
    whole = console.turn(model="up/plain")["whole"]
    assert json.loads(whole["attempts"][0]["parts"][0][1]) == body
    assert json.loads(whole["answer"]["parts"][0][1])["object"] == "chat.completion"


def test_a_repaired_call_shows_what_was_changed(gateway, upstream, console):
    upstream.replies["repaired"] = Reply(
        [stream(created(), call("c1", "get_weather", "{'city': 'Oslo',}"), completed())]
    )
    ask(gateway, chat_body("up/repaired", tools=WEATHER))
    whole = console.turn(model="up/repaired")["whole"]
    [made] = whole["calls"]
    assert (made["model"]["arguments"], made["client"]["arguments"]) == ("{'city': 'Oslo',}", '{"city": "Oslo"}')
    assert not made["same"]
    assert [note["code"] for note in whole["notes"]] == ["arguments_repaired"]


def test_a_call_written_in_text_shows_the_text(gateway, console):
    ask(gateway, chat_body("demo-use-tool", tools=WEATHER, stream=True))
    [made] = console.turn(model="demo-use-tool")["whole"]["calls"]
    assert made["model"] is None
    assert made["written"].startswith("<use_tool>")
    assert made["client"]["name"] == "get_weather"


def test_each_call_written_in_text_shows_its_own_block(gateway, upstream, console):
    blocks = [f"<use_tool><name>get_weather</name><city>{city}</city></use_tool>" for city in ("Rome", "Oslo")]
    said = f"I shall use get_weather.\n{blocks[0]}\n{'.' * 500}\n{blocks[1]}"
    upstream.replies["blocks"] = Reply([stream(created(), text(said), completed())])
    ask(gateway, chat_body("up/blocks", tools=WEATHER, stream=True))
    calls = console.turn(model="up/blocks")["whole"]["calls"]
    assert [made["written"].startswith(block) for made, block in zip(calls, blocks, strict=True)] == [True, True]


@pytest.mark.parametrize("odd", ["1e999", "9" * 5000, "[" * 900 + "]" * 900], ids=["huge", "long", "deep"])
def test_odd_values_do_not_cost_anybody_their_conversations(gateway, console, odd):
    body = '{"model":"demo","messages":[{"role":"user","content":"Odd.","n":ODD}]}'.replace("ODD", odd)
    httpx.post(f"{gateway.url}/v1/chat/completions", content=body, timeout=90, trust_env=False)
    ask(gateway, chat_body("demo", messages=[{"role": "user", "content": f"After {odd[:5]}."}]))
    until(lambda: f"After {odd[:5]}." in [each["title"] for each in console.get("conversations")])


def test_what_a_backend_was_sent_has_the_names_of_all_headers(gateway, upstream, console):
    upstream.replies["headers"] = Reply([stream(created(), text("Hi."), completed())])
    ask(gateway, chat_body("up/headers", stream=True), authorization="Bearer passed-on-key")
    sent = dict(console.turn(model="up/headers")["whole"]["attempts"][0]["sent_headers"])
    assert (sent["authorization"], sent["content-type"]) == ("(not kept)", "application/json")


def test_calls_that_the_gateway_ran_itself_are_no_failures(upstream, tmp_path):
    (tmp_path / "shed.py").write_text('def weather(city: str) -> str:\n    """Weather."""\n    return "18 degrees"\n')
    calls = Reply([stream(created(), call("c1", "weather", '{"city":"Rome"}'), completed())])
    upstream.replies["own-tool"] = [calls, Reply([stream(created(), text("Mild."), completed())])]
    config = f'[gateway_tools]\ntools = ["shed:weather"]\n{backend(upstream.url)}'
    modules = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    server = Gateway(tmp_path, config, PYTHONPATH=modules)
    try:
        with ConsoleClient(server) as console:
            ask(server, chat_body("up/own-tool"))
            found = console.turn(model="up/own-tool")
            recording = console.http.get(f"/console/api/turns/{found['row']['id']}/recording").content
    finally:
        server.stop()
    assert found["row"].get("tried", []) == []
    [made] = found["whole"]["calls"]
    assert (made["ran"], made["model"]["name"], made["client"]) == (True, "weather", None)
    assert [attempt["round"] for attempt in found["whole"]["attempts"]] == [0, 1]
    path = tmp_path / "turn.jsonl"
    path.write_bytes(recording)
    assert [line for line in read_recording(path.read_bytes()).lines if line.attempt] == []


def test_a_failover_shows_both_attempts(gateway, upstream, console):
    upstream.replies["shared"] = Reply([b'{"error":{"message":"Down."}}'], 503, "application/json")
    upstream.replies["shared-second"] = Reply([stream(created(), text("Here."), completed())])
    ask(gateway, chat_body("shared", stream=True))
    found = console.turn(model="shared")
    assert found["row"]["tried"] == ["first 503", "second 200"]
    assert [(each["backend"], each["status"]) for each in found["whole"]["attempts"]] == [
        ("first", 503),
        ("second", 200),
    ]
    backends = {each["name"]: each for each in console.get("backends")}
    assert backends["first"]["failovers"] >= 1
    assert backends["first"]["cooling"] > 0
    assert backends["second"]["turns"]


def test_the_recording_of_a_failover_has_both_attempts(gateway, upstream, console, tmp_path):
    upstream.replies["common"] = Reply([b'{"error":{"message":"Down."}}'], 503, "application/json")
    upstream.replies["common-fourth"] = Reply([stream(created(), text("Here."), completed())])
    ask(gateway, chat_body("common", stream=True))
    row = console.wait_for(model="common", tried=["third 503", "fourth 200"])
    recording = read_recording(console.http.get(f"/console/api/turns/{row['id']}/recording").content)
    [attempt] = [line.attempt for line in recording.lines if line.attempt is not None]
    assert (attempt.backend, attempt.kind, attempt.status) == ("third", "responses", 503)
    assert "Down." in attempt.reply
    assert json.loads(attempt.sent[0].body)["model"] == "common"
    assert "Here." in "".join(line.data for line in recording.reply)
    assert "Down." not in "".join(line.data + line.body for line in recording.reply)


def test_a_stream_that_breaks_off_is_an_error_everywhere(gateway, upstream, console):
    upstream.replies["cut"] = Reply([created(), text("half"), Cut()])
    upstream.replies["whole"] = Reply([created(), text("all of it"), completed()])
    ask(gateway, chat_body("up/whole", stream=True))
    before = console.get("numbers")["start"]["errors"]
    ask(gateway, chat_body("up/cut", stream=True, messages=[{"role": "user", "content": "Cut me off."}]))
    row = console.wait_for(model="up/cut")
    assert (row["status"], bool(row["error"])) == (200, True)
    assert console.get("numbers")["start"]["errors"] == before + 1
    [found] = [each for each in console.get("conversations") if each["title"] == "Cut me off."]
    assert found["errors"] == 1
    [up] = [each for each in console.get("backends") if each["name"] == "up"]
    assert up["errors"] >= 1
    assert 0 < up["first_p50"] <= up["first_p99"]
    assert 0 < up["total_p50"] <= up["total_p99"]


def test_a_failure_is_kept_with_its_reason(gateway, upstream, console):
    upstream.replies["refused"] = Reply([b'{"error":{"message":"No.","code":"nope"}}'], 400, "application/json")
    ask(gateway, chat_body("up/refused"))
    found = console.turn(model="up/refused")
    assert found["row"]["status"] == 400
    assert "No." in found["whole"]["attempts"][0]["parts"][0][1]


def test_a_background_turn_is_kept(gateway, upstream, console):
    upstream.replies["later"] = Reply([Pause(0.5), stream(created(), text("Done."), completed())])
    ask(gateway, response_body("up/later", background=True), "/v1/responses")
    found = console.turn(model="up/later", background=True)
    assert found["whole"]["answer"]["text"] == "Done."
    assert 500 <= found["row"]["first_ms"] <= found["row"]["ms"], "that it is queued is nothing of the model"


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: workers are looked at in /proc")
def test_a_run_that_another_worker_took_over_is_watched_like_any_other(start_fleet):
    fleet = start_fleet('[server]\ndrain = 1\n[store]\nurl = "sqlite:kept.db"\nlease = 1\n')
    with ConsoleClient(fleet) as console:
        made = ask(fleet, response_body("demo-silent", background=True), "/v1/responses").json()["id"]
        [first] = until(lambda: [row for row in under_way(console) if f"resp_{row['id']}" == made])
        for pid in fleet.pids:
            os.kill(pid, signal.SIGKILL)
    with ConsoleClient(fleet) as console:
        again = until(lambda: [row for row in under_way(console) if row["at"] > first["at"]])
        assert [f"resp_{row['id']}" for row in again] == [made]
        assert console.get(f"turns/{again[0]['id']}")["whole"]["request"]["body"]


def under_way(console: ConsoleClient) -> list[dict[str, Any]]:
    try:
        return [row for worker in console.get("turns")["workers"] for row in worker["running"]]
    except httpx.TransportError:  # its worker was killed
        return []


def test_a_turn_over_a_websocket_is_kept(gateway, upstream, console):
    upstream.replies["socket"] = Reply([stream(created(), call("c9", "get_weather", '{"city":"Rome"}'), completed())])
    with connect(gateway.url.replace("http", "ws") + "/v1/responses") as socket:
        asked = {"type": "response.create", "stream_id": "s1", **response_body("up/socket", tools=WEATHER)}
        socket.send(json.dumps(asked))
        received = [socket.recv(timeout=90)]
        while json.loads(received[-1])["type"] != "response.completed":
            received.append(socket.recv(timeout=90))
    found = console.turn(model="up/socket")
    assert found["row"]["transport"] == "websocket"
    assert "".join(part for _, part in found["whole"]["answer"]["parts"]).splitlines() == received
    [made] = found["whole"]["calls"]
    assert made["client"]["arguments"] == '{"city":"Rome"}'


def test_a_codex_turn_is_kept_with_what_its_worker_was_sent(gateway, workers, console):
    model = workers.script([*codex_calls(("c1", "get_weather", '{"city":"Bonn"}')), *say("ok"), *done()])
    ask(gateway, chat_body(model, tools=WEATHER, stream=True))
    whole = console.turn(model=model)["whole"]
    [attempt] = whole["attempts"]
    assert attempt["kind"] == "codex"
    assert "turn/start" in [each["path"] for each in attempt["sent"]]
    [made] = whole["calls"]
    assert made["client"]["arguments"] == '{"city":"Bonn"}'


def test_a_recording_can_be_replayed(gateway, upstream, console, tmp_path):
    upstream.replies["recorded"] = Reply([stream(created(), call("c1", "get_weather", '{"city":"Kiel"}'), completed())])
    ask(gateway, chat_body("up/recorded", tools=WEATHER, stream=True))
    row = console.wait_for(model="up/recorded")
    answer = console.http.get(f"/console/api/turns/{row['id']}/recording")
    assert answer.headers["content-disposition"] == f'attachment; filename="{row["id"]}.jsonl"'
    path = tmp_path / "turn.jsonl"
    path.write_bytes(answer.content)
    shown = processes.run(
        [sys.executable, "-m", "toolwire", "replay", str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "get_weather" in shown.stdout
    assert "Kiel" in shown.stdout


def test_a_recording_has_the_last_event_of_a_stream_without_its_blank_line(gateway, upstream, console):
    upstream.replies["unfinished"] = Reply([created(), text("Tea."), completed().rstrip()])
    assert "Tea." in ask(gateway, chat_body("up/unfinished", stream=True)).text
    row = console.wait_for(model="up/unfinished")
    recording = read_recording(console.http.get(f"/console/api/turns/{row['id']}/recording").content)
    assert [json.loads(line.data)["type"] for line in recording.reply][-1] == "response.completed"


def test_a_recording_ends_before_an_event_that_is_too_large(gateway, upstream, console):
    upstream.replies["too-large"] = Reply([created(), text("Tea."), b"data: 1\n" * 100_002 + b"\n"])
    ask(gateway, chat_body("up/too-large", stream=True))
    row = console.wait_for(model="up/too-large")
    recording = read_recording(console.http.get(f"/console/api/turns/{row['id']}/recording").content)
    assert "Tea." in recording.reply[-1].data


def test_a_turn_can_be_asked_again_of_another_model(gateway, console):
    ask(gateway, chat_body("demo", tools=WEATHER, messages=[{"role": "user", "content": "Weather in Rome?"}]))
    row = console.wait_for(model="demo", status=200)
    done = console.post(f"turns/{row['id']}/replay", model="demo-parallel")
    assert done["status"] == 200
    other = console.get(f"turns/{done['turn']}")
    assert (other["row"]["model"], other["row"]["replay_of"]) == ("demo-parallel", row["id"])
    assert len(other["whole"]["calls"]) == 3


def test_a_replay_asks_the_same_and_stores_nothing(gateway, upstream, console):
    upstream.replies["same"] = Reply([stream(created(), call("c1", "get_weather", '{"city":"Rome"}'), completed())])
    first = ask(gateway, response_body("up/same"), "/v1/responses").json()["id"]
    ask(gateway, {"model": "up/same", "previous_response_id": first, "input": "And?"}, "/v1/responses")
    before = {row["id"] for row in console.get("stored")}
    rows = [row for row in console.rows() if row.get("model") == "up/same"]
    for row in rows:
        assert console.post(f"turns/{row['id']}/replay", model="up/same")["status"] == 200
    assert {row["id"] for row in console.get("stored")} == before
    ask(gateway, chat_body("up/same", store=True, stream=True, tools=WEATHER), "/obsidian-xml/v1/chat/completions")
    ask(gateway, chat_body("up/same", tools=WEATHER), **{"x-proxy-output-mode": "obsidian-xml"})
    for row in [row for row in console.rows() if row.get("model") == "up/same" and row["dialect"] == "chat"]:
        done = console.post(f"turns/{row['id']}/replay", model="up/same")
        whole = console.get(f"turns/{done['turn']}")["whole"]
        assert whole["answer"]["text"].startswith("<use_tool>")
        assert "store" not in json.loads(whole["request"]["body"])


@pytest.mark.parametrize("way", ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"])
def test_a_turn_whose_model_is_in_the_path_is_shown_and_replayed(http, gateway, upstream, console, way: str):
    model = f"in-path-{way}"
    upstream.replies[model] = Reply([stream(created(), call("c1", "get_weather", '{"city":"Rome"}'), completed())])
    body = {"contents": [{"role": "user", "parts": [{"text": "Tell me of Rome."}]}]}
    path, _, query = way.partition("?")
    url = f"{gateway.url}/v1beta/models/up/{quote(model)}:{path}?{query}&key=not-a-secret"
    assert http.post(url, json=body).status_code == 200
    row = console.wait_for(model=f"up/{model}", dialect="gemini")
    done = console.post(f"turns/{row['id']}/replay", model=f"up/{model}")
    assert done["status"] == 200
    for id in (row["id"], done["turn"]):
        turn = console.get(f"turns/{id}")
        made = [(call["name"], json.loads(call["arguments"])) for call in turn["whole"]["answer"]["calls"]]
        assert made == [("get_weather", {"city": "Rome"})]
        assert "not-a-secret" not in json.dumps(turn)


@contextmanager
def replaying(console: ConsoleClient, id: str, model: str) -> Iterator[None]:
    """A page that asks for a replay, and leaves without its answer."""
    body = json.dumps({"model": model}).encode()
    head = (
        f"POST /console/api/turns/{id}/replay HTTP/1.1",
        "Host: localhost",
        f"Authorization: {console.http.headers['authorization']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    address = ("127.0.0.1", int(console.gateway.url.rpartition(":")[2]))
    with socket.create_connection(address) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in (*head, "")).encode() + body)
        yield


def test_a_replay_ends_when_the_page_leaves(gateway, upstream, console):
    upstream.replies["held"] = Reply([created(), text("…"), Hold()])
    ask(gateway, chat_body("demo-short"))
    row = console.wait_for(model="demo-short")
    with replaying(console, row["id"], "up/held"):
        until(lambda: [each for each in under_way(console) if each.get("model") == "up/held"])
    assert console.wait_for(model="up/held", replay_of=row["id"])["status"] == 499


def test_so_many_replays_at_a_time_and_no_more(gateway, upstream, console):
    upstream.replies["held-too"] = Reply([created(), text("…"), Hold()])
    ask(gateway, chat_body("demo-short"))
    id = console.wait_for(model="demo-short")["id"]

    def running() -> int:
        return len([row for row in under_way(console) if row.get("model") == "up/held-too"])

    with ExitStack() as pages:
        for count in range(1, 5):
            pages.enter_context(replaying(console, id, "up/held-too"))
            until(lambda wanted=count: running() == wanted)
        for _ in range(2):
            assert (
                console.http.post(f"/console/api/turns/{id}/replay", json={"model": "up/held-too"}).status_code == 429
            )
        assert running() == 4
    until(lambda: running() == 0)


def test_submitted_tool_outputs_are_not_replayed(gateway, console):
    tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]
    first = ask(gateway, response_body("demo", "Weather in Rome?", tools=tools), "/v1/responses").json()
    [made] = [item for item in first["output"] if item["type"] == "function_call"]
    path = f"/v1/responses/{first['id']}/submit_tool_outputs"
    ask(gateway, {"tool_outputs": [{"call_id": made["call_id"], "output": "Sunny"}]}, path)
    row = console.wait_for(results=[made["call_id"]])
    assert console.get(f"turns/{row['id']}")["whole"]["path"] == path
    again = ask(gateway, {"tool_outputs": [{"call_id": made["call_id"], "output": "Sunny"}]}, path)
    repeated = console.rows()[-1]
    assert repeated["id"] != row["id"]
    [(_, sent)] = console.get(f"turns/{repeated['id']}")["whole"]["answer"]["parts"]
    assert sent == again.text, "the same outputs again are answered with what is stored"
    answer = console.http.post(f"/console/api/turns/{row['id']}/replay", json={"model": "demo-short"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_replayable")


def test_a_request_that_nests_too_deeply_is_not_replayed(gateway, console):
    seen = {row["id"] for row in console.rows()}
    body = '{"model":"demo","messages":[{"role":"user","content":"Deep."}],"x":' + "[" * 5000 + "]" * 5000 + "}"
    assert (
        httpx.post(f"{gateway.url}/v1/chat/completions", content=body, timeout=90, trust_env=False).status_code == 400
    )
    [id] = until(lambda: {row["id"] for row in console.rows()} - seen)
    answer = console.http.post(f"/console/api/turns/{id}/replay", json={"model": "demo-short"})
    assert answer.status_code == 400


@pytest.mark.parametrize("number", [10**22, -(10**22), -1, 2**63, 1.5])
def test_odd_numbers_are_refused(console, number):
    assert console.http.get("/console/api/turns", params={"after": json.dumps({"x": number})}).status_code == 400
    assert console.http.post("/console/api/capture", json={"count": number}).status_code == 400


def test_a_server_that_does_not_list_its_models_keeps_nobody_waiting(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gateway = Gateway(tmp_path, backend(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "silent", models='["*"]'))
        try:
            with ConsoleClient(gateway) as console:
                for _ in range(2):
                    assert [each["models"] for each in console.get("backends") if each["name"] == "silent"] == [["*"]]
        finally:
            gateway.stop()


def test_a_page_does_not_wait_for_a_list_of_models(monkeypatch: pytest.MonkeyPatch):
    """A page that waits for it never gets its answer here."""
    monkeypatch.setattr(backends, "MODELS_TIMEOUT", 0)

    async def main() -> None:
        answered = asyncio.Event()

        async def models_of(name: str) -> list[str]:
            await answered.wait()
            return ["late"]

        router = SimpleNamespace(routes=[SimpleNamespace(backend=Backend("slow", "demo"))], models_of=models_of)
        lists = backends.ModelLists(cast("Router", router))
        assert [dict(await lists.load()), dict(await lists.load())] == [{}, {}]
        answered.set()
        while not await lists.load():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await lists.load() == {"slow": ["late"]}

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_form_gets_the_answer_as_it_is(console):
    body = chat_body("demo", tools=WEATHER, stream=True)
    answer = console.http.post("/console/api/try?dialect=chat", json=body)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert console.wait_for(id=answer.headers["x-toolwire-turn"])["model"] == "demo"


def conversation(console: ConsoleClient, title: str, turns: int) -> list[dict[str, Any]]:
    """The turns of a conversation that begins so, once it has so many."""

    def found() -> Any:
        mine = [each for each in console.get("conversations") if (each["title"], each["turns"]) == (title, turns)]
        return mine[0] if mine else None

    return console.get(f"conversations/{until(found)['id']}")["turns"]


def test_turns_of_one_history_are_a_conversation_and_the_broken_cache_is_found(gateway, console):
    system = "You are helpful. It is {} o'clock."
    history: list[dict[str, Any]] = [
        {"role": "system", "content": system.format(1)},
        {"role": "user", "content": "Weather in Turin?"},
    ]
    first = ask(gateway, chat_body("demo", messages=history, tools=WEATHER)).json()["choices"][0]["message"]
    [made] = first["tool_calls"]
    history += [first, {"role": "tool", "tool_call_id": made["id"], "content": "Sunny in Turin"}]
    second = ask(gateway, chat_body("demo", messages=history, tools=WEATHER)).json()["choices"][0]["message"]
    history += [second, {"role": "user", "content": "And later?"}]
    history[0] = {"role": "system", "content": system.format(2)}
    ask(gateway, chat_body("demo", messages=history, tools=WEATHER))
    turns = conversation(console, "Weather in Turin?", 3)
    assert [turn["row"].get("call_count", 0) for turn in turns] == [1, 0, 0]
    assert turns[0]["calls"][0]["result"]["text"] == "Sunny in Turin"
    assert turns[0]["cache"] is None
    assert not turns[1]["cache"]["broken"]
    cache = turns[2]["cache"]
    assert cache["broken"]
    assert (cache["part"], cache["now"].find("2 o'clock") >= 0, cache["was"].find("1 o'clock") >= 0) == (
        "system",
        True,
        True,
    )
    tools = turns[2]["context"]["tools"]
    assert cache["byte"] == tools + len('{"role":"system","content":"You are helpful. It is ')
    assert turns[2]["context"]["results"] > 0


def test_turns_are_joined_by_response_and_by_session(gateway, console):
    first = ask(gateway, response_body("demo", "A chain begins."), "/v1/responses").json()
    ask(gateway, response_body("demo", "It goes on.", previous_response_id=first["id"]), "/v1/responses")
    for words in ("one thing", "another thing"):
        ask(gateway, chat_body("demo", messages=[{"role": "user", "content": words}]), session_id="codex-session-7")
    conversation(console, "A chain begins.", 2)
    conversation(console, "one thing", 2)


def test_a_failed_result_counts_against_its_tool(gateway, upstream, console):
    tools = [tool("break_things", what={"type": "string"})]
    upstream.replies["breaks"] = [
        Reply([stream(created(), call("c-broken", "break_things", "{}"), completed())]),
        Reply([stream(created(), text("It holds."), completed())]),
    ]
    history: list[dict[str, Any]] = [{"role": "user", "content": "Break things, please."}]
    message = ask(gateway, chat_body("up/breaks", messages=history, tools=tools)).json()["choices"][0]["message"]
    made = message["tool_calls"][0]
    history += [message, {"role": "tool", "tool_call_id": made["id"], "content": "Error: it holds."}]
    ask(gateway, chat_body("up/breaks", messages=history, tools=tools))
    row = console.wait_for(results=[f"{made['id']} failed"])
    assert console.get(f"turns/{row['id']}")["whole"] is not None
    numbers = console.get("numbers")["start"]["tools"]["break_things"]
    assert numbers == {"calls": 1, "results": 1, "failed": 1}


def test_a_turn_is_listed_while_it_runs(gateway, upstream, console):
    upstream.replies["slow"] = Reply([created(), text("…"), Hold()])
    with httpx.stream(
        "POST", f"{gateway.url}/v1/chat/completions", json=chat_body("up/slow", stream=True), timeout=90
    ) as answer:
        pieces = answer.iter_bytes()  # httpx closes the connection when this is dropped
        next(pieces)
        running = [row for worker in console.get("turns")["workers"] for row in worker["running"]]
        assert [(row["model"], row["kept"]) for row in running] == [("up/slow", "running")]
    assert console.wait_for(model="up/slow")["status"] == 499


def test_a_turn_under_way_shows_what_was_said_so_far(gateway, upstream, console):
    half = stream(created(), text("Let me see."), call("c1", "look", '{"at":'))
    upstream.replies["half"] = Reply([half[: half.rindex(b"event: response.function_call_arguments.done")], Hold()])
    body = chat_body("up/half", stream=True, tools=[tool("look", at={"type": "string"})])
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=90) as answer:
        pieces = answer.iter_bytes()
        until(lambda: b"Let me see." in next(pieces))
        [id] = [row["id"] for worker in console.get("turns")["workers"] for row in worker["running"]]
        found = console.get(f"turns/{id}")
        again = console.get(f"turns/{id}")
    assert found["row"]["kept"] == "running"
    [made] = found["whole"]["calls"]
    assert (made["model"]["arguments"], made["model"]["complete"]) == ('{"at":', False)
    assert found["whole"]["answer"]["text"] == "Let me see."
    assert json.loads(found["whole"]["request"]["body"]) == body
    assert again["whole"] == found["whole"]
    over = console.turn(model="up/half")
    assert (over["row"]["status"], over["whole"]["calls"][0]["model"]["arguments"]) == (499, '{"at":')


def test_a_kept_turn_stays_until_it_is_let_go(gateway, console):
    ask(gateway, chat_body("demo-short"))
    row = console.wait_for(model="demo-short")
    assert console.post(f"turns/{row['id']}/pin", pinned=True) == {"pinned": True, "full": False}
    assert console.wait_for(id=row["id"])["pinned"]
    assert console.post(f"turns/{row['id']}/pin", pinned=False) == {"pinned": False, "full": False}


def test_a_backend_can_be_checked_and_its_report_is_shown(gateway, console):
    console.post("backends/demo/check")
    state = until(lambda: not (state := console.get("check"))["running"] and state)
    assert state["has_report"], state
    report = console.http.get("/console/api/check/report")
    assert b"toolwire check" in report.content
    assert "sandbox" in report.headers["content-security-policy"]


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: workers are looked at in /proc")
def test_all_workers_together_capture_as_many_turns_as_were_asked_for(tmp_path: Path):
    fleet = Fleet(tmp_path, '[[keys]]\nname = "ann"\nkey = "ann-key-123456"\nconsole = true\n')
    try:
        with ConsoleClient(fleet) as console:
            console.post("capture", count=3)
            for number in range(200):
                words = [{"role": "user", "content": f"number {number}"}]
                ask(fleet, chat_body("demo", messages=words), authorization="Bearer ann-key-123456")
                until(lambda: len(set(capturing(console))) == 1)
                rows = until(lambda count=number + 1: len(rows := console.rows()) == count and rows)
                if not any(capturing(console)) and {row["worker"] for row in rows} == {"0", "1"}:
                    break
            assert {row["worker"] for row in rows} == {"0", "1"}
            assert [row["kept"] != "metadata" for row in rows if "kept" in row].count(True) == 3
    finally:
        fleet.stop()


def capturing(console: ConsoleClient) -> list[int]:
    return [worker["capturing"] for worker in console.get("turns")["workers"]]


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: workers are looked at in /proc")
def test_every_worker_shows_the_turns_of_all(tmp_path: Path):
    fleet = Fleet(tmp_path)
    try:
        with ConsoleClient(fleet) as console:
            _ask_until_both_answered(fleet, console)
            total = len(console.rows())
            for _ in range(8):  # whichever of them answers
                with ConsoleClient(fleet) as other:
                    rows = other.rows()
                    assert len(rows) == total
                    assert other.get(f"turns/{rows[0]['id']}")["whole"] is not None
                    assert other.get("numbers")["start"]["turns"] == total
                    assert len(other.get("backends")[0]["turns"]) == total
    finally:
        fleet.stop()


def _ask_until_both_answered(fleet: Fleet, console: ConsoleClient) -> None:
    for number in range(200):
        ask(fleet, chat_body("demo", messages=[{"role": "user", "content": f"number {number}"}]))
        if {row["worker"] for row in console.rows()} == {"0", "1"}:
            return
    raise AssertionError("one worker has answered everything")
