"""What a client may send, and who may send it."""

import json

import httpx
import pytest

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body
from tests.support.upstream import Reply, Upstream

SAYS_HI = Reply([stream(created(), text("hi"), completed())])


def test_bad_input_is_a_400_in_the_clients_dialect(http: httpx.Client, gateway: Gateway):
    response = http.post(
        f"{gateway.base_url}/chat/completions", json={"model": "demo", "messages": [{"role": "robot"}]}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].role"


def test_a_body_that_is_not_json_is_a_400(http, gateway):
    response = http.post(f"{gateway.base_url}/chat/completions", content=b"{nope")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_a_clear_413(http, start, chunked):
    gateway = start('[server]\nmax_body = "10KB"\n')
    body = json.dumps(chat_body("demo", user="x" * 20_000)).encode()
    content = (body[i : i + 1000] for i in range(0, len(body), 1000)) if chunked else body
    response = http.post(f"{gateway.base_url}/chat/completions", content=content)
    assert response.status_code == 413
    assert "10000 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ("chat/completions", '"tools": [{"type": "function", "function": {"name": "f", "parameters": '),
        ("responses", '"input": "Go.", "tools": [{"type": "function", "name": "f", "parameters": '),
        ("messages", '"max_tokens": 9, "tools": [{"name": "f", "input_schema": '),
    ],
)
def test_a_request_that_is_nested_almost_too_deeply_is_answered(http, gateway, path, before):
    """How deep is too deep differs from one step to the next: none may fail for a request that another let pass."""
    said = '"messages": [{"role": "user", "content": "Go."}]' if path != "responses" else '"store": false'
    after = "}}]" if path == "chat/completions" else "}]"
    found: set[int] = set()
    for depth in range(460, 500):
        schema = '{"properties":{"a":' * depth + "{}" + "}}" * depth
        body = f'{{"model": "demo", {said}, {before}{schema}{after}}}'
        found.add(http.post(f"{gateway.base_url}/{path}", content=body.encode()).status_code)
    assert found == {200, 400}


def test_an_unknown_model_is_a_404(http, gateway):
    response = http.post(f"{gateway.base_url}/chat/completions", json=chat_body("nobody"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "messages/count_tokens"])
def test_a_name_that_every_event_would_repeat_is_not_taken_at_any_length(http, gateway, path):
    long = {**chat_body("up/" + "m" * 2000, stream=True), "input": "Go.", "max_tokens": 9}
    response = http.post(f"{gateway.base_url}/{path}", json=long)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "model must have at most 1024 characters; received 2003."


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/nothing", 404),
        ("GET", "/metrics/", 404),
    ],
)
def test_what_is_not_served_is_an_error_object(http, gateway, method, path, status):
    response = http.request(method, gateway.url + path)
    assert response.status_code == status
    assert response.json()["error"]["message"]


KEYS = '[[keys]]\nname = "alice"\nkey = "sk-alice"\n[[keys]]\nname = "bob"\nkey_env = "BOB"\n'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/metrics"])
def test_keys_are_asked_for(http, start, path):
    gateway = start(KEYS, BOB="sk-bob")
    method = "POST" if "chat" in path else "GET"
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sk-alice"}, {"x-api-key": "sk-bo"}):
        response = http.request(method, gateway.url + path, headers=headers)
        assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
    assert http.get(gateway.url + "/healthz").status_code == 200


def test_a_known_key_is_let_in_and_only_its_name_is_logged(http, start):
    gateway = start(KEYS, BOB="sk-bob")
    for headers in ({"authorization": "bearer sk-alice"}, {"x-api-key": "sk-bob"}):
        assert (
            http.post(f"{gateway.base_url}/chat/completions", json=chat_body("demo"), headers=headers).status_code
            == 200
        )
    assert [turn["key"] for turn in gateway.wait_for_turns(2)] == ["alice", "bob"]
    assert "sk-" not in "\n".join(gateway.log)


def test_the_clients_own_key_goes_upstream_and_ours_never(http, start, upstream: Upstream):
    upstream.replies["key"] = SAYS_HI
    theirs = start(backend(upstream.url))
    http.post(
        f"{theirs.base_url}/chat/completions", json=chat_body("up/key"), headers={"authorization": "Bearer sk-own"}
    )
    assert upstream.of("key")[-1].headers["authorization"] == "Bearer sk-own"
    theirs.stop()
    ours = start(KEYS + backend(upstream.url), BOB="sk-bob")
    http.post(f"{ours.base_url}/chat/completions", json=chat_body("up/key"), headers={"authorization": "Bearer sk-bob"})
    assert "authorization" not in upstream.of("key")[-1].headers


def test_a_backends_own_key_is_used(http, start, upstream):
    upstream.replies["key"] = SAYS_HI
    gateway = start(backend(upstream.url, api_key_env='"UP_KEY"', headers='{ "x-team" = "blue" }'), UP_KEY="sk-up")
    http.post(
        f"{gateway.base_url}/chat/completions", json=chat_body("up/key"), headers={"authorization": "Bearer sk-own"}
    )
    assert upstream.of("key")[-1].headers["authorization"] == "Bearer sk-up"
    assert upstream.of("key")[-1].headers["x-team"] == "blue"


def test_a_codex_login_is_used_and_read_again_when_it_changes(http, start, upstream, tmp_path):
    upstream.replies["login"] = SAYS_HI
    home = tmp_path / "codex"
    home.mkdir()
    gateway = start(backend(upstream.url, auth='"codex"'), CODEX_HOME=str(home))
    url = f"{gateway.base_url}/chat/completions"
    missing = http.post(url, json=chat_body("up/login"))
    assert missing.status_code == 503
    assert "codex login" in missing.json()["error"]["message"]
    for token in ("first", "second-token"):
        (home / "auth.json").write_text(json.dumps({"tokens": {"access_token": token, "account_id": "acct_1"}}))
        assert http.post(url, json=chat_body("up/login")).status_code == 200
        asked = upstream.of("login")[-1]
        assert asked.headers["authorization"] == f"Bearer {token}"
        assert asked.headers["chatgpt-account-id"] == "acct_1"
    assert asked.body["stream"] is True
    assert asked.body["store"] is False
    assert asked.body["instructions"]
    upstream.replies["login"] = Reply([b'{"detail":"token expired"}'], 401, "application/json")
    expired = http.post(url, json=chat_body("up/login"))
    assert expired.status_code == 401
    message = expired.json()["error"]["message"]
    assert message.startswith("Backend `up`")
    assert message.endswith("refused the login: token expired. Run `codex login` to log in again.")


def test_models_are_names_aliases_and_what_a_glob_matches_upstream(http, start, upstream):
    fields = {"models": '["own", "gpt-*"]', "aliases": '{ fast = "gpt-5-mini" }'}
    gateway = start(backend(upstream.url, **fields))
    listed = http.get(f"{gateway.base_url}/models").json()
    names = [model["id"] for model in listed["data"]]
    assert names[:4] == ["own", "fast", "gpt-5", "gpt-5-mini"]
    assert "tts-1" not in names
    assert "demo" in names
    assert http.get(f"{gateway.base_url}/models/gpt-5").json()["owned_by"] == "up"
    assert http.get(f"{gateway.base_url}/models/none").status_code == 404


def test_a_model_is_found_by_alias_glob_or_address_and_answers_under_the_name_it_was_asked_by(http, start, upstream):
    for model in ("gpt-5", "gpt-5-mini", "other"):
        upstream.replies[model] = SAYS_HI
    gateway = start(backend(upstream.url, models='["gpt-*"]', aliases='{ fast = "gpt-5-mini" }'))
    for name, target in (("gpt-5", "gpt-5"), ("fast", "gpt-5-mini"), ("up/fast", "gpt-5-mini"), ("up/other", "other")):
        answer = http.post(f"{gateway.base_url}/chat/completions", json=chat_body(name)).json()
        assert answer["model"] == name
        assert upstream.asked[-1].body["model"] == target


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["openai", "anthropic"])
def test_every_model_that_can_be_asked_can_be_retrieved_and_no_other(http, start, upstream, headers):
    config = backend(upstream.url, models='["own", "gpt-*"]', aliases='{ fast = "gpt-5-mini" }')
    gateway = start(config)
    asked = ("own", "fast", "gpt-5", "gpt-99", "up/own", "up/fast", "up/any/thing", "demo", "demo/demo-short")
    upstream.replies |= dict.fromkeys(("own", "gpt-5", "gpt-5-mini", "gpt-99", "any/thing"), SAYS_HI)
    for name in asked:
        good = http.post(f"{gateway.base_url}/chat/completions", json=chat_body(name))
        assert good.json()["model"] == name
        for path in (name, name.replace("/", "%2F")):
            model = http.get(f"{gateway.base_url}/models/{path}", headers=headers).json()
            assert model["id"] == name
            if headers:
                assert (model["type"], model["display_name"]) == ("model", name)
                assert model["created_at"] == "1970-01-01T00:00:00Z"
            else:
                assert (model["object"], model["owned_by"]) == ("model", "demo" if "demo" in name else "up")
    for name in ("none", "none/own", "demo/own", "up/", ""):
        missing = http.get(f"{gateway.base_url}/models/{name}", headers=headers)
        assert missing.status_code == 404
        assert (missing.json().get("type") == "error") == bool(headers)


def test_models_are_listed_in_pages_for_whoever_speaks_with_anthropic(http, start, upstream):
    gateway = start(backend(upstream.url, models='["a", "b", "c", "d", "e"]'))
    everything = [model["id"] for model in http.get(f"{gateway.base_url}/models").json()["data"]]

    def page(**query) -> tuple[list[str], bool]:
        headers = {"anthropic-version": "2023-06-01"}
        found = http.get(f"{gateway.base_url}/models", params=query, headers=headers).json()
        names = [model["id"] for model in found["data"]]
        assert {model["type"] for model in found["data"]} <= {"model"}
        assert (found["first_id"], found["last_id"]) == ((names[0], names[-1]) if names else (None, None))
        return names, found["has_more"]

    assert page(limit=1000) == (everything, False)
    assert page() == (everything[:20], len(everything) > 20)
    assert page(limit=2) == (["a", "b"], True)
    assert page(limit=2, after_id="b") == (["c", "d"], True)
    assert page(limit=2, before_id="e") == (["c", "d"], True)
    assert page(limit=2, before_id="c") == (["a", "b"], False)
    assert page(before_id="a") == ([], False)
    assert page(after_id=everything[-1]) == ([], False)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("after_id=nobody", "after_id"),
        ("before_id=nobody", "before_id"),
        ("before_id=demo&after_id=demo", "before_id"),
    ],
)
def test_a_page_of_models_that_cannot_be_is_a_400(http, gateway, query, field):
    answer = http.get(f"{gateway.base_url}/models?{query}", headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert field in answer.json()["error"]["message"]


def test_a_missing_key_for_models_is_told_in_anthropics_words(http, start):
    gateway = start(KEYS, BOB="sk-bob")
    answer = http.get(f"{gateway.base_url}/models", headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_a_messages_backend_is_asked_for_all_its_models_at_once(http, start, upstream):
    gateway = start(backend(upstream.url, models='["gpt-*"]').replace('"responses"', '"messages"'))
    listed = http.get(f"{gateway.base_url}/models").json()["data"]
    assert "gpt-5" in [model["id"] for model in listed]
    assert upstream.asked[-1].path == "/v1/models?limit=1000"


def test_a_preflight_is_answered_without_a_key_and_mirrors_what_is_asked(http, start):
    gateway = start(KEYS, BOB="sk-bob")
    response = http.options(
        f"{gateway.base_url}/chat/completions",
        headers={
            "origin": "app://obsidian.md",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-os",
            "access-control-request-private-network": "true",
        },
    )
    assert response.status_code == 200
    assert "x-stainless-os" in response.headers["access-control-allow-headers"]
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("model", ["demo", "demo-error", "nobody"])
def test_a_browser_may_read_answers_and_errors_with_our_headers(http, gateway, model):
    headers = {"origin": "app://obsidian.md"}
    response = http.post(f"{gateway.base_url}/chat/completions", json=chat_body(model), headers=headers)
    assert response.headers["access-control-allow-origin"] == "app://obsidian.md"
    assert "x-codex-tool-call-count" in response.headers["access-control-expose-headers"]


def test_a_hosted_tool_goes_upstream_or_is_noted_or_is_refused(http, start, upstream):
    upstream.replies["hosted"] = SAYS_HI
    tools = [{"type": "web_search"}]
    gateway = start(backend(upstream.url))
    url = f"{gateway.base_url}/chat/completions"
    assert "x-toolwire-notes" not in http.post(url, json=chat_body("up/hosted", tools=tools)).headers
    assert upstream.of("hosted")[-1].body["tools"] == tools
    forced = http.post(url, json=chat_body("demo", tools=tools, tool_choice={"type": "web_search"}))
    assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")
    noted = http.post(url, json=chat_body("demo", tools=tools))
    assert json.loads(noted.headers["x-toolwire-notes"]) == [{"code": "tool_dropped", "subject": "web_search"}]
    gateway.stop()
    strict = start('[tools]\nunsupported = "reject"\n')
    refused = http.post(f"{strict.base_url}/chat/completions", json=chat_body("demo", tools=tools))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


def test_a_broken_history_is_mended_with_a_note_or_refused(http, start, upstream):
    upstream.replies["history"] = SAYS_HI
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "user", "content": "go on"},
    ]
    body = {"model": "up/history", "messages": messages}
    mending = start(backend(upstream.url))
    response = http.post(f"{mending.base_url}/chat/completions", json=body)
    assert json.loads(response.headers["x-toolwire-notes"]) == [{"code": "result_missing", "subject": "c1"}]
    assert [item["type"] for item in upstream.of("history")[-1].body["input"]] == [
        "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    mending.stop()
    strict = start('[tools]\nhistory = "strict"\n' + backend(upstream.url))
    refused = http.post(f"{strict.base_url}/chat/completions", json=body)
    assert refused.status_code == 400
    assert "c1" in refused.json()["error"]["message"]
