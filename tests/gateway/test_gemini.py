"""The Gemini API as clients reach it: paths, keys, models, token counts, errors, and what reaches the log."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from toolwire import Settings, convert_request, decode_body, translate, translate_body
from toolwire.core.errors import BadRequest
from toolwire.gateway.app import Gateway

Json = dict[str, Any]
ADD = {"name": "add", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]}}
BODY: Json = {"contents": [{"role": "user", "parts": [{"text": "Call add with 2."}]}], "tools": [{"functionDeclarations": [ADD]}]}  # fmt: skip
PLAIN, STREAMED = "/v1beta/models/demo:generateContent", "/v1beta/models/demo:streamGenerateContent"


def client(**settings: object) -> TestClient:
    return TestClient(Gateway(Settings.from_dict({"backends": [], **settings}, {})), base_url="http://127.0.0.1")


@pytest.fixture
def gateway() -> Iterator[TestClient]:
    with client() as gateway:
        yield gateway


def calls(answer: Json) -> list[Json]:
    parts = answer["candidates"][0]["content"]["parts"]
    return [part["functionCall"] for part in parts if "functionCall" in part]


@pytest.mark.parametrize(
    "path",
    [
        PLAIN,
        "/v1/models/demo:generateContent",
        "/v1beta1/publishers/google/models/demo:generateContent",
        "/v1beta1/projects/p/locations/l/publishers/google/models/demo:generateContent",
        "/v1beta/demo:generateContent",
        "/gw/v1beta/models/demo:generateContent",
    ],
)
def test_a_model_answers_at_every_path(gateway: TestClient, path: str):
    answer = gateway.post(path, json=BODY)
    assert answer.status_code == 200, answer.text
    assert [(call["name"], call["args"]) for call in calls(answer.json())] == [("add", {"a": 2})]
    assert answer.headers["x-codex-tool-call-count"] == "1"


def test_a_stream_is_events_or_one_array(gateway: TestClient):
    events = gateway.post(f"{STREAMED}?alt=sse", json=BODY)
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.text.startswith("data: {")
    frames = [json.loads(frame[6:]) for frame in events.text.split("\r\n\r\n")[:-1]]
    array = gateway.post(STREAMED, json=BODY)
    assert array.headers["content-type"] == "application/json"
    for chunks in (frames, array.json()):
        assert [call["args"] for chunk in chunks for call in calls(chunk)] == [{"a": 2}]
        assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
        assert chunks[-1]["usageMetadata"]["totalTokenCount"] > 0


def test_a_body_with_its_model_needs_no_path(gateway: TestClient):
    assert calls(gateway.post("/v1beta/models", json={"model": "models/demo", **BODY}).json())
    refused = gateway.post("/v1beta/models", json=BODY)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "model: This field is required.")


def test_a_failure_before_the_stream_is_an_error_object(gateway: TestClient):
    for path in (
        "/v1beta/models/demo-rate-limit:generateContent",
        "/v1beta/models/demo-rate-limit:streamGenerateContent",
    ):
        answer = gateway.post(path, json=BODY)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (429, 429, "RESOURCE_EXHAUSTED")
        assert [detail["retryDelay"] for detail in error["details"] if "retryDelay" in detail] == ["60s"]


def test_a_failure_inside_the_stream_is_its_last_element(gateway: TestClient):
    path = "/v1beta/models/demo-error-middle:streamGenerateContent"
    assert gateway.post(path, json=BODY).json()[-1]["error"]["code"] >= 500
    assert '"error":{' in gateway.post(f"{path}?alt=sse", json=BODY).text.split("\r\n\r\n")[-2]


def test_models_in_googles_form(gateway: TestClient):
    listed = gateway.get("/v1beta/models?pageSize=2").json()
    assert [model["name"] for model in listed["models"]] == ["models/demo", "models/demo-slow"]
    more = gateway.get(f"/v1beta/models?pageSize=2&pageToken={listed['nextPageToken']}").json()
    assert more["models"][0]["name"] == "models/demo-error"
    assert gateway.get("/v1beta/models/demo").json()["name"] == "models/demo"
    missing = gateway.get("/v1beta/models/nothing")
    assert (missing.status_code, missing.json()["error"]["status"]) == (404, "NOT_FOUND")
    assert gateway.get("/v1beta/models?pageSize=x").json()["error"]["status"] == "INVALID_ARGUMENT"


def test_the_shared_path_of_models_is_openais_without_a_header_of_google(gateway: TestClient):
    assert gateway.get("/v1/models").json()["object"] == "list"
    for header in ("x-goog-api-key", "x-goog-api-client", "x-goog-user-project"):
        assert "models" in gateway.get("/v1/models", headers={header: "x"}).json()
        assert gateway.get("/v1/models/demo", headers={header: "x"}).json()["name"] == "models/demo"


@pytest.mark.parametrize(
    "body", [BODY, {"generateContentRequest": {"model": "models/demo", **BODY}}], ids=["contents", "request"]
)
def test_tokens_are_counted(gateway: TestClient, body: Json):
    for path in ("/v1beta/models/demo:countTokens", "/v1beta1/projects/p/locations/l/publishers/google/models/demo:countTokens"):  # fmt: skip
        answer = gateway.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["totalTokens"] > 10


@pytest.mark.parametrize("way", ["header", "query", "bearer", "both"])
def test_keys_are_read_wherever_clients_put_them(way: str, capfd: pytest.CaptureFixture[str]):
    def send(gateway: TestClient, method: str, path: str, key: str) -> int:
        query = f"{'&' if '?' in path else '?'}key={key}" if way == "query" else ""
        headers = {"x-goog-api-key": key} if way in ("header", "both") else {}
        headers |= {"authorization": f"Bearer {key}"} if way in ("bearer", "both") else {}
        body = BODY if method == "POST" else None
        return gateway.request(method, path + query, headers=headers, json=body).status_code

    asked = [("POST", PLAIN), ("POST", f"{STREAMED}?alt=sse"), ("POST", "/v1beta/models/demo:countTokens"), ("GET", "/v1beta/models"), ("GET", "/v1beta/models/demo")]  # fmt: skip
    with client(keys=[{"name": "me", "key": "secret-1"}]) as gateway:
        for method, path in asked:
            assert send(gateway, method, path, "secret-1") == 200
            assert send(gateway, method, path, "wrong-key-2") == 401
        refused = gateway.post(PLAIN, json=BODY)
        unknown = gateway.get("/v1beta/nothing?key=secret-1")
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert unknown.status_code == 404
    logged = "".join(capfd.readouterr())
    assert '"dialect":"gemini"' in logged
    assert "secret-1" not in logged
    assert "wrong-key" not in logged


def test_a_page_may_send_googles_headers(gateway: TestClient):
    asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST", "access-control-request-headers": "x-goog-api-key,x-goog-api-client"}  # fmt: skip
    answer = gateway.options(f"{STREAMED}?alt=sse", headers=asked)
    assert answer.status_code == 200
    assert "x-goog-api-key" in answer.headers["access-control-allow-headers"]
    own = gateway.post(PLAIN, json=BODY, headers={"origin": "http://localhost:3000"})
    assert own.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PLAIN, 404),
        ("POST", "/v1beta/models/demo:embedContent", 405),
        ("POST", "/v1beta/cachedContents", 404),
        ("PUT", "/v1beta/models", 405),
    ],
)
def test_what_is_not_served_is_refused_in_googles_form(gateway: TestClient, method: str, path: str, status: int):
    answer = gateway.request(method, path, headers={"x-goog-api-key": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


def test_what_only_gemini_can_honour_is_refused_elsewhere(gateway: TestClient):
    for field, more in (("cachedContent", {"cachedContent": "cachedContents/1"}), ("candidateCount", {"generationConfig": {"candidateCount": 2}})):  # fmt: skip
        answer = gateway.post(PLAIN, json={**BODY, **more})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{field}: ")


def test_text_mode_has_a_path_prefix(gateway: TestClient):
    answer = gateway.post(f"/obsidian-xml{PLAIN}", json=BODY)
    parts = answer.json()["candidates"][0]["content"]["parts"]
    assert any("<use_tool>" in part.get("text", "") for part in parts)
    assert answer.headers["x-proxy-output-mode"] == "obsidian-xml"


# The library


def test_the_library_converts_requests_of_gemini_clients():
    converted = convert_request("gemini", "chat", {**BODY, "model": "m", "stream": True})
    sent = json.loads(converted.body)
    assert (sent["model"], sent["stream"], sent["tools"][0]["function"]["name"]) == ("m", True, "add")
    assert json.loads(convert_request("gemini", "messages", BODY, model="m").body)["model"] == "m"
    with pytest.raises(BadRequest, match="model: This field is required"):
        convert_request("gemini", "chat", BODY)
    with pytest.raises(BadRequest, match="cachedContent"):
        convert_request("gemini", "chat", {**BODY, "model": "m", "cachedContent": "c"})


CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
)


def test_the_library_translates_to_gemini_and_back():
    out = b"".join(translate("chat", "gemini", [CHAT], id="r1"))
    assert out.startswith(b'data: {"candidates":')
    assert b'"functionCall":{"name":"f","args":{},"id":"a"}' in out
    back = b"".join(translate("gemini", "chat", [out]))
    assert b'"name":"f"' in back
    plain = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
    answer = translate_body("chat", "gemini", plain, model="m")
    assert decode_body("gemini", answer).text == "Hi"
