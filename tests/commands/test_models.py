"""`toolwire models`: names by backend, and what servers list where globs are configured."""

import json

import pytest

from tests.commands.desk import Desk
from tests.support.gateway import backend
from tests.support.upstream import Reply, Upstream


def test_names_aliases_and_what_globs_match(desk: Desk, upstream: Upstream):
    desk.configure(
        backend(upstream.url, "up", models='["mine", "gpt-*"]', aliases='{ fast = "gpt-5-mini" }')
        + backend(upstream.url, "plain")
    )
    lines = desk.good("models").splitlines()
    assert lines[:8] == [
        f"up (responses, {upstream.url})",
        "  mine",
        "  gpt-5",
        "  gpt-5-mini",
        "  fast = gpt-5-mini",
        f"plain (responses, {upstream.url})",
        "  only as plain/MODEL",
        "demo (demo)",
    ]


def test_json_has_the_same_and_no_secret(desk: Desk, upstream: Upstream):
    url = upstream.url.replace("http://", "http://me:secret@")
    desk.configure(backend(url, "up", models='["gpt-*"]', api_key_env='"UP_KEY"'))
    first, _ = json.loads(desk.good("models", "--json", UP_KEY="k-1"))["backends"]
    assert first == {
        "name": "up",
        "kind": "responses",
        "base_url": upstream.url,
        "models": ["gpt-5", "gpt-5-mini"],
        "aliases": {},
        "globs": ["gpt-*"],
        "error": "",
    }


def test_one_backend_shows_all_that_its_server_has(desk: Desk, upstream: Upstream):
    desk.configure(backend(upstream.url, "up", models='["gpt-5"]', api_key_env='"UP_KEY"'))
    assert desk.good("models", "up", UP_KEY="k-1").splitlines()[1:] == ["  gpt-5", "  up/gpt-5-mini", "  up/tts-1"]
    assert upstream.asked[-1].headers["authorization"] == "Bearer k-1"


def test_a_server_that_does_not_answer_is_one_line_and_the_others_are_listed(desk: Desk):
    desk.configure(backend("http://127.0.0.1:9/v1", "away", models='["gpt-*"]'))
    done = desk.run("models")
    assert done.stdout.splitlines()[:3] == ["away (responses, http://127.0.0.1:9/v1)", "  gpt-*", "demo (demo)"]
    assert done.stderr == "toolwire: away: The backend cannot be reached: connection refused.\n"
    assert done.returncode == 0
    assert desk.run("models", "away").returncode == 1


def test_names_of_a_server_cannot_control_a_terminal(desk: Desk, upstream: Upstream):
    wild = json.dumps({"data": [{"id": "gpt-\x1b[31m\u202ered"}]}).encode()
    desk.configure(backend(upstream.url, "up", models='["gpt-*"]'))
    upstream.listing = Reply([wild], content_type="application/json")
    try:
        assert desk.good("models").splitlines()[1] == "  gpt-red"
    finally:
        upstream.listing = None


@pytest.mark.parametrize("odd", [b'{"x":' + b"[" * 5000, b'{"data":[{"id":"\xff"}]}'], ids=["deep", "bytes"])
def test_a_list_that_cannot_be_read_is_one_line(desk: Desk, upstream: Upstream, odd: bytes):
    desk.configure(backend(upstream.url, "up", models='["gpt-*"]'))
    upstream.listing = Reply([odd], content_type="application/json")
    try:
        assert desk.run("models").stderr == "toolwire: up: Its list of models cannot be read.\n"
    finally:
        upstream.listing = None
