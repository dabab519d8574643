"""What `toolwire serve` says when it starts: on a terminal all that one wants to know, in a pipe the one ready line."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.agent.terminal import Terminal
from tests.commands.desk import PROGRAM, Desk
from tests.commands.server import Answer, Server, Silence
from tests.support import processes
from toolwire import __version__

LIST = (200, "application/json", b'{"data": [{"id": "a"}, {"id": "b"}]}')
NO_MODEL = (400, "application/json", b'{"error": {"message": "you must provide a model parameter"}}')
ASK = '{"model": "%s", "messages": [{"role": "user", "content": "Hello"}]}'


def served(method: str, path: str, headers: Mapping[str, str]) -> Answer:
    return LIST if method == "GET" else NO_MODEL


def local(url: str, name: str = "local", **fields: str) -> str:
    more = "".join(f"{key} = {value}\n" for key, value in fields.items())
    return f'[[backends]]\nname = "{name}"\nkind = "chat"\nbase_url = "{url}"\n{more}'


@contextmanager
def serving(desk: Desk, *arguments: str, **more: str) -> Iterator[Terminal]:
    environment = {**desk.environment, "NO_COLOR": "1", **more}
    command = [*PROGRAM, "serve", *(arguments or ("--port", "0"))]
    with Terminal(command, environment, cwd=desk.folder, columns=300, rows=40) as terminal:
        yield terminal


def after_health(terminal: Terminal) -> list[str]:
    """All lines, once the last backend is known."""
    terminal.until("built in")
    return terminal.lines


def paste(desk: Desk, line: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Type a line into a shell elsewhere."""
    environment = {**desk.environment, **more}
    return processes.run(
        ["/bin/sh", "-c", line], cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_terminal_gets_everything(desk: Desk):
    with Server(served) as server:
        desk.configure(
            local(f"{server.url}/v1", models='["qwen3", "gemma-*"]', aliases='{ fast = "qwen3" }')
            + local("http://127.0.0.1:9/v1", "away")
        )
        with serving(desk) as terminal:
            lines = after_health(terminal)
            url = lines[3].removeprefix("toolwire ready on ")
            launch = f"{PROGRAM[0]} -m toolwire launch -p {url.rpartition(':')[2]}"
            assert lines[:14] == [
                f"Toolwire {__version__}",
                f"configuration  {desk.config}",
                f"store          {desk.store}",
                f"toolwire ready on {url}",
                f"toolwire: console {url}/?token={(desk.store.parent / 'console-token').read_text().strip()}",
                "",
                f"curl {url}/v1/chat/completions -H content-type:application/json -d '{ASK % 'qwen3'}'",
                f"{launch} claude",
                f"{launch} codex",
                f"{launch} gemini",
                "",
                f"✓ local  qwen3, fast, gemma-*; {server.url}/v1: it answers, with 2 models; clients send their own key, if it needs one",
                "✗ away   away/MODEL; http://127.0.0.1:9/v1: it cannot be reached: connection refused. Is the server running, and is base_url right?",
                "✓ demo   demo, demo-slow, demo-error, demo-rate-limit, demo-error-middle and 8 more; built in",
            ]


def test_what_is_to_be_pasted_works(desk: Desk):
    with serving(desk) as terminal:
        lines = after_health(terminal)
        assert lines[1] == f"configuration  none; toolwire init writes {desk.config}"
        curl, claude, codex = lines[6:9]
        assert '"object":"chat.completion"' in paste(desk, curl).stdout
        for line in (claude, codex):
            program = desk.home / line.split()[-1]
            program.write_text("#!/bin/sh\necho started\n")
            program.chmod(0o755)
            done = paste(desk, line, PATH=f"{desk.home}:{desk.environment['PATH']}")
            assert (done.stdout, "on the gateway at" in done.stderr) == ("started\n", True), done.stderr


def test_a_key_of_the_gateway_is_named_but_not_shown(desk: Desk):
    desk.configure('[[keys]]\nname = "me"\nkey_env = "MY_KEY"\n')
    with serving(desk, MY_KEY="secret-1") as terminal:
        curl = after_health(terminal)[6]
        assert '-H "authorization: Bearer $MY_KEY"' in curl
        assert '"object":"chat.completion"' in paste(desk, curl, MY_KEY="secret-1").stdout
        assert "secret-1" not in terminal.text
    desk.configure('[[keys]]\nname = "me"\nkey = "secret-2"\n')
    with serving(desk) as terminal:
        assert '-H "authorization: Bearer KEY"' in after_health(terminal)[6]
        assert "secret-2" not in terminal.text


def test_a_file_that_launch_would_not_read_is_named(desk: Desk):
    here = desk.folder / "toolwire.toml"
    here.write_text('[server]\nport = 8813\n[store]\nurl = "memory:"\n[[backends]]\npreset = "deepseek"\n')
    with serving(desk, "-c", "toolwire.toml", DEEPSEEK_API_KEY="k") as terminal:
        lines = after_health(terminal)
        assert lines[2] == "store          in memory"
        assert shlex.split(lines[7])[3:] == ["launch", "-c", str(here), "-m", "MODEL", "claude"]


def test_a_backend_that_does_not_answer_is_given_up(desk: Desk):
    desk.give_patience(1)
    with Silence() as silence, Server(silence) as server:
        desk.configure(local(f"{server.url}/v1"))
        with serving(desk) as terminal:
            terminal.until("local  local/MODEL; ")
            assert "no answer in 1 seconds" in terminal.text


def test_a_backend_that_does_not_answer_delays_nothing(desk: Desk):
    desk.give_patience(600)
    with Silence() as silence, Server(silence) as server:
        desk.configure(local(f"{server.url}/v1"))
        with serving(desk) as terminal:
            terminal.until("launch -p")
            assert silence.asked.acquire(timeout=60)
            assert "✗" not in terminal.text
            url = next(line for line in terminal.lines if "ready on" in line).split()[-1]
            assert paste(desk, f"curl -s {url}/healthz").stdout.startswith('{"status":"ok"')
            terminal.look()
            assert "local/MODEL; " not in terminal.text, "it is still awaited"


def test_ctrl_c_while_backends_are_asked_ends_at_once(desk: Desk):
    desk.give_patience(600)
    with Silence() as silence, Server(silence) as server:
        desk.configure(local(f"{server.url}/v1"))
        with serving(desk) as terminal:
            terminal.until("launch -p")
            assert silence.asked.acquire(timeout=60)
            terminal.press_ctrl_c()
            assert terminal.end() == 0
            assert "Traceback" not in terminal.text
            assert "local/MODEL" not in terminal.text


def test_marks_are_coloured_where_that_is_wanted(desk: Desk):
    with serving(desk, NO_COLOR="") as terminal:
        after_health(terminal)
        assert terminal.screen.colours == {"32"}


def test_a_port_that_is_taken_is_told_after_the_file(desk: Desk):
    with Server(served) as server, serving(desk, "--port", str(server.port)) as terminal:
        assert terminal.end() == 2
        assert terminal.lines[1].startswith("configuration ")
        reason = f"Address already in use: python (pid {os.getpid()}) has it; --port 0 chooses a free one"
        assert terminal.lines[-1] == f"toolwire: server.port: cannot listen on 127.0.0.1:{server.port}: {reason}"


def test_a_pipe_gets_the_ready_line_and_the_link_to_the_console(desk: Desk, tmp_path: Path):
    desk.configure(local("http://127.0.0.1:9/v1"))
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = processes.Popen(
            [*PROGRAM, "serve", "--port", "0"], cwd=desk.folder, env=desk.environment, stdout=file, stderr=file
        )
        end = time.monotonic() + 60
        while said.read_text().count("\n") < 2 and time.monotonic() < end:
            time.sleep(0.05)
        url = said.read_text().split("\n")[0].split()[-1]
        assert paste(desk, f"curl -s {url}/healthz").stdout.startswith('{"status":"ok"')
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    line, console = said.read_text().splitlines()
    assert line.startswith("toolwire ready on http://127.0.0.1:")
    assert console.startswith(f"toolwire: console {line.split()[-1]}/?token=")


def test_a_gateway_without_a_place_for_its_lines_serves(desk: Desk, tmp_path: Path):
    store = tmp_path / "kept.db"
    desk.configure(f'[server]\nport = 8814\n[store]\nurl = "sqlite:{store}"\n')
    command = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *PROGRAM, "serve"]
    process = processes.Popen(command, cwd=desk.folder, env=desk.environment)
    try:
        asked = "i=0; until curl -s http://127.0.0.1:8814/healthz || [ $i -gt 200 ]; do i=$((i+1)); sleep 0.1; done"
        assert paste(desk, asked).stdout.startswith('{"status":"ok"')
    finally:
        process.terminate()
        assert process.wait(120) == 0
