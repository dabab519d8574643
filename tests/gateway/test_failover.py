"""Several backends for one model: the next one is asked when one fails before anything was shown, never later."""

import json

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.backend_writers import reply
from tests.support.client_readers import PATHS
from tests.support.frames import completed, created, rs, text
from tests.support.gateway import chat_body, read_sse
from tests.support.routes import Routes, question
from tests.support.scripts import NAMES, Says, Script
from tests.support.upstream import Cut, Reply, Upstream


@pytest.fixture
def upstreams():
    pair = Upstream(), Upstream()
    yield pair
    for each in pair:
        each.stop()


@pytest.fixture
def ask(start, upstreams):
    tables = [
        f'[[backends]]\nname = "{name}"\nkind = "responses"\nbase_url = "{each.url}"\nretries = 0\nmodels = ["m-*"]\n'
        for name, each in zip(("first", "second"), upstreams, strict=True)
    ]
    gateway = start("\n".join(tables))

    def post(model: str, *, stream: bool = False) -> httpx.Response:
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=chat_body(model, stream=stream), timeout=120)

    return post


FINE = Reply([created(), text("Here I am."), completed()])
REFUSALS = {
    "busy": Reply([b"{}"], 429, "application/json", {"retry-after": "60"}),
    "down": Reply([b"{}"], 503, "application/json"),
    "cut": Reply([created(), Cut()]),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("name", REFUSALS)
def test_the_next_backend_answers_and_a_note_says_so(ask, upstreams, name: str, stream: bool):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS[name], FINE
    answer = ask("m-1", stream=stream)
    assert answer.status_code == 200
    if stream:
        [said] = [json.loads(value) for kind, value in read_sse(answer) if kind == "comment"]
        notes = said["notes"]
        assert "Here I am." in answer.text
    else:
        notes = json.loads(answer.headers["x-toolwire-notes"])
        assert answer.json()["choices"][0]["message"]["content"] == "Here I am."
    assert [note["code"] for note in notes] == ["failed_over"]


def test_a_backend_that_failed_comes_last_for_a_while(ask, upstreams):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS["down"], FINE
    for _ in range(3):
        assert ask("m-1").status_code == 200
    assert (len(first.asked), len(second.asked)) == (1, 3)


def test_what_the_request_is_to_blame_for_is_not_tried_elsewhere(ask, upstreams):
    first, second = upstreams
    body = b'{"error":{"message":"No.","code":"invalid_prompt"}}'
    first.replies["m-1"], second.replies["m-1"] = Reply([body], 400, "application/json"), FINE
    assert ask("m-1").status_code == 400
    assert second.asked == []


def test_nobody_else_is_asked_once_something_was_shown(ask, upstreams):
    first, second = upstreams
    failure = rs("failed", response={"status": "failed", "error": {"code": "server_error", "message": "Broke."}})
    first.replies["m-1"], second.replies["m-1"] = Reply([created(), text("Half"), failure]), FINE
    answer = ask("m-1", stream=True)
    assert "Half" in answer.text
    assert "Broke." in answer.text
    assert second.asked == []


def test_when_all_fail_the_last_failure_is_told(ask, upstreams):
    for each in upstreams:
        each.replies["m-1"] = REFUSALS["down"]
    assert ask("m-1").status_code == 503


# The client's own key


MINE = {"authorization": "Bearer sk-mine"}


def keys_at(upstream: Upstream) -> list[str | None]:
    return [asked.headers.get("authorization") for asked in upstream.asked]


def table(name: str, url: str, kind: str = "responses", **fields: str) -> str:
    extra = "".join(f"{key} = {value}\n" for key, value in fields.items())
    head = f'[[backends]]\nname = "{name}"\nkind = "{kind}"\nbase_url = "{url}"\nretries = 0\n'
    return f'{head}models = ["m-*", "gpt-*"]\n{extra}\n'


PLACEHOLDERS = [
    {"authorization": "Bearer unused"},
    {"authorization": "bearer  unused"},
    {"x-api-key": "unused"},
    {"authorization": "Bearer unused", "x-api-key": "unused"},
]


@pytest.mark.parametrize("headers", PLACEHOLDERS, ids=str)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("dialect", NAMES)
def test_the_key_that_launch_and_env_hand_out_is_not_passed_on(routes: Routes, http, dialect, kind, headers):
    model = f"placeholder-{dialect}-{kind}"
    routes.upstream.replies[model] = reply(Script((Says("Hi."),)), kind, stream=False)
    body = question(dialect, f"{kind}/{model}", (), stream=False)
    assert http.post(routes.gateway.url + PATHS[dialect], json=body, headers=headers).status_code == 200
    for asked in routes.upstream.of(model):
        assert "unused" not in str(asked.headers)
        assert not {"authorization", "x-api-key"} & asked.headers.keys()


def test_a_real_key_beside_the_placeholder_is_passed_on(routes: Routes, http):
    routes.upstream.replies["placeholder-beside"] = FINE
    headers = {"authorization": "Bearer unused", "x-api-key": "sk-mine"}
    body = chat_body("responses/placeholder-beside")
    assert http.post(f"{routes.gateway.base_url}/chat/completions", json=body, headers=headers).status_code == 200
    [asked] = routes.upstream.of("placeholder-beside")
    assert asked.headers["authorization"] == "Bearer sk-mine"


def test_the_placeholder_is_not_passed_on_from_a_websocket(routes: Routes):
    routes.upstream.replies["placeholder-socket"] = FINE
    url = routes.gateway.url.replace("http", "ws") + "/v1/responses"
    with connect(url, proxy=None, additional_headers={"authorization": "Bearer unused"}) as socket:
        asked = {"type": "response.create", "model": "responses/placeholder-socket", "input": "Go."}
        socket.send(json.dumps(asked))
        while json.loads(socket.recv(90))["type"] != "response.completed":
            pass
    [sent] = routes.upstream.of("placeholder-socket")
    assert "authorization" not in sent.headers


@pytest.mark.parametrize("streamed", [True, False])
def test_a_clients_key_never_goes_to_another_origin(start, http, upstreams, streamed):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS["down"], FINE
    gateway = start(table("first", first.url) + table("second", second.url))
    url = f"{gateway.url}/v1/chat/completions"
    for _ in range(2):  # the second time the first backend comes last
        assert http.post(url, json=chat_body("m-1", stream=streamed), headers=MINE).status_code == 200
    assert keys_at(first) == ["Bearer sk-mine"]
    assert keys_at(second) == [None, None]
    assert http.post(url, json=chat_body("second/m-1", stream=streamed), headers=MINE).status_code == 200
    assert keys_at(second)[-1] == "Bearer sk-mine", "who names a backend means it"


def test_a_clients_key_does_not_follow_where_the_first_backend_has_a_key_of_its_own(start, http, upstreams):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS["down"], FINE
    config = table("first", first.url, api_key_env='"OURS"') + table("second", second.url)
    gateway = start(config, OURS="sk-ours")
    assert http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("m-1"), headers=MINE).status_code == 200
    assert (keys_at(first), keys_at(second)) == (["Bearer sk-ours"], [None])


def test_a_clients_key_follows_to_the_same_origin(start, http, upstreams):
    first, _ = upstreams
    first.replies["m-1"] = [REFUSALS["down"], FINE]
    gateway = start(table("first", first.url) + table("second", first.url.upper().replace("HTTP", "http") + "/"))
    assert http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("m-1"), headers=MINE).status_code == 200
    assert keys_at(first) == ["Bearer sk-mine"] * 2


def test_models_are_listed_with_the_clients_key_at_one_origin(start, http, upstreams):
    first, second = upstreams
    gateway = start(table("first", first.url) + table("second", second.url, "messages"))
    listed = http.get(f"{gateway.url}/v1/models", headers=MINE).json()["data"]
    assert "gpt-5" in [model["id"] for model in listed]
    assert (keys_at(first), keys_at(second)) == (["Bearer sk-mine"], [None])
    headers = {"x-api-key": "sk-other", "anthropic-version": "2023-06-01"}
    assert http.get(f"{gateway.url}/v1/models", headers=headers).status_code == 200
    assert [asked.headers.get("x-api-key") for asked in second.asked] == [None, "sk-other"]
    assert keys_at(first) == ["Bearer sk-mine", None]


def test_tokens_are_counted_with_the_clients_key_at_one_origin(start, http, upstreams):
    first, second = upstreams
    first.replies["m-1"] = REFUSALS["down"]
    second.replies["m-1"] = lambda asked: (
        Reply([b'{"input_tokens":7}'], 200, "application/json") if "count" in asked.path else FINE
    )
    gateway = start(table("first", first.url) + table("second", second.url, profile="{ counts_tokens = true }"))
    http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("m-1"), headers=MINE)
    body = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    http.post(f"{gateway.url}/v1/messages/count_tokens", json=body, headers=MINE)
    assert keys_at(first) == ["Bearer sk-mine"]
    assert keys_at(second) == [None] * len(second.asked)
    assert len(second.asked) == 2


# Small documents


def test_a_list_of_models_or_a_count_that_leads_elsewhere_is_not_followed(start, http, upstreams):
    first, second = upstreams
    away = {"location": f"{second.url}/models"}
    first.listing = Reply([b""], 307, headers=away)
    first.replies["m-1"] = Reply([b""], 307, "text/plain", {"location": f"{second.url}/responses/input_tokens"})
    gateway = start(table("first", first.url, profile="{ counts_tokens = true }"))
    listed = http.get(f"{gateway.url}/v1/models", headers=MINE).json()["data"]
    assert "gpt-5" not in [model["id"] for model in listed]
    body = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    counted = http.post(f"{gateway.url}/v1/messages/count_tokens", json=body, headers=MINE)
    assert "tokens_estimated" in counted.headers["x-toolwire-notes"]
    assert len(first.asked) == 2
    assert second.asked == []


def test_no_more_than_a_small_document_is_read(start, http, upstreams):
    first, _ = upstreams
    model = b'{"id":"gpt-%07d"},'
    few, many = (b"".join(model % number for number in range(count)) for count in (1000, 250_000))
    gateway = start(table("first", first.url, profile="{ counts_tokens = true }"))
    for listing, told in ((few, 1000), (many, 0)):
        first.listing = Reply([b'{"data":[', listing[:-1], b"]}"], headers={"content-type": "application/json"})
        headers = {"authorization": f"Bearer {told}"}  # another key is another list
        listed = http.get(f"{gateway.url}/v1/models", headers=headers).json()["data"]
        assert len([model for model in listed if model["id"].startswith("gpt-")]) == told
    first.replies["m-1"] = Reply([b'{"input_tokens":7}' + b" " * 5_000_000], 200, "application/json")
    body = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    counted = http.post(f"{gateway.url}/v1/messages/count_tokens", json=body, headers=MINE)
    assert "tokens_estimated" in counted.headers["x-toolwire-notes"]


@pytest.mark.parametrize(
    "odd", [b'{"x":' + b"[" * 5000, b'{"data":[{"id":"\xff"}],"input_tokens":"\xff"}'], ids=["deep", "bytes"]
)
def test_a_list_of_models_or_a_count_that_cannot_be_read_is_left_out(start, http, upstreams, odd: bytes):
    first, _ = upstreams
    first.listing = Reply([odd], headers={"content-type": "application/json"})
    first.replies["m-1"] = Reply([odd], 200, "application/json")
    gateway = start(table("first", first.url, profile="{ counts_tokens = true }"))
    assert http.get(f"{gateway.url}/v1/models", headers=MINE).json()["data"]
    body = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    counted = http.post(f"{gateway.url}/v1/messages/count_tokens", json=body, headers=MINE)
    assert "tokens_estimated" in counted.headers["x-toolwire-notes"]


BUSY = Reply([b"{}"], 503, "application/json", {"retry-after": "0"})


def test_retries_of_a_backend_that_only_fails_come_to_an_end(start, upstream, http):
    gateway = start(f'[[backends]]\nname = "up"\nkind = "responses"\nbase_url = "{upstream.url}"\nretry_budget = 0.2\n')
    upstream.replies["m-1"] = BUSY
    before = len(upstream.asked)
    for _ in range(30):
        refused = http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("up/m-1"))
        assert refused.status_code == 503
    assert 30 + 10 <= len(upstream.asked) - before <= 30 + 10 + 6 + 2
    assert 'toolwire_notes_total{code="retry_withheld"}' in http.get(f"{gateway.url}/metrics").text


def test_a_request_whose_part_is_refused_earns_retries_once(start, upstream, http):
    gateway = start(f'[[backends]]\nname = "up"\nkind = "responses"\nbase_url = "{upstream.url}"\nretry_budget = 1\n')
    error = {"error": {"message": "Unknown parameter: 'include'.", "param": None}}
    refused = Reply([json.dumps(error).encode()], 400, "application/json")
    before = len(upstream.asked)
    for number in range(40):
        upstream.replies[f"m-{number}"] = lambda asked: refused if asked.body.get("include") else BUSY
        assert http.post(f"{gateway.url}/v1/chat/completions", json=chat_body(f"up/m-{number}")).status_code == 503
    assert 80 + 40 + 10 <= len(upstream.asked) - before < 80 + 80
    assert 'toolwire_notes_total{code="retry_withheld"}' in http.get(f"{gateway.url}/metrics").text


def test_without_retries_left_the_next_backend_is_asked_at_once(start, upstreams, http):
    first, second = upstreams
    tables = [
        f'[[backends]]\nname = "{name}"\nkind = "responses"\nbase_url = "{each.url}"\nmodels = ["m-*"]\nretry_budget = 0\n'
        for name, each in zip(("first", "second"), upstreams, strict=True)
    ]
    gateway = start("\n".join(tables))
    first.replies["m-1"], second.replies["m-1"] = BUSY, FINE
    first.replies["lost"] = BUSY
    for _ in range(10):
        http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("first/lost"))
    spent = len(first.asked)
    answer = http.post(f"{gateway.url}/v1/chat/completions", json=chat_body("m-1"))
    assert answer.status_code == 200
    assert len(first.asked) == spent + 1
    notes = [note["code"] for note in json.loads(answer.headers["x-toolwire-notes"])]
    assert notes == ["retry_withheld", "failed_over"]
