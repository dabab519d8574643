"""Who sees what in the console, what is never kept, and how much is."""

import asyncio
import base64
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support import processes
from tests.support.console import ConsoleClient
from tests.support.fleet import until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Hold, Reply, Upstream
from toolwire.config.settings import Backend, Key, Settings, Store
from toolwire.config.validate import find_faults
from toolwire.core import secret_patterns
from toolwire.gateway.console import access, backends, secrets
from toolwire.gateway.console.access import COOKIE_SECONDS, OWN_KEY_SECONDS, Access, Viewer, is_own_key
from toolwire.gateway.console.content import pack
from toolwire.gateway.console.routes import ConsoleApp
from toolwire.gateway.console.rows import TurnRow
from toolwire.gateway.console.secrets import collect_secrets, redact, remove_secrets
from toolwire.gateway.console.trace import TurnTrace
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.turns.observers import AttemptInfo

KEYS = "\n".join(
    f'[[keys]]\nname = "{name}"\nkey = "{name}-key-123456"\nconsole = {console}\n'
    for name, console in (("ann", "true"), ("bob", "true"), ("eve", '"all"'), ("mum", "false"))
)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console-state")


@pytest.fixture(scope="module")
def keyless(upstream: Upstream, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("console-keyless")
    config = backend(upstream.url, api_key_env='"UPSTREAM_KEY"')
    gateway = Gateway(folder, config, XDG_STATE_HOME=str(state), UPSTREAM_KEY="the-upstreams-own-key")
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def keyed(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    soon = "[server]\ncommit_after = 0.1\n"  # an answer begins, though its model says nothing
    gateway = Gateway(tmp_path_factory.mktemp("console-keyed"), soon + KEYS, XDG_STATE_HOME=str(state))
    yield gateway
    gateway.stop()


def ask(gateway: Gateway, key: str = "", words: str = "Go.", model: str = "demo", **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = chat_body(model, messages=[{"role": "user", "content": words}], **fields)
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=90, trust_env=False)


# Coming in


def test_the_link_is_good_for_a_cookie_that_scripts_and_other_sites_cannot_use(keyless: Gateway):
    with httpx.Client(trust_env=False, timeout=90) as browser:
        answer = browser.get(keyless.console)
        assert answer.next_request is not None
        assert (answer.status_code, answer.next_request.url) == (303, keyless.url + "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert keyless.console.partition("token=")[2] not in cookie
        page = browser.get(keyless.url)
        assert "<nav" in page.text
        assert browser.get(f"{keyless.url}/console/api/me").status_code == 200


def test_the_token_is_kept_where_only_its_owner_can_read_it(keyless: Gateway, keyed: Gateway, state: Path):
    path = state / "toolwire" / "console-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    assert keyless.console.endswith(f"?token={token}")
    assert keyed.console.endswith(f"?token={token}")


@pytest.mark.parametrize(
    "path", ["me", "turns", "turns/x", "conversations", "stored", "stored/x", "backends", "numbers", "check"]
)
def test_nobody_looks_without_token_or_key(keyless: Gateway, path: str):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "toolwire_console_1=*.9999999999.00"}):
        answer = httpx.get(f"{keyless.url}/console/api/{path}", headers=headers, timeout=90, trust_env=False)
        assert answer.status_code == 401


def test_a_wrong_token_leads_to_the_sign_in_page(keyless: Gateway):
    answer = httpx.get(f"{keyless.url}/?token=wrong", timeout=90, trust_env=False)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert "Sign in" in answer.text
    assert httpx.get(keyless.url, timeout=90, trust_env=False).text.count('type="password"') == 1


def test_a_changed_cookie_is_worth_nothing(keyed: Gateway):
    with httpx.Client(base_url=keyed.url, trust_env=False, timeout=90) as browser:
        browser.post("/console/sign-in", data={"secret": "ann-key-123456"}, headers={"origin": keyed.url})
        [(name, value)] = browser.cookies.items()
        _, until, signature = value.split(".")
        forged = httpx.get(
            f"{keyed.url}/console/api/me", cookies={name: f"*.{until}.{signature}"}, timeout=90, trust_env=False
        )
        assert forged.status_code == 401
        assert browser.get("/console/api/me").json()["key"] == "ann"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", None])
def test_only_the_consoles_own_page_may_change_something(keyed: Gateway, origin: str | None):
    with httpx.Client(base_url=keyed.url, trust_env=False, timeout=90) as browser:
        browser.get(keyed.console)
        headers = {"origin": origin} if origin else {}
        for path in ("capture", "turns/x/replay", "turns/x/pin", "backends/demo/check", "try?dialect=chat"):
            answer = browser.post(f"/console/api/{path}", json={"count": 1}, headers=headers)
            assert answer.status_code == 403, path
        good = browser.post("/console/api/capture", json={"count": 0}, headers={"origin": keyed.url})
        assert good.status_code == 200


def test_a_foreign_host_reaches_nothing_of_a_keyless_console(keyless: Gateway):
    answer = httpx.get(keyless.console, headers={"host": "evil.example"}, timeout=90, trust_env=False)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_every_answer_forbids_frames_scripts_from_elsewhere_and_caches(keyless: Gateway):
    with ConsoleClient(keyless) as console:
        for path in ("/", "/console/api/me", "/console/static/app.js", "/console/nothing"):
            headers = console.http.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers


def test_one_setting_switches_all_of_it_off(tmp_path: Path, state: Path):
    gateway = Gateway(tmp_path, "[console]\nenabled = false\n", XDG_STATE_HOME=str(state))
    try:
        assert ask(gateway).status_code == 200
        for path in ("/", "/console", "/console/api/me", "/console/static/app.js"):
            assert httpx.get(gateway.url + path, timeout=90, trust_env=False).status_code == 404
    finally:
        gateway.stop()
    assert gateway._console == []


def signed_in(gateway: Gateway, secret: str, **headers: str) -> httpx.Response:
    given = {"origin": gateway.url, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.post(
        f"{gateway.url}/console/sign-in", data={"secret": secret}, headers=given, timeout=90, trust_env=False
    )


def test_a_key_in_a_link_lets_nobody_in(keyed: Gateway):
    answer = httpx.get(f"{keyed.url}/?token=ann-key-123456", timeout=90, trust_env=False)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("other", ['theme={"a": 1}', "a[b]=1", "x=b c", "é", "=", ";;"])
def test_other_cookies_do_not_matter(keyless: Gateway, other: str):
    token = keyless.console.partition("token=")[2]
    cookie = signed_in(keyless, token).headers["set-cookie"].partition(";")[0]
    for sent in (f"{other}; {cookie}", f"{cookie}; {other}"):
        headers = [(b"cookie", sent.encode("latin-1"))]
        answer = httpx.get(f"{keyless.url}/console/api/me", headers=headers, timeout=90, trust_env=False)
        assert answer.status_code == 200


def test_a_cookie_is_for_one_port_and_one_key():
    def access(key: str) -> Access:
        settings = Settings(keys=(Key("ann", key, console=True),))
        return Access(settings, Keys(settings), "t" * 40)

    mine = access("one-key")
    cookie = mine.make_cookie(Viewer("ann"), 1000)
    for port, who, is_good in ((1000, mine, True), (1001, mine, False), (1000, access("other-key"), False)):
        sent = {b"cookie": cookie.replace("_1000=", f"_{port}=").encode()}
        assert (who.find_viewer(sent, port) is not None) == is_good


@pytest.mark.parametrize("header", [b"authorization", b"x-api-key"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_with_umlauts_lets_its_holder_in_by_a_header(header: bytes, encoding: str):
    settings = Settings(keys=(Key("bob", "schlüssel", console=True),))
    doors = Access(settings, Keys(settings), "t" * 40)
    prefix = b"Bearer " if header == b"authorization" else b""
    assert doors.find_viewer({header: prefix + "schlüssel".encode(encoding)}, 1) == Viewer("bob")
    assert doors.find_viewer({header: prefix + "schlüssek".encode(encoding)}, 1) is None


def test_cookies_and_keys_of_the_consoles_own_end(monkeypatch: pytest.MonkeyPatch):
    settings = Settings()
    doors = Access(settings, Keys(settings), "t" * 40)
    cookie, key = doors.make_cookie(Viewer(sees_all=True), 1).encode(), doors.make_own_key().encode()
    now = time.time()
    for after, is_good in ((COOKIE_SECONDS - 60, True), (COOKIE_SECONDS + 60, False)):
        monkeypatch.setattr(access.time, "time", lambda after=after: now + after)
        assert (doors.find_viewer({b"cookie": cookie}, 1) is not None) == is_good
    for after, is_good in ((OWN_KEY_SECONDS - 60, True), (OWN_KEY_SECONDS + 60, False)):
        monkeypatch.setattr(access.time, "time", lambda after=after: now + after)
        assert is_own_key("t" * 40, key) == is_good


def test_a_cookie_that_lets_nobody_in_any_more_does_not_hide_the_next_one(monkeypatch: Any):
    settings = Settings(keys=(Key("ann", "k", console=True), Key("mum", "l")))
    doors, now = Access(settings, Keys(settings), "t" * 40), time.time()
    old, lost = doors.make_cookie(Viewer("ann"), 1), doors.make_cookie(Viewer("mum"), 1)
    monkeypatch.setattr(access.time, "time", lambda: now + COOKIE_SECONDS + 60)
    good = doors.make_cookie(Viewer(sees_all=True), 1)
    for first in (old, lost, doors.make_cookie(Viewer("mum"), 1)):
        assert doors.find_viewer({b"cookie": f"{first}; {good}".encode()}, 1) == Viewer(sees_all=True, by_cookie=True)
        assert doors.find_viewer({b"cookie": first.encode()}, 1) is None


def test_a_cookie_of_the_same_name_from_elsewhere_locks_nobody_out(keyless: Gateway):
    with httpx.Client(trust_env=False, timeout=90) as browser:
        [cookie] = [each.partition(";")[0] for each in browser.get(keyless.console).headers.get_list("set-cookie")]
    name = cookie.partition("=")[0]
    for cookies in (f"{name}=evil; {cookie}", f"{cookie}; {name}=evil"):
        answer = httpx.get(f"{keyless.url}/console/api/me", headers={"cookie": cookies}, trust_env=False, timeout=90)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("capture", b'{"count":' + b"[" * 30_000, "count"),
        ("capture", b'{"count":"\xff"}', "count"),
        ("turns/x/pin", b'{"pinned":"no"}', "pinned"),
        ("backends/demo/check", b'{"model":{"a":1}}', "model"),
        ("backends/demo/check", b'{"model":"a\\u0000"}', "model"),
    ],
)
def test_a_body_that_means_nothing_is_refused_by_its_field(keyless: Gateway, path: str, body: bytes, field: str):
    with ConsoleClient(keyless) as console:
        answer = console.http.post(f"/console/api/{path}", content=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_a_cookie_is_for_https_where_that_is_used(keyless: Gateway):
    token = keyless.console.partition("token=")[2]
    assert "Secure" not in signed_in(keyless, token).headers["set-cookie"]
    assert "; Secure" in signed_in(keyless, token, x_forwarded_proto="https").headers["set-cookie"]


def test_a_page_behind_a_proxy_may_change_something_if_the_settings_list_it(tmp_path: Path, state: Path):
    config = '[server]\norigins = ["https://console.example"]\n' + KEYS
    gateway = Gateway(tmp_path, config, XDG_STATE_HOME=str(state))
    try:
        token = gateway.console.partition("token=")[2]
        for origin, status in (
            ("https://console.example", 303),
            ("https://other.example", 403),
            ("http://localhost", 403),
        ):
            answer = signed_in(gateway, token, origin=origin)
            assert answer.status_code == status, origin
    finally:
        gateway.stop()


def test_no_key_is_called_as_the_console_is(tmp_path: Path):
    fault = "\n".join(find_faults(Settings(keys=(Key("(console)", "k"), Key("*", "l")))))
    assert "(console)" in fault
    assert "*" not in fault


def test_the_key_that_the_console_makes_for_itself_opens_turns_and_not_the_console(keyed: Gateway):
    settings = Settings(keys=(Key("ann", "k"),))
    access = Access(settings, Keys(settings), keyed.console.partition("token=")[2])
    own = access.make_own_key()
    assert ask(keyed, own).status_code == 200
    assert ask(keyed, own[:-1] + ("1" if own.endswith("0") else "0")).status_code == 401
    for forged in ("toolwire-own-9999999999.00", "toolwire-own-", "toolwire-own-x.y"):
        assert ask(keyed, forged).status_code == 401
    with ConsoleClient(keyed, own) as console:
        assert console.http.get("/console/api/me").status_code == 401


def test_a_check_gets_what_a_server_wants_and_no_secret_is_on_its_command_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UP_KEY", "key-of-up")
    up = Backend(
        "up",
        "chat",
        base_url="http://me:p4ss%40word@127.0.0.1:9/v1",
        query={"api-version": "query-secret"},
        headers={"x-team": "header-secret"},
        api_key_env="UP_KEY",
        key_header="x-key",
    )
    command, variables = backends.make_check_command(Settings(), up, "m", "http://gateway", "own")
    assert command == ["http://127.0.0.1:9/v1", "--api", "chat", "--model", "m"]
    basic = base64.b64encode(b"me:p4ss@word").decode()
    headers = {"authorization": f"Basic {basic}", "x-team": "header-secret", "x-key": "key-of-up"}
    assert json.loads(variables["TOOLWIRE_CHECK_HEADERS"]) == headers
    assert json.loads(variables["TOOLWIRE_CHECK_QUERY"]) == {"api-version": "query-secret"}


def test_a_check_that_cannot_be_started_is_over(monkeypatch: pytest.MonkeyPatch):
    async def fails(*_: Any, **__: Any) -> None:
        raise OSError(2, "No such file or directory")

    async def main() -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
        tried = backends.Checks(Settings(), ())
        assert tried.start(Backend("demo", "demo"), "", "http://127.0.0.1:9", "")
        while tried.state.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert "could not be started: No such file" in tried.state.said

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_token_checks_a_backend_without_an_address_where_there_are_keys(keyed: Gateway):
    with ConsoleClient(keyed) as console:
        console.post("backends/demo/check")
        state = until(lambda: not (state := console.get("check"))["running"] and state)
        assert state["has_report"], state
        assert console.wait_for(key="(console)")["status"] == 200


def test_a_fault_of_ours_is_said_as_json_and_in_the_log(monkeypatch: pytest.MonkeyPatch, capfdbinary: Any):
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("with something secret")

    async def main() -> list[Any]:
        console, sent = ConsoleApp(broken, Log("info", asyncio.get_running_loop())), list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        await console({"type": "http", "method": "GET", "path": "/console/api/me", "headers": []}, _nothing, send)
        return sent

    start, body = asyncio.run(main())
    assert start["status"] == 500
    assert json.loads(body["body"])["error"]["code"]
    log = capfdbinary.readouterr().err
    assert b'"event":"crash","turn":"console","error":"ZeroDivisionError"' in log
    assert b"something secret" not in log


async def _nothing() -> Any:
    return {"type": "http.disconnect"}


# Whose turns


def test_a_key_sees_its_own_turns_and_nobody_elses(keyed: Gateway):
    for name in ("ann", "bob"):
        with ConsoleClient(keyed, "eve-key-123456") as all_of_them:
            all_of_them.post("capture", count=1)
        assert ask(keyed, f"{name}-key-123456", f"a secret of {name}").status_code == 200
    with ConsoleClient(keyed, "eve-key-123456") as eve:
        theirs = {name: eve.wait_for(key=name) for name in ("ann", "bob")}
        assert {row["key"] for row in eve.rows()} >= {"ann", "bob"}
    with ConsoleClient(keyed, "ann-key-123456") as ann:
        assert {row["key"] for row in ann.rows()} == {"ann"}
        assert ann.get(f"turns/{theirs['ann']['id']}")["whole"] is not None
        for path in ("", "/recording"):
            assert ann.http.get(f"/console/api/turns/{theirs['bob']['id']}{path}").status_code == 404
        for action in ("pin", "replay"):
            answer = ann.http.post(
                f"/console/api/turns/{theirs['bob']['id']}/{action}", json={"model": "demo", "pinned": True}
            )
            assert answer.status_code == 404
        said = json.dumps([ann.get(path) for path in ("turns", "conversations", "stored", "numbers", "backends")])
        assert "bob" not in said
        assert ann.get("numbers")["start"]["turns"] == len(ann.rows())
        for answer in (ann.http.post("/console/api/backends/demo/check"), ann.http.get("/console/api/check")):
            assert answer.status_code == 403


def test_a_turn_under_way_is_shown_to_its_key_only(keyed: Gateway):
    with ConsoleClient(keyed, "eve-key-123456") as eve, ConsoleClient(keyed, "bob-key-123456") as bob:
        eve.post("capture", count=1)
        headers, body = {"authorization": "Bearer ann-key-123456"}, chat_body("demo-silent", stream=True)
        with httpx.stream("POST", f"{keyed.url}/v1/chat/completions", json=body, headers=headers, timeout=90):
            [id] = [row["id"] for worker in eve.get("turns")["workers"] for row in worker["running"]]
            assert eve.get(f"turns/{id}")["whole"] is not None
            assert [row for worker in bob.get("turns")["workers"] for row in worker["running"]] == []
            assert bob.http.get(f"/console/api/turns/{id}").status_code == 404
        eve.wait_for(model="demo-silent")


def test_a_key_is_told_of_its_own_turns_only(keyed: Gateway):
    with ConsoleClient(keyed) as token, ConsoleClient(keyed, "ann-key-123456") as ann:
        ask(keyed, "bob-key-123456")
        [everything], [own] = (each.get("turns")["workers"] for each in (token, ann))
        assert 0 <= own["kept_bytes"] < everything["kept_bytes"]
        assert own["seq"] > 10**15, "the clock's, which says nothing of others"
        assert own["process"], "a name of its own at every start"


def test_results_are_counted_where_only_facts_are_kept_and_for_a_key(keyed: Gateway):
    tools = [tool("bobs_weather", city={"type": "string"})]
    headers = {"authorization": "Bearer bob-key-123456"}
    history: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Rome?"}]

    def turn() -> dict[str, Any]:
        body = chat_body("demo", messages=history, tools=tools, tool_choice="required")
        url = f"{keyed.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=90, trust_env=False).json()["choices"][0]["message"]

    made = turn()
    id = made["tool_calls"][0]["id"]
    history += [made, {"role": "tool", "tool_call_id": id, "content": "Error: no"}]
    turn()
    with ConsoleClient(keyed) as token, ConsoleClient(keyed, "bob-key-123456") as bob:
        assert bob.wait_for(results=[f"{id} failed"]).get("kept", "metadata") == "metadata"
        for console in (token, bob):
            counted = console.get("numbers")["start"]["tools"]["bobs_weather"]
            assert (counted["results"], counted["failed"]) == (1, 1)


def test_nobody_leaves_a_row_without_a_key(keyed: Gateway):
    with ConsoleClient(keyed) as token:
        before = len(token.rows())
        for _ in range(3):
            assert ask(keyed, "wrong").status_code == 401
        ask(keyed, "bob-key-123456")
        until(lambda: len(token.rows()) > before)
        assert len(token.rows()) == before + 1


def test_stored_responses_are_shown_to_their_owner_and_as_facts_to_who_sees_all(keyed: Gateway):
    ids: dict[str, str] = {}
    for name in ("ann", "bob"):
        headers = {"authorization": f"Bearer {name}-key-123456"}
        body = {"model": "demo", "input": f"kept by {name}, not by ann-key-123456"}
        answer = httpx.post(f"{keyed.url}/v1/responses", json=body, headers=headers, timeout=90, trust_env=False)
        ids[name] = answer.json()["id"]
    with ConsoleClient(keyed, "ann-key-123456") as ann:
        assert [(row["id"], row["owner"], row["model"]) for row in ann.get("stored")] == [(ids["ann"], "ann", "demo")]
        own = ann.get(f"stored/{ids['ann']}")
        assert (own["status"], own["shown"]) == ("completed", True)
        assert "kept by ann" in json.dumps(own["input"]), "the owner reads it"
        assert "ann-key-123456" not in json.dumps(own), "but for secrets"
        for query in ("", "?owner=bob", "?owner=ann"):
            assert ann.http.get(f"/console/api/stored/{ids['bob']}{query}").status_code == 404
    with ConsoleClient(keyed, "eve-key-123456") as eve:
        assert {(row["id"], row["owner"]) for row in eve.get("stored")} >= {(id, name) for name, id in ids.items()}
        seen = eve.get(f"stored/{ids['bob']}?owner=bob")
        assert (seen["shown"], seen["input"], seen["output"]) == (False, [], [])


def test_a_key_without_the_right_does_not_look(keyed: Gateway):
    with ConsoleClient(keyed, "mum-key-123456") as mum:
        assert mum.http.get("/console/api/turns").status_code == 401


def test_where_there_are_keys_only_facts_are_kept_until_somebody_asks_for_more(keyed: Gateway):
    with ConsoleClient(keyed, "bob-key-123456") as bob:
        before = {row["id"] for row in bob.rows()}
        ask(keyed, "bob-key-123456", model="demo-short")
        facts = bob.wait_for(model="demo-short")
        assert (facts.get("kept", "metadata"), bob.get(f"turns/{facts['id']}")["whole"]) == ("metadata", None)
        assert facts["id"] not in before
        bob.post("capture", count=1)
        ask(keyed, "ann-key-123456", model="demo-parallel")  # another's turn does not count
        ask(keyed, "bob-key-123456", model="demo-length")
        ask(keyed, "bob-key-123456", model="demo-refusal")
        row = bob.wait_for(model="demo-length")
        assert bob.get(f"turns/{row['id']}")["whole"] is not None
        assert bob.wait_for(model="demo-refusal").get("kept", "metadata") == "metadata"


# Secrets

VENDOR = "sk-proj-abcdefghijklmnop1234"
NAMED = "hunter2hunter2"
OWN = "the-upstreams-own-key"
CLIENTS = "client-key-of-my-own"


def leaks(everything: str) -> list[str]:
    return [secret for secret in (VENDOR, NAMED, OWN, CLIENTS) if secret in everything]


def secret_turn(upstream: Upstream) -> dict[str, Any]:
    """A request with secrets, to a model that repeats them, one of them in small pieces."""
    pieces = [text(part) for part in re.findall("..", VENDOR)]
    upstream.replies["whole-secrets"] = Reply(
        [stream(created(), text(f"key {VENDOR} and {OWN}, {CLIENTS}"), completed())]
    )
    upstream.replies["spelt-secrets"] = Reply([stream(created(), *pieces, completed())])
    return {"words": f'Keep {VENDOR} and {{"password": "{NAMED}"}} for me, and {CLIENTS}'}


@pytest.mark.parametrize("model", ["whole-secrets", "spelt-secrets"])
def test_secrets_are_out_of_what_is_kept(keyless: Gateway, upstream: Upstream, model: str):
    given = secret_turn(upstream)
    answer = ask(keyless, CLIENTS, model=f"up/{model}", stream=True, **given)
    assert answer.status_code == 200
    with ConsoleClient(keyless) as console:
        found = console.turn(model=f"up/{model}")
        assert found["row"]["kept"] == "whole"
        everything = json.dumps(found) + console.http.get(f"/console/api/turns/{found['row']['id']}/recording").text
        spelt = "".join(part for attempt in found["whole"]["attempts"] for _, part in attempt["parts"])
        assert not leaks(everything)
        assert "[removed]" in found["whole"]["request"]["body"]
        headers = dict(found["whole"]["request"]["headers"])
        assert headers["authorization"] == "(not kept)"
    if model == "spelt-secrets":
        assert found["whole"]["attempts"][0]["withheld"]
        assert found["whole"]["answer"]["withheld"]
        assert spelt == ""


def test_a_secret_that_is_being_written_is_not_shown_either(keyless: Gateway, upstream: Upstream):
    most = OWN[:-1]
    upstream.replies["half-secret"] = Reply([created(), text("It is: "), text(most[:15]), text(most[15:]), Hold()])
    body = chat_body("up/half-secret", stream=True)
    with httpx.stream("POST", f"{keyless.url}/v1/chat/completions", json=body, timeout=90) as answer:
        pieces = answer.iter_bytes()
        until(lambda: most[15:].encode() in next(pieces))
        with ConsoleClient(keyless) as console:
            [id] = [row["id"] for worker in console.get("turns")["workers"] for row in worker["running"]]
            found = console.get(f"turns/{id}")["whole"]
    assert "half-secret" in found["request"]["body"]
    assert [attempt["withheld"] for attempt in found["attempts"]] == [True]
    assert most[15:] not in json.dumps(found)


def packed_secrets() -> bytes:
    """What is shown of a turn that holds secrets."""
    trace = TurnTrace("seed", {b"authorization": f"Bearer {CLIENTS}".encode()}, MemoryBudget(10**9))
    trace.keeps = True
    trace.receive(f'{{"messages":[{{"content":"{VENDOR} {CLIENTS}"}}],"password":"{NAMED}"}}'.encode())
    attempt = trace.attempt(AttemptInfo("up", "responses", "m"))
    attempt.reply(200, {"content-type": "text/event-stream"})
    attempt.read(stream(created(), text(f"{VENDOR} {OWN}"), completed()))
    trace.write([f'data: {{"choices":[{{"index":0,"delta":{{"content":"{OWN}"}}}}]}}\n\n'.encode()])
    return zlib.decompress(pack(remove_secrets(trace, TurnRow("id", 0.0, "chat"), [], (OWN.encode(),))))


def test_nothing_secret_is_in_what_is_shown_and_sent_to_other_workers():
    assert leaks(packed_secrets().decode(errors="replace")) == []


@pytest.mark.parametrize(
    "secret",
    [
        b'{"password":"%s"}' % NAMED.encode(),
        VENDOR.encode(),
        OWN.encode(),
        b'"headers": {"x-a": "%s"}' % NAMED.encode(),
    ],
)
def test_a_secret_is_found_wherever_a_step_ends(secret: bytes):
    for offset in range(len(secret) + 2):
        before = b"x" * (secrets.SLICE - offset - 1) + b" "
        kept = redact(before + secret + b" and so on " * 10_000, (OWN.encode(),))
        assert leaks(kept.decode()) == [], offset


@pytest.mark.parametrize("length", [secrets.MAX_SECRET_SIZE + 1, 3 * secrets.SLICE])
def test_a_long_secret_is_removed_to_its_end(length: int):
    for offset in (0, 5, 13, 20, secrets.MAX_SECRET_SIZE, secrets.SLICE - 5):
        before = b"x" * (secrets.SLICE - offset)
        kept = redact(before + b'{"password":"' + b"a\\nb" * (length // 4) + b'","next":"said"}', ())
        assert kept == before + b'{"password":"[removed]","next":"said"}'


def test_a_text_with_very_many_secrets_is_not_kept_at_all():
    said = b'{"x":"' + b"://a@ " * (2 * secrets.MAX_SPANS) + b'"}'
    assert redact(said, ()) == b"[removed]"


def escaped(text: str) -> str:
    """JSON as .NET writes it."""
    return json.dumps(text).replace("+", "\\u002B").replace("'", "\\u0027")


def quoted(text: str) -> str:
    return json.dumps(quote(text, safe=""))


@pytest.mark.parametrize("write", [json.dumps, lambda text: json.dumps(text).replace("/", "\\/"), escaped, quoted])
def test_a_known_secret_is_found_in_every_form_that_libraries_write(write: Any):
    known = collect_secrets(Settings(keys=(Key("ann", "up+stream/Key=="),)), "t" * 40)
    body = f'{{"content":{write("my up+stream/Key== here")}}}'.encode()
    assert redact(body, known).count(b"[removed]") == 1


def test_passwords_in_addresses_are_known_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORE_URL", "postgresql://me:p%40ss-of-store@db/toolwire")
    backends = (Backend("up", "chat", base_url="http://me:p4ss-of-backend@127.0.0.1/v1"),)
    found = collect_secrets(Settings(backends=backends, store=Store(url_env="STORE_URL")), "t" * 40)
    assert {b"p4ss-of-backend", b"p%40ss-of-store", b"p@ss-of-store"} <= set(found)


def _finds_none(*_: Any) -> list[tuple[int, int]]:
    return []


@pytest.mark.parametrize("where", [secrets, secret_patterns])
def test_the_look_for_secrets_is_what_keeps_them_out(where: Any, monkeypatch: pytest.MonkeyPatch):
    """The same check finds them in a gateway that does not look."""
    if where is secrets:
        monkeypatch.setattr(secrets, "find_secret_spans", _finds_none)
        assert set(leaks(packed_secrets().decode(errors="replace"))) == {VENDOR, NAMED, OWN, CLIENTS}
    else:
        monkeypatch.setattr(secret_patterns, "_SECRETS", ())
        assert leaks(packed_secrets().decode(errors="replace")) == [VENDOR]


# Bounds


def test_what_is_kept_is_bounded_in_bytes(tmp_path: Path, state: Path):
    gateway = Gateway(tmp_path, '[console]\nmax_size = "60KB"\n', XDG_STATE_HOME=str(state))
    try:
        with ConsoleClient(gateway) as console:
            for number in range(60):
                noise = os.urandom(600).hex()
                assert ask(gateway, words=f"{number} {noise}").status_code == 200
            rows = console.rows()
            worker = console.get("turns")["workers"][0]
            assert worker["kept_bytes"] <= 60_000
            assert 5 < len(rows) < 60
            assert console.get("numbers")["start"]["turns"] == 60
    finally:
        gateway.stop()


def test_a_wrong_setting_is_one_clear_line(tmp_path: Path):
    import sys

    path = tmp_path / "toolwire.toml"
    path.write_text('[console]\nmax_size = "much"\n')
    done = processes.run(
        [sys.executable, "-m", "toolwire", "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "console.max_size" in done.stderr
