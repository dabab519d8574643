"""`toolwire doctor`: a line for everything, with what to do; exit code 1 if something is red."""

import base64
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.commands.server import Answer, Server, Silence
from tests.support.gateway import Gateway

LIST = (200, "application/json", b'{"data": [{"id": "a"}, {"id": "b"}]}')
NO_MODEL = (400, "application/json", b'{"error": {"message": "you must provide a model parameter"}}')
REFUSED = (401, "application/json", b'{"error": {"message": "Incorrect API key provided: sk-secret"}}')
PAGE = (404, "text/html", b"<html>Not found</html>")


def served(method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """A server with Chat Completions under /v1, which wants a key."""
    if path not in ("/v1/models", "/v1/chat/completions"):
        return PAGE
    if headers.get("authorization") != "Bearer good":
        return REFUSED
    return LIST if method == "GET" else NO_MODEL


def local(url: str, **fields: str) -> str:
    more = "".join(f"{key} = {value}\n" for key, value in fields.items())
    return f'[[backends]]\nname = "local"\nkind = "chat"\nbase_url = "{url}"\n{more}'


def lines(desk: Desk, *arguments: str, code: int = 0, **more: str) -> dict[str, tuple[str, str]]:
    """Mark and text of every line, by its name."""
    done = desk.run("doctor", *arguments, **more)
    assert (done.returncode, done.stderr) == (code, "")
    rows = [(line[0], *line[2:].split("  ", 1)) for line in done.stdout.splitlines()]
    return {name: (mark, text.strip()) for mark, name, text in rows}


def test_without_a_configuration_all_is_well(desk: Desk):
    assert lines(desk) == {
        "configuration": ("✓", f"none; toolwire init writes {desk.config}"),
        "keys": ("✓", "none: every program on this machine may use the gateway"),
        "backend demo": ("✓", "built in"),
        "store": ("✓", f"{desk.store}, created when needed"),
        "codex": ("✓", "not installed, and only needed for codex backends (npm install -g @openai/codex)"),
        "port": ("✓", "http://127.0.0.1:8787 is free"),
    }


@pytest.mark.parametrize(
    ("path", "key", "mark", "said"),
    [
        ("/v1", "good", "✓", "{url}/v1: it answers, and accepts the key, with 2 models"),
        ("/v1", "sk-secret", "✗", "{url}/v1: the key in UP_KEY was refused (401); put a valid one there"),
        ("", "good", "✗", "{url}: base_url looks wrong (404); write {url}/v1"),
        ("/v2", "good", "✗", "{url}/v2: base_url looks wrong (404); write {url}/v1"),
    ],
)
def test_a_backend_with_a_key(desk: Desk, path: str, key: str, mark: str, said: str):
    with Server(served) as server:
        desk.configure(local(server.url + path, api_key_env='"UP_KEY"'))
        found = lines(desk, code=mark == "✗", UP_KEY=key)
    assert found["backend local"] == (mark, said.format(url=server.url))
    assert "sk-secret" not in str(found)


def test_a_backend_that_gets_the_keys_of_clients(desk: Desk):
    with Server(served) as server:
        desk.configure(local(f"{server.url}/v1"))
        said = "it answers, and needs a key: clients send theirs, unless api_key_env names one"
        assert lines(desk)["backend local"] == ("✓", f"{server.url}/v1: {said}")


@pytest.mark.parametrize(
    ("answer", "mark", "said"),
    [
        ((402, "application/json", b"{}"), "✗", "the account has no credit (402)"),
        ((503, "application/json", b"{}"), "✗", "it answers with status 503; try again later"),
        ((500, "application/json", b"{}"), "✗", "it answers with status 500; try again later"),
        (
            (200, "text/html", b"<html>Welcome</html>"),
            "✗",
            "base_url looks wrong: there is no /chat/completions (200)",
        ),
        ((429, "application/json", b"{}"), "✓", "it answers, and accepts the key"),
        (
            (400, "application/json", b'{"error": "Incorrect API key provided: x"}'),
            "✗",
            "the key in UP_KEY was refused (400); put a valid one there",
        ),
        (  # Gemini
            (
                400,
                "application/json",
                b'[{"error": {"code": 400, "message": "Missing or invalid Authorization header."}}]',
            ),
            "✗",
            "the key in UP_KEY was refused (400); put a valid one there",
        ),
        (  # LM Studio
            (200, "application/json", b'{"error":"Unexpected endpoint or method. (POST /v1/chat/completions)"}'),
            "✗",
            "base_url looks wrong: there is no /chat/completions (200)",
        ),
    ],
)
def test_what_an_answer_means(desk: Desk, answer: Answer, mark: str, said: str):
    with Server(lambda method, path, headers: answer if method == "POST" else PAGE) as server:
        desk.configure(local(f"{server.url}/v1", api_key_env='"UP_KEY"'))
        found = lines(desk, code=mark == "✗", UP_KEY="k")
    assert found["backend local"] == (mark, f"{server.url}/v1: {said}")


def test_a_server_that_fails_on_an_empty_request_but_lists_its_models_is_a_warning(desk: Desk):
    def fails(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        return (500, "application/json", b"{}") if method == "POST" else served(method, path, headers)

    with Server(fails) as server:
        desk.configure(local(f"{server.url}/v1", api_key_env='"UP_KEY"'))
        found = lines(desk, UP_KEY="good")
    said = "it answers, with 2 models, but an empty request with status 500; a turn will show whether it works"
    assert found["backend local"] == ("!", f"{server.url}/v1: {said}")


def test_a_backend_that_does_not_answer_is_given_up(desk: Desk):
    desk.give_patience(1)
    with Silence() as silence, Server(silence) as server:
        desk.configure(local(f"{server.url}/v1"))
        found = lines(desk, code=1)
    said = f"{server.url}/v1: no answer in 1 seconds; is base_url right, or a proxy needed?"
    assert found["backend local"] == ("✗", said)


def test_every_backend_has_its_own_line_and_all_are_asked_at_once(desk: Desk):
    together = threading.Barrier(3)

    def waits_for_all(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if method == "POST":
            together.wait(120)
        return served(method, path, headers)

    desk.give_patience(300)
    with Server(waits_for_all) as server:
        several = "".join(local(f"{server.url}/v1").replace('"local"', f'"slow{number}"') for number in range(3))
        desk.configure(several + local("http://127.0.0.1:9/v1") + '[[backends]]\npreset = "xai"\n')
        found = lines(desk, code=1)
    assert [found[f"backend slow{number}"][0] for number in range(3)] == ["✓"] * 3
    assert found["backend local"] == (
        "✗",
        "http://127.0.0.1:9/v1: it cannot be reached: connection refused."
        " Is the server running, and is base_url right?",
    )
    assert found["backend xai"] == (
        "✗",
        "XAI_API_KEY is not set; start Toolwire with the key of its server in it",
    )


def test_a_configuration_that_cannot_be_read_is_the_only_line(desk: Desk):
    desk.configure("[server\n")
    [(name, (mark, text))] = lines(desk, code=1).items()
    assert (name, mark) == ("configuration", "✗")
    assert text.startswith(f"{desk.config}: Expected ']'")


def test_keys_that_others_may_read_and_a_file_that_they_may_write(desk: Desk):
    desk.configure('[[keys]]\nname = "a"\nkey = "k-1"\n')
    assert lines(desk)["keys"] == ("✓", "1: a")
    desk.config.chmod(0o644)
    path = desk.config
    assert lines(desk, code=1)["configuration"] == ("✗", f"{path}: others may read the keys in it; chmod 600 {path}")
    desk.config.chmod(0o666)
    assert lines(desk, code=1)["configuration"] == ("✗", f"{path}: others may write {path}; chmod go-w {path}")


def test_the_store(desk: Desk):
    desk.store.parent.mkdir(parents=True)
    with sqlite3.connect(desk.store) as database:
        database.execute("CREATE TABLE t (a)")
    assert lines(desk)["store"] == ("✓", f"{desk.store}, 0.0 MB")
    desk.store.write_bytes(b"this is no database" * 1000)
    mark, text = lines(desk, code=1)["store"]
    assert (mark, text) == (
        "✗",
        f"{desk.store}: it cannot be used: file is not a database; move it away, or choose another with store.url",
    )
    desk.configure('[store]\nurl = "memory:"\n')
    assert lines(desk)["store"] == ("✓", "in memory")


def test_nothing_is_made_or_changed(desk: Desk):
    before = sorted(desk.home.rglob("*"))
    lines(desk)
    assert sorted(desk.home.rglob("*")) == before


def test_a_gateway_that_runs_and_its_store(desk: Desk, tmp_path: Path):
    folder = tmp_path / "running"
    folder.mkdir()
    store = folder / "toolwire.db"
    gateway = Gateway(folder, f'[store]\nurl = "sqlite:{store}"\n')
    try:
        port = gateway.url.rpartition(":")[2]
        desk.configure(f'[server]\nport = {port}\n[store]\nurl = "sqlite:{store}"\n')
        found = lines(desk)
        assert found["port"][1].startswith(f"{gateway.url}: toolwire ")
        assert found["store"][0] == "✓"
        desk.configure(f'[server]\nport = 8809\n[store]\nurl = "sqlite:{store}"\n')
        assert lines(desk)["store"][0] == "✓", "another gateway may use it too"
    finally:
        gateway.stop()


def test_a_port_that_another_program_has(desk: Desk):
    with Server(lambda method, path, headers: PAGE) as server:
        desk.configure(f"[server]\nport = {server.port}\n")
        said = "another program answers; choose another with server.port, or serve --port"
        assert lines(desk, code=1)["port"] == ("✗", f"{server.url}: {said}")


def fake_codex(desk: Desk, says: str) -> dict[str, str]:
    """An environment with a codex that says this version."""
    folder = desk.home / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "codex"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}{os.pathsep}{desk.environment['PATH']}"}


def login(desk: Desk, expires: float) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    (desk.home / ".codex").mkdir(exist_ok=True)
    tokens = {"access_token": f"head.{claims}.secret"}
    (desk.home / ".codex" / "auth.json").write_text(json.dumps({"tokens": tokens}))


def test_codex_its_version_and_its_login(desk: Desk):
    desk.configure('[[backends]]\nname = "agent"\nkind = "codex"\n')
    environment = fake_codex(desk, "codex-cli 0.166.0")
    found = lines(desk, code=1, **environment)
    assert found["codex"] == ("✓", "version 0.166.0, without a login; run codex login")
    assert found["backend agent"] == ("✗", "version 0.166.0, without a login; run codex login")
    login(desk, time.time() + 1000)
    assert lines(desk, code=0, **environment)["backend agent"] == ("✓", "version 0.166.0, logged in with ChatGPT")
    login(desk, time.time() - 1000)
    said = "version 0.166.0, logged in with ChatGPT; its token has expired, which only codex itself renews"
    assert lines(desk, code=0, **environment)["codex"] == ("✓", said)


def test_a_codex_that_is_too_old_or_missing(desk: Desk):
    desk.configure('[[backends]]\nname = "agent"\nkind = "codex"\n')
    said = "version 0.99.1 is too old, 0.166.0 is needed: npm install -g @openai/codex@latest"
    assert lines(desk, code=1, **fake_codex(desk, "codex-cli 0.99.1"))["backend agent"] == ("✗", said)
    assert lines(desk, code=1)["backend agent"] == ("✗", "the program codex is not installed")


def test_colours_are_for_terminals(desk: Desk):
    assert "\x1b" not in desk.good("doctor")
