"""`toolwire launch`: the program, its environment and the gateway, which is there as long as it is needed.

The programs here only say what they were given; the real ones are launched in tests/clients/test_launch.py.
"""

import json
import os
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.terminal import Terminal
from tests.commands.desk import PROGRAM, Desk
from tests.commands.server import Server
from tests.support import processes
from tests.support.fleet import until
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Upstream
from toolwire.cli.clients import PROGRAMS
from toolwire.cli.temporary_gateway import TemporaryGateway

PROGRAM_TEXT = """#!{python}
import json, os, re, signal, sys, time, urllib.request
homes = "/crush.json", "/.gemini/settings.json"
read = [value + name for value in os.environ.values() for name in ("", *homes) if (value + name).endswith(".json")]
files = {{path: open(path).read() for path in read if os.path.isfile(path)}}
address = re.search(r"http://127\\.0\\.0\\.1:(?!9/)\\d+", str((dict(os.environ), sys.argv, files)))[0]
with urllib.request.urlopen(address + "/healthz") as answer:
    health = json.load(answer)
with open(os.environ["HOME"] + "/said.json", "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ), "url": address, "pid": os.getpid(), "files": files,
               "gateway": health["status"]}}, file)
for word in sys.argv[1:]:
    if word == "wait":
        def leave(number, frame):
            os.write(1, f"got {{signal.Signals(number).name}}\\n".encode())
            sys.exit(5)
        for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"):
            signal.signal(getattr(signal, name), leave)
        os.write(1, b"ready\\n")
        for _ in range(6000):  # a signal just before a sleep is handled after it
            time.sleep(0.02)
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith("exit="):
        sys.exit(int(word[5:]))
"""


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """A desk with all programs on the PATH, and a port where no gateway is."""
    folder = desk.home / "bin"
    folder.mkdir()
    for name in (*PROGRAMS, "own-agent"):
        program = folder / name
        program.write_text(PROGRAM_TEXT.format(python=PROGRAM[0]))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    desk.environment["PATH"] = f"{folder}{os.pathsep}{desk.environment['PATH']}"
    desk.configure(AWAY)
    return desk


AWAY = "[server]\nport = 8810\n"


def said(desk: Desk) -> dict[str, Any]:
    """What the program was given."""
    return json.loads((desk.home / "said.json").read_text())


def is_gone(url: str, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/healthz", trust_env=False)
        except httpx.TransportError:
            return True
        time.sleep(0.05)
    return False


def test_a_gateway_is_started_and_ends_with_the_program(desk: Desk):
    done = desk.run("launch", "claude")
    given = said(desk)
    why = "(none answers at http://127.0.0.1:8810)"
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"toolwire: claude with demo on a gateway of its own, {given['url']} {why}\n"
    assert given["gateway"] == "ok"
    assert is_gone(given["url"], 0.1)


def test_arguments_after_the_name_are_the_programs_own(desk: Desk):
    own = ["--help", "-p", "two words", "--config", "x", "--", "-m"]
    desk.good("launch", "-m", "demo-slow", "claude", *own)
    assert said(desk)["arguments"] == own
    assert said(desk)["environment"]["ANTHROPIC_MODEL"] == "demo-slow"
    desk.good("launch", "claude", "--", "-p", "hi")
    assert said(desk)["arguments"] == ["-p", "hi"]


def test_a_model_among_them_counts_too(desk: Desk):
    desk.good("launch", "claude", "-p", "hi", "--model", "demo-slow")
    assert said(desk)["environment"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "demo-slow"
    desk.good("launch", "claude", "--model=opus")
    assert said(desk)["environment"]["ANTHROPIC_MODEL"] == "demo"


def test_codex_is_told_by_arguments(desk: Desk):
    desk.good("launch", "codex", "exec", "hi")
    given = said(desk)
    assert given["arguments"][-2:] == ["exec", "hi"]
    assert f'model_providers.toolwire.base_url="{given["url"]}/v1"' in given["arguments"]
    assert 'model="demo"' in given["arguments"]
    assert given["environment"]["TOOLWIRE_KEY"] == "unused"


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_told_the_gateway_the_key_and_the_model(desk: Desk, tmp_path: Path, name: str, running: bool):
    keys = '[[keys]]\nname = "me"\nkey_env = "TEAM"\n'
    desk.configure(AWAY + keys)
    gateway = Gateway(tmp_path, '[[keys]]\nname = "me"\nkey = "team-key"\n') if running else None
    try:
        if gateway is not None:
            desk.configure(f"[server]\nport = {gateway.url.rpartition(':')[2]}\n{keys}")
        assert desk.run("launch", "-m", "demo-slow", name, "exit=3", TEAM="team-key").returncode == 3
    finally:
        if gateway is not None:
            gateway.stop()
    given = said(desk)
    told = str((given["environment"], given["arguments"], given["files"]))
    assert given["arguments"][-1] == "exit=3"
    assert "demo-slow" in told
    assert "team-key" in given["environment"].values()
    assert "team-key" not in str((given["arguments"], given["files"]))
    assert [path for path in given["files"] if Path(path).exists()] == []
    assert gateway is None or given["url"] == gateway.url


def test_the_model_in_a_programs_own_arguments_may_have_its_prefix(desk: Desk):
    desk.good("launch", "opencode", "run", "-m", "toolwire/demo-slow", "hi")
    assert '"toolwire/demo-slow"' in said(desk)["environment"]["OPENCODE_CONFIG_CONTENT"]


def test_gemini_has_a_home_with_a_copy_of_the_users_settings(desk: Desk):
    own = Path(desk.environment["HOME"]) / ".gemini" / "settings.json"
    own.parent.mkdir()
    own.write_text('{"mcpServers": {"mine": {}}, "security": {"auth": {"selectedType": "oauth-personal"}}}')
    desk.good("launch", "-m", "demo-slow", "gemini", "-p", "hi")
    given = said(desk)
    assert given["environment"]["GOOGLE_GEMINI_BASE_URL"] == given["url"]
    assert given["environment"]["GEMINI_CLI_TRUSTED_FOLDERS_PATH"] == str(own.parent / "trustedFolders.json")
    [settings] = [json.loads(text) for path, text in given["files"].items() if path != str(own)]
    assert settings == {
        "mcpServers": {"mine": {}},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "model": {"name": "demo-slow"},
    }
    assert "oauth-personal" in own.read_text()


def test_any_other_command_gets_the_variables_of_all_vendors(desk: Desk):
    desk.good("launch", "--", "own-agent", "-m", "its.own", OPENAI_API_KEY="mine")
    given = said(desk)
    url, variables = given["url"], given["environment"]
    assert given["arguments"] == ["-m", "its.own"]
    assert {variables["OPENAI_BASE_URL"], variables["OPENAI_API_BASE"]} == {f"{url}/v1"}
    assert {variables["ANTHROPIC_BASE_URL"], variables["GOOGLE_GEMINI_BASE_URL"]} == {url}
    assert {variables[f"{name}_API_KEY"] for name in ("OPENAI", "ANTHROPIC", "GEMINI")} == {"unused"}
    assert "OPENAI_MODEL" not in variables
    desk.good("launch", "-m", "demo-slow", "own-agent")
    assert {said(desk)["environment"][f"{name}_MODEL"] for name in ("OPENAI", "ANTHROPIC")} == {"demo-slow"}


@pytest.mark.parametrize(("word", "code"), [("exit=7", 7), ("die", 137)])
def test_the_exit_code_is_that_of_the_program(desk: Desk, word: str, code: int):
    assert desk.run("launch", "claude", word).returncode == code
    assert is_gone(said(desk)["url"])


def started(desk: Desk) -> "subprocess.Popen[str]":
    """A launched program that waits."""
    process = processes.Popen(
        [*PROGRAM, "launch", "claude", "wait"],
        cwd=desk.folder,
        env=desk.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"])
def test_signals_are_passed_on(desk: Desk, name: str):
    process = started(desk)
    process.send_signal(getattr(signal, name))
    assert process.communicate(timeout=120)[0] == f"got {name}\n"
    assert process.returncode == 5
    assert is_gone(said(desk)["url"], 0.1)


def test_the_gateway_ends_even_if_its_starter_is_killed(desk: Desk):
    process = started(desk)
    process.kill()
    try:
        process.wait(120)
        assert is_gone(said(desk)["url"])
    finally:
        os.kill(said(desk)["pid"], signal.SIGKILL)
        process.communicate(timeout=120)


def test_ctrl_c_in_a_terminal_is_for_the_program(desk: Desk):
    with Terminal([*PROGRAM, "launch", "claude", "wait"], desk.environment, cwd=desk.folder) as terminal:
        terminal.until("ready")
        terminal.press_ctrl_c()
        assert terminal.end() == 5
    assert terminal.text.count("got SIGINT") == 1
    assert "Traceback" not in terminal.text


def test_a_gateway_that_runs_is_used_and_the_program_takes_our_place(desk: Desk, tmp_path: Path):
    gateway = Gateway(tmp_path)
    try:
        desk.configure(f"[server]\nport = {gateway.url.rpartition(':')[2]}\n")
        process = processes.Popen(
            [*PROGRAM, "launch", "claude"], cwd=desk.folder, env=desk.environment, stderr=subprocess.PIPE, text=True
        )
        line = process.communicate(timeout=120)[1]
        assert line == f"toolwire: claude with demo on the gateway at {gateway.url}\n"
        assert (said(desk)["url"], said(desk)["pid"]) == (gateway.url, process.pid)
    finally:
        gateway.stop()


def test_the_models_of_the_gateway_that_runs_count_where_the_settings_name_none(
    desk: Desk, upstream: Upstream, tmp_path: Path
):
    gateway = Gateway(tmp_path, backend(upstream.url, models='["theirs"]'))
    try:
        desk.configure(f"[server]\nport = {gateway.url.rpartition(':')[2]}\n")
        desk.good("launch", "claude")
        assert said(desk)["environment"]["ANTHROPIC_MODEL"] == "theirs"
    finally:
        gateway.stop()


def test_a_gateway_without_the_model_is_left_alone(desk: Desk, upstream: Upstream, tmp_path: Path):
    gateway = Gateway(tmp_path)
    try:
        port = gateway.url.rpartition(":")[2]
        desk.configure(f"[server]\nport = {port}\n" + backend(upstream.url, models='["mine"]'))
        done = desk.run("launch", "claude")
        assert said(desk)["environment"]["ANTHROPIC_MODEL"] == "mine"
        assert said(desk)["url"] != gateway.url
        assert done.stderr.endswith(f"(another one answers at {gateway.url})\n")
    finally:
        gateway.stop()


def test_something_else_on_the_port_is_no_gateway(desk: Desk):
    with Server(lambda method, path, headers: (200, "text/html", b"<html>")) as server:
        desk.configure(f"[server]\nport = {server.port}\n")
        assert desk.run("launch", "claude").stderr.endswith(f"(something else answers at {server.url})\n")


def test_a_store_that_another_gateway_uses_is_no_obstacle(desk: Desk, tmp_path: Path):
    store = f'[store]\nurl = "sqlite:{tmp_path / "s.db"}"\n'
    gateway = Gateway(tmp_path, store)
    try:
        desk.configure(AWAY + store)
        desk.good("launch", "claude")
    finally:
        gateway.stop()


SECRETS = {"OPENAI_API_KEY": "1", "GITHUB_TOKEN": "2", "UPSTREAM": "3", "TEAM": "4", "EDITOR": "vi"}


def test_the_program_gets_the_key_that_it_needs_and_no_other_secret(desk: Desk, upstream: Upstream):
    desk.configure(
        AWAY
        + '[agent]\ninherit = ["GITHUB_TOKEN"]\n[[keys]]\nname = "me"\nkey_env = "TEAM"\n'
        + backend(upstream.url, models='["m"]', api_key_env='"UPSTREAM"')
    )
    desk.good("launch", "claude", **SECRETS)
    environment = said(desk)["environment"]
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "4"
    assert environment["ANTHROPIC_API_KEY"] == ""
    assert {name for name in SECRETS if name in environment} == {"GITHUB_TOKEN", "EDITOR"}


def test_nothing_is_written_into_the_home_of_the_user(desk: Desk):
    desk.configure(AWAY + '[store]\nurl = "memory:"\n[console]\nenabled = false\n')
    before = {*desk.home.rglob("*")}
    desk.good("launch", "codex")
    assert {*desk.home.rglob("*")} - before == {desk.home / "said.json"}


def test_the_log_of_the_gateway_can_be_kept(desk: Desk):
    desk.good("launch", "--log", "gateway.log", "claude")
    log = desk.folder / "gateway.log"
    assert f"toolwire ready on {said(desk)['url']}\n" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_the_log_is_closed_when_the_gateway_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config, log = tmp_path / "toolwire.toml", tmp_path / "gateway.log"
    config.write_text("[console]\nenabled = false\n")
    with TemporaryGateway(str(config), log):
        assert is_open(log)
    until(lambda: not is_open(log))


def is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    for descriptor in range(3, 1000):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return True
    return False


def test_a_gateway_that_does_not_start_says_why(desk: Desk):
    desk.configure(AWAY + '[gateway_tools]\ntools = ["nowhere:tool"]\n')
    done = desk.run("launch", "claude")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"toolwire: the gateway did not start: {desk.config}: gateway_tools.tools: ")
    assert done.stderr.count("\n") == 1


def test_the_directory_is_not_read(desk: Desk):
    (desk.folder / "toolwire.toml").write_text("[server]\nprot = 1\n")
    (desk.folder / "toolwire").mkdir()
    (desk.folder / "toolwire" / "__init__.py").write_text("raise SystemExit('trapped')")
    script = processes.run(
        [str(Path(PROGRAM[0]).with_name("toolwire")), "launch", "claude"],
        cwd=desk.folder,
        env=desk.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert script.returncode == 0, script.stderr
