"""Running it: start, stop, leave, log, record, measure."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.support import processes
from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gate, Gateway, backend, chat_body, leave_when, read_sse, tool
from tests.support.gateways import until
from tests.support.upstream import Hold, Reply, Upstream
from toolwire.core.display import clean
from toolwire.gateway.workers.sockets import find_listener

FIND = [tool("find", q={"type": "string"})]


def toolwire(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [sys.executable, "-m", "toolwire", *args], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[server]\nprot = 1\n", "toolwire.toml: server.prot: unknown key"),
        ("[server]\nport = 'x'\n", "toolwire.toml: server.port:"),
        ("[server\n", "toolwire.toml:"),
        ("[server]\nmax_body = 'big'\n", "server.max_body: 'big' is not a size"),
        (
            "[[backends]]\nname = 'a'\nkind = 'responses'\n",
            "backends[0] (a).base_url: a responses backend needs an address",
        ),
        ("[[backends]]\nname = 'a'\nkind = 'oracle'\n", "backends[0] (a).kind: 'oracle' is not one of chat,"),
        (
            "[[backends]]\nname = 'a'\nkind = 'demo'\n[[backends]]\nname = 'a'\nkind = 'demo'\n",
            "another backend has this name",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'responses'\nbase_url = 'ftp://x'\n",
            "backends[0] (a).base_url: 'ftp://x' is not an address: no http://HOST[:PORT]",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'chat'\nbase_url = 'http://127.0.0.1:99999/v1'\n",
            "backends[0] (a).base_url: 'http://127.0.0.1:99999/v1' is not an address: Port",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'messages'\nbase_url = 'http://127.0.0.1:x'\n",
            "backends[0] (a).base_url: 'http://127.0.0.1:x' is not an address: Port",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'chat'\nbase_url = 'http://'\n",
            "backends[0] (a).base_url: 'http://' is not an address: no http://HOST[:PORT]",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'codex'\nbase_url = 'http://[::1'\n",
            "backends[0] (a).base_url: 'http://[::1' is not an address: Invalid IPv6 URL",
        ),
        (
            "[gateway_tools]\nmax_turns = 0\n",
            "toolwire.toml: gateway_tools.max_turns: it must be at least 1; received 0",
        ),
        (
            "[gateway_tools]\nmax_turns = -3\n",
            "toolwire.toml: gateway_tools.max_turns: it must be at least 1; received -3",
        ),
        ("[gateway_tools]\ntimeout = 0\n", "toolwire.toml: gateway_tools.timeout: it must be more than 0; received 0"),
        (
            "[server]\nstrict_start = true\n[[backends]]\npreset = 'xai'\napi_key_env = 'NO_SUCH'\n",
            "toolwire.toml: backend xai is unavailable: NO_SUCH is not set",
        ),
        (
            "[[backends]]\nname = 'a'\nkind = 'responses'\nbase_url = 'http://x'\nprofile = { nonsense = 1 }\n",
            "toolwire.toml: backends[0] (a).profile.nonsense: unknown key",
        ),
        ("[[backends]]\nname = 'a'\nkind = 'replay'\n", "backends[0] (a).file: a recording is needed"),
        (
            "[server]\nstrict_start = true\n[[backends]]\nname = 'a'\nkind = 'replay'\nfile = 'none.jsonl'\n",
            "backend a is unavailable: there is no recording",
        ),
        ("[[keys]]\nname = 'a'\nkey_env = 'NO_SUCH'\n", "keys[0] (a): the variable NO_SUCH is not set"),
        (
            "[[keys]]\nname = 'a'\nkey = 'k'\n[[keys]]\nname = 'a'\nkey = 'l'\n",
            "keys[1] (a): another key has this name; stored data belongs to the name",
        ),
        (
            "[[keys]]\nname = 'a'\nkey = 'k'\n[[keys]]\nname = 'b'\nkey = ' k '\n",
            "keys[1] (b): another name has this key",
        ),
        ("[[keys]]\nname = ''\nkey = 'k'\n", "keys[0] (): a name is needed"),
        ("[[keys]]\nname = 'a'\nkey = ' '\n", "keys[0] (a): a key or key_env is needed"),
        ("[server]\nhosts = ['http://x']\n", "server.hosts[0]: 'http://x' is not a host;"),
        ("[server]\nhosts = ['x', '*']\n", "server.hosts[1]: '*' is not a host;"),
        ("[server]\nhosts = ['x:80']\n", "server.hosts[0]: 'x:80' is not a host;"),
        ("[server]\norigins = ['null']\n", "server.origins[0]: 'null' is not an origin;"),
        ("[server]\norigins = ['*']\n", "server.origins[0]: '*' is not an origin;"),
        ("[server]\norigins = ['https://x/']\n", "server.origins[0]: 'https://x/' is not an origin;"),
        ("[store]\nurl = 'redis://x'\n", "store.url:"),
        ("[server]\nhost = '0.0.0.0'\n", "server.host: 0.0.0.0 can be reached from outside"),
    ],
)
def test_a_wrong_setting_is_one_clear_line_and_exit_2(tmp_path, config, said):
    (tmp_path / "toolwire.toml").write_text(config)
    result = toolwire("serve", "--port", "0", cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("serve", "--config", "none.toml"), "none.toml: there is no such file"),
        (("serve", "--workers", "0"), "--workers:"),
        (("replay", "none.jsonl"), "none.jsonl:"),
    ],
)
def test_a_wrong_option_is_one_clear_line_and_exit_2(tmp_path, args, said):
    result = toolwire(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr


def test_a_port_in_use_is_one_clear_line_and_exit_2(gateway: Gateway, tmp_path):
    port = gateway.url.rpartition(":")[2]
    result = toolwire("serve", "--port", port, cwd=tmp_path)
    assert result.returncode == 2
    message = rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use: (.*) has it; --port 0 chooses a free one"
    holder = re.search(message, result.stderr)
    assert holder is not None, result.stderr
    # A gateway that the process server has forked has the name of that program.
    assert re.fullmatch(rf"(another toolwire|python\S*) \(pid {gateway.process.pid}\)", holder[1])


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: Linux tells who has a port")
@pytest.mark.parametrize(("name", "shown"), [("toolwire", "another toolwire"), ("other", "python")])
def test_the_program_that_has_a_port_is_named(tmp_path: Path, name: str, shown: str):
    program = tmp_path / name
    listening = "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    program.write_text(f"import socket; {listening}")
    process = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = find_listener(int(process.stdout.readline()))
        process.stdin.close()
    assert re.fullmatch(rf"{shown}\S* \(pid {process.pid}\)", found)


def test_a_wrong_flag_is_named(tmp_path):
    env = {"PATH": "/usr/bin", "PROXY_TOOL_BLOCK_MAX": "many"}
    result = processes.run(
        [sys.executable, "-m", "toolwire", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=120,
        check=False,
    )
    assert (result.returncode, "PROXY_TOOL_BLOCK_MAX" in result.stderr) == (2, True)


def test_an_outside_address_is_served_when_there_are_keys(http, start):
    gateway = start('[server]\nhost = "0.0.0.0"\n[[keys]]\nname = "a"\nkey = "k"\n')
    port = gateway.url.rpartition(":")[2]
    assert http.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_health_readiness_and_metrics(http: httpx.Client, gateway: Gateway):
    assert http.get(gateway.url + "/healthz").json()["status"] == "ok"
    assert http.get(gateway.url + "/readyz").json()["backends"] == ["up", "demo"]
    http.post(f"{gateway.base_url}/chat/completions", json=chat_body("demo-parallel", tools=FIND))
    metrics = http.get(gateway.url + "/metrics").text
    assert 'toolwire_turns_total{backend="demo",dialect="chat",status="200"}' in metrics
    assert 'toolwire_calls_total{backend="demo",dialect="chat"}' in metrics


def test_a_turn_is_one_log_line_without_any_content(http, start):
    gateway = start()
    secret = "Find my secret prompt."
    body = chat_body("demo", tools=FIND, messages=[{"role": "user", "content": secret}])
    http.post(f"{gateway.base_url}/chat/completions", json=body, headers={"authorization": "Bearer sk-secret"})
    [line] = gateway.wait_for_turns(1)
    assert line["has_tool_calls"] is True
    assert (line["tool_call_count"], line["tool_call_names"], line["output_mode"]) == (1, ["find"], "openai-json")
    assert len(line["tool_call_ids"]) == 1
    assert (line["dialect"], line["backend"], line["status"], line["reason"]) == ("chat", "demo", 200, "calls")
    assert secret not in "\n".join(gateway.log)
    assert "sk-secret" not in "\n".join(gateway.log)


def test_names_in_a_log_line_are_short_and_have_no_control_characters(http, start, upstream):
    wild = "\u202e\x1b[31m\n" + "x" * 100_000
    calls = [call(f"c{number}", "find", "{}") for number in range(300)]
    upstream.replies["many"] = Reply([stream(created(), call(wild, wild, "{}"), *calls, completed())])
    gateway = start("[debug]\nlevel = 'debug'\n" + backend(upstream.url))
    http.post(f"{gateway.base_url}/chat/completions", json=chat_body("demo/" + wild, **{wild: 1}))
    http.post(f"{gateway.base_url}/chat/completions", json=chat_body("up/many", tools=FIND))
    first, second = gateway.wait_for_turns(2)
    assert first["model"].startswith("demo/\ufffd\ufffd[31m\ufffdxxx")
    assert second["tool_call_count"] == 301
    for line in gateway.log:
        assert len(line) < 70_000
        assert "\u202e" not in line
    for names in (second["tool_call_names"], second["tool_call_ids"]):
        assert len(names) <= 128
        assert all(len(name) <= 129 and name.isprintable() for name in names)


def test_a_log_that_nobody_reads_stops_nothing(http, tmp_path):
    (tmp_path / "toolwire.toml").write_text('[store]\nurl = "memory:"\n')
    command = [sys.executable, "-m", "toolwire", "serve", "--config", "toolwire.toml", "--port", "0"]
    process = processes.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stderr is not None
    try:
        while not (line := process.stderr.readline()).startswith(b"toolwire ready on "):
            assert line
        url = line.split()[-1].decode()
        for _ in range(30):
            for _ in range(50):
                assert http.post(f"{url}/v1/chat/completions", json=chat_body("demo")).status_code == 200
            metrics = http.get(f"{url}/metrics").text
            [dropped] = [line for line in metrics.splitlines() if line.startswith("toolwire_log_lines_dropped_total ")]
            if float(dropped.split()[1]) > 0:
                break
        assert float(dropped.split()[1]) > 0
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_client_that_leaves_stops_the_upstream_at_once(gateway: Gateway, upstream: Upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("x")), Hold()])
    upstream.gone.clear()
    body = chat_body("up/endless", stream=True)
    with httpx.Client(trust_env=False) as client:
        with client.stream("POST", f"{gateway.base_url}/chat/completions", json=body) as response:
            next(response.iter_bytes())
    assert upstream.gone.wait(60)


def test_a_plain_client_that_leaves_stops_the_upstream_too(gateway, upstream):
    upstream.replies["endless-plain"] = Reply([stream(created(), text("x")), Hold()])
    upstream.gone.clear()
    body = chat_body("up/endless-plain")
    leave_when(gateway, "/v1/chat/completions", body, lambda: upstream.of("endless-plain"))
    assert upstream.gone.wait(60)
    left = until(lambda: [turn for turn in gateway.turns() if turn.get("model") == "up/endless-plain"])
    assert [turn["status"] for turn in left] == [499]


def test_a_slow_client_slows_the_upstream(gateway, upstream):
    big = text("x" * 60_000)
    upstream.replies["fast"] = Reply([created(), *[big] * 800, completed()])
    before = upstream.sent
    with (
        httpx.Client(trust_env=False, timeout=120) as client,
        client.stream(
            "POST", f"{gateway.base_url}/chat/completions", json=chat_body("up/fast", stream=True)
        ) as response,
    ):
        chunks = response.iter_raw()
        next(chunks)
        rests, sent = 0, 0
        while rests < 20:  # requests during which the upstream sends nothing
            httpx.get(f"{gateway.url}/healthz", trust_env=False, timeout=60)
            rests = rests + 1 if upstream.sent == sent else 0
            sent = upstream.sent
        assert upstream.sent - before < 40_000_000, "the upstream was read although nobody reads us"
        total = sum(len(chunk) for chunk in chunks)
    assert total > 48_000_000 * 0.9


def test_sigterm_lets_running_turns_finish_and_exits_0(http, start, upstream):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["finishing"] = Reply(gate)
    gateway = start(backend(upstream.url))
    got: dict[str, object] = {}

    def ask() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            response = client.post(f"{gateway.base_url}/chat/completions", json=chat_body("up/finishing", stream=True))
            got.update(fold_chat(list(read_sse(response))))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: upstream.of("finishing"))
    gateway.process.send_signal(signal.SIGTERM)
    until(lambda: not listens(gateway))
    gate.open()
    asking.join(60)
    assert got["message"]["content"] == "ab"
    assert gateway.stop() == 0


def listens(gateway: Gateway) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))).close()
    except ConnectionError:
        return False
    return True


def test_a_drain_has_a_limit(start, upstream):
    upstream.replies["never"] = Reply([stream(created(), text("a")), Hold()])
    gateway = start("[server]\ndrain = 1\n" + backend(upstream.url))
    frames: list[object] = []

    def ask() -> None:
        body = chat_body("up/never", stream=True)
        with httpx.Client(trust_env=False, timeout=120) as client:
            with client.stream("POST", f"{gateway.base_url}/chat/completions", json=body) as response:
                frames.extend(read_sse(response))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: frames)
    assert gateway.stop() == 0
    asking.join(60)
    assert fold_chat(frames)["error"]["code"] == "shutting_down"


def test_a_recording_holds_the_turn_and_can_be_served_again(http, start, upstream, tmp_path):
    secret = text("the key is sk-abcdefghijklmnop")
    upstream.replies["taped"] = Reply([stream(created(), secret, call("c1", "find", '{"q":"x"}'), completed())])
    gateway = start('[debug]\nrecord = "tapes"\n' + backend(upstream.url))
    body = chat_body("up/taped", stream=True, tools=FIND)
    first = fold_chat(list(read_sse(http.post(f"{gateway.base_url}/chat/completions", json=body))))
    gateway.stop()
    [tape] = (tmp_path / "tapes").glob("*.jsonl")
    assert "sk-abcdefghijklmnop" not in tape.read_text()
    again = start(f'[[backends]]\nname = "again"\nkind = "replay"\nfile = "{tape}"\n')
    replayed = fold_chat(
        list(read_sse(http.post(f"{again.base_url}/chat/completions", json={**body, "model": "again/x"})))
    )
    assert replayed["message"]["tool_calls"] == first["message"]["tool_calls"]
    shown = toolwire("replay", str(tape), cwd=tmp_path)
    assert shown.returncode == 0
    assert re.search(r"^    \d\.\d{3} s +call +find c1 \{\"q\":\"x\"\}$", shown.stdout, re.MULTILINE)
    assert "chat client, responses backend, model taped, status 200" in shown.stdout
    wire = toolwire("replay", str(tape), "--as", "chat", cwd=tmp_path)
    assert '"finish_reason":"tool_calls"' in wire.stdout


def test_a_recording_holds_both_requests_without_their_secrets(http, start, upstream, tmp_path):
    upstream.replies["taped"] = Reply([stream(created(), text("hello"), completed())])
    gateway = start('[debug]\nrecord = "tapes"\n' + backend(upstream.url))
    said = 'My key is sk-abcdefghijklmnop, and the config {"password": "hunter2", "city": "Paris"}.'
    body = chat_body("up/taped", stream=True, tools=FIND, messages=[{"role": "user", "content": said}])
    http.post(f"{gateway.base_url}/chat/completions", json=body, headers={"authorization": "Bearer my-own-key-12345"})
    gateway.stop()
    [tape] = (tmp_path / "tapes").glob("*.jsonl")
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    asked, sent = json.loads(lines[1]["request"]), json.loads(lines[2]["sent"])
    assert (asked["model"], sent["model"], lines[2]["path"]) == ("up/taped", "taped", "/responses")
    kept = 'My key is [removed], and the config {"password": "[removed]", "city": "Paris"}.'
    assert asked["messages"][-1]["content"] == kept
    assert kept in json.dumps(sent, ensure_ascii=False).replace("\\", "")
    for secret in ("sk-abcdefgh", "hunter2", "my-own-key"):
        assert secret not in tape.read_text()
    shown = toolwire("replay", str(tape.parent), "--request", tape.stem[:6], cwd=tmp_path)
    assert "client asks: model up/taped, streamed" in shown.stdout
    assert "sent to the backend: POST /responses, model taped" in shown.stdout
    assert f"    user       {kept}" in shown.stdout


def test_a_turn_whose_backend_never_answered_is_recorded_too(http, start, tmp_path):
    gateway = start('[debug]\nrecord = "tapes"\n' + backend("http://127.0.0.1:1/v1"))
    http.post(f"{gateway.base_url}/chat/completions", json=chat_body("up/gone"))
    gateway.stop()
    [tape] = (tmp_path / "tapes").glob("*.jsonl")
    shown = toolwire("replay", str(tape), cwd=tmp_path)
    assert "status none" in shown.stdout
    assert "failure    the backend gave no answer" in shown.stdout
    refused = toolwire("replay", str(tape), "--as", "chat", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "there was no answer" in refused.stderr


def test_the_help_of_replay_is_whole(tmp_path):
    shown = " ".join(toolwire("replay", "--help", cwd=tmp_path).stdout.replace("│", " ").split())
    assert "Recordings, as debug.record writes them, or directories of recordings." in shown
    for option in ("--request", "--dialect", "--direction", "--event", "--call", "--full", "--json", "--as"):
        assert option in shown


def test_nothing_in_a_recording_steers_the_terminal(tmp_path):
    said = "x\u202e\x9b\x1b[2J\u2066y"
    lines = [{"toolwire": 1, "kind": "responses", "model": "m", "content_type": "text/event-stream"}]
    for block in stream(created(), text(said), completed()).decode().split("\n\n")[:-1]:
        name, _, data = block.partition("\n")
        lines.append({"t": 0, "event": name.removeprefix("event: "), "data": data.removeprefix("data: ")})
    tape = tmp_path / "tape.jsonl"
    tape.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for options in ((), ("--json",), ("--full",)):
        shown = toolwire("replay", str(tape), *options, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert clean(shown.stdout) == shown.stdout
    shown = toolwire("replay", str(tape), "--as", "all", cwd=tmp_path)
    assert clean(shown.stdout) == shown.stdout
    [plain] = [json.loads(line) for line in shown.stdout.splitlines() if '"object":"chat.completion"' in line]
    assert plain["choices"][0]["message"]["content"] == said


def test_the_plain_form_of_a_failed_turn_is_its_error(tmp_path):
    lines = [{"toolwire": 1, "kind": "responses", "model": "m", "content_type": "text/event-stream"}]
    for block in stream(created(), text("hello")).decode().split("\n\n")[:-1]:  # and no end
        name, _, data = block.partition("\n")
        lines.append({"t": 0, "event": name.removeprefix("event: "), "data": data.removeprefix("data: ")})
    tape = tmp_path / "tape.jsonl"
    tape.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for form in ("chat", "responses", "messages", "gemini"):
        shown = toolwire("replay", str(tape), "--as", form, cwd=tmp_path)
        assert "\\u000d" not in shown.stdout, "line ends are not shown as characters"
        plain = json.loads(shown.stdout.partition(f"# {form}, plain\n")[2])
        assert plain["error"]["message"]


def test_the_old_name_of_recording_still_works(http, start, tmp_path):
    gateway = start(CODEX_DUMP_SSE="1")
    http.post(f"{gateway.base_url}/chat/completions", json=chat_body("demo"))
    gateway.stop()
    [tape] = (tmp_path / "recordings").glob("*.jsonl")
    assert json.loads(tape.read_text().splitlines()[0])["kind"] == "demo"


def test_an_openai_key_in_the_environment_is_enough(http, start, tmp_path):
    (tmp_path / "toolwire.toml").write_text("")
    gateway = start(OPENAI_API_KEY="sk-x")
    assert http.get(gateway.url + "/readyz").json()["backends"] == ["openai", "demo"]
