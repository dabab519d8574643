"""Who may ask: hosts and origins of a gateway without keys, and the key of one with keys."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, read_events, response_body
from tests.support.upstream import Reply, Upstream

OWN_HOSTS = ["localhost", "LocalHost:1", "localhost.", "127.0.0.1", "127.8.9.1:99", "[::1]:8787", "[::ffff:127.0.0.1]"]
FOREIGN_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example:8787",
    "evil@localhost",
    "localhost:80:80",
    "localhost evil.example",
    "x.localhost",
    "0.0.0.0",
    "[::]",
    "[::2]:8787",
    "::1",
    "[localhost",
    "",
    "2130706433",
    "localhost,evil.example",
    "localhost/" + "x" * 400,
]
OWN_ORIGINS = [
    "app://obsidian.md",
    "capacitor://localhost",
    "http://localhost",
    "http://LOCALHOST:3000",
    "https://127.0.0.1",
    "http://[::1]:5173",
]
FOREIGN_ORIGINS = [
    "null",
    "",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://localhost@evil.example",
    "app://obsidian.md.evil.example",
    "app://other.md",
    "chrome-extension://abc",
    "ftp://localhost",
    "localhost",
    "http://localhost/, https://evil.example",
    "https://" + "x" * 400,
]
CHAT = "/v1/chat/completions"
PATHS = [
    ("POST", CHAT),
    ("POST", "/v1/messages"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/resp_1/submit_tool_outputs"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/conversations"),
    ("POST", "/obsidian-xml/v1/chat/completions"),
    ("POST", "/openai-json/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/nowhere"),
    ("OPTIONS", CHAT),
]


def answer(gateway: Gateway, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """What the gateway says to these bytes, which no HTTP library would send."""
    port = int(gateway.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    top, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, rest


def is_refused(response: httpx.Response, header: str, setting: str) -> None:
    assert response.status_code == 403
    error = response.json()["error"]
    assert error["type"] == "permission_error"
    assert header in error["message"]
    assert setting in error["message"]
    assert not [name for name in response.headers if name.startswith("access-control-")], "a page could read this"


@pytest.fixture(scope="module")
def keyed(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    keys = '[[keys]]\nname = "alice"\nkey = "k1"\n[[keys]]\nname = "bob"\nkey = "schlüssel"\n'
    gateway = Gateway(tmp_path_factory.mktemp("keyed"), keys + backend(upstream.url))
    yield gateway
    gateway.stop()


# Hosts


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_host_that_is_loopback_is_answered(http, gateway, host):
    assert http.get(gateway.url + "/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_any_other_host_is_refused(gateway, host):
    status, _, body = answer(gateway, f"GET /v1/models HTTP/1.1\nHost: {host}\nConnection: close")
    assert status == 403
    assert "Host" in json.loads(body)["error"]["message"]
    assert "server.hosts" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "hosts", ["", "\nHost: localhost\nHost: localhost", "\nHost: localhost\nHost: evil.example"], ids=str
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_missing_or_repeated_host_is_refused(gateway, hosts, version):
    status, _, body = answer(gateway, f"GET /v1/models HTTP/{version}{hosts}\nConnection: close")
    assert (status, "server.hosts" in json.loads(body)["error"]["message"]) == (403, True)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_refuses_a_foreign_host_and_a_foreign_origin(http, gateway, method, path):
    is_refused(http.request(method, gateway.url + path, headers={"host": "evil.example"}), "Host", "server.hosts")
    origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    is_refused(http.request(method, gateway.url + path, headers=origin), "Origin", "server.origins")


# Origins


@pytest.mark.parametrize("origin", OWN_ORIGINS)
def test_an_own_page_may_ask_and_read_and_is_named(http, gateway, origin):
    headers = {"origin": origin}
    answers = [
        http.post(gateway.url + CHAT, json=chat_body("demo"), headers=headers),
        http.post(gateway.url + CHAT, json=chat_body("demo", stream=True), headers=headers),
        http.post(gateway.url + CHAT, json=chat_body("nobody"), headers=headers),
        http.get(gateway.url + "/v1/models", headers=headers),
        http.get(gateway.url + "/nowhere", headers=headers),
        http.options(gateway.url + CHAT, headers={**headers, "access-control-request-method": "POST"}),
    ]
    assert [each.status_code for each in answers] == [200, 200, 404, 200, 404, 200]
    for each in answers:
        assert each.headers["access-control-allow-origin"] == origin
        assert "origin" in each.headers["vary"].lower()


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_no_other_page_may_ask(http, gateway, upstream, origin):
    is_refused(
        http.post(gateway.url + CHAT, json=chat_body("up/foreign"), headers={"origin": origin}),
        "Origin",
        "server.origins",
    )
    assert upstream.of("foreign") == []


def test_a_simple_request_of_a_page_is_refused(http, gateway):
    body = json.dumps(chat_body("demo")).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"origin": "https://evil.example", "content-type": kind}
        is_refused(http.post(gateway.url + CHAT, content=body, headers=headers), "Origin", "server.origins")


def test_one_foreign_origin_among_several_is_enough(gateway):
    origins = "Origin: http://localhost\nOrigin: https://evil.example"
    status, _, _ = answer(gateway, f"GET /v1/models HTTP/1.1\nHost: localhost\n{origins}\nConnection: close")
    assert status == 403


@pytest.mark.parametrize(
    ("headers", "setting"),
    [({"Origin": "https://evil.example"}, "server.origins"), ({"Origin": "null"}, "server.origins")],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/openai-json/v1/responses", "/nowhere"])
def test_a_foreign_page_gets_no_socket(gateway, headers, setting, path):
    url = gateway.url.replace("http", "ws", 1) + path
    with pytest.raises(InvalidStatus) as refused:
        with connect(url, additional_headers=headers, proxy=None):
            pass
    assert refused.value.response.status_code == 403
    assert setting in refused.value.response.body.decode()


def test_a_foreign_host_gets_no_socket(gateway):
    upgrade = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    for hosts in ("Host: evil.example", "Host: localhost\nHost: localhost"):
        status, _, body = answer(gateway, f"GET /v1/responses HTTP/1.1\n{hosts}\n{upgrade}\n{key}")
        assert (status, b"server.hosts" in body) == (403, True)


def ask_once(connection: ClientConnection) -> list[str]:
    """The types of the events of one turn."""
    connection.send(json.dumps({"type": "response.create", **response_body("demo")}))
    types: list[str] = []
    while types[-1:] != ["response.completed"]:
        types.append(json.loads(connection.recv(60))["type"])
    return types


def test_an_own_page_gets_a_socket(gateway):
    url = gateway.url.replace("http", "ws", 1) + "/v1/responses"
    with connect(url, additional_headers={"Origin": "app://obsidian.md"}, proxy=None) as connection:
        assert ask_once(connection)[0] == "response.created"


# Settings


def test_settings_name_further_hosts_and_replace_the_origins(http, start: Callable[..., Gateway]):
    config = '[server]\nhosts = ["My.Box", "10.0.0.7", "[fd00::1]"]\norigins = ["https://chat.example:8443"]\n'
    gateway = start(config)
    url = gateway.url + "/v1/models"
    for host in ("my.box:80", "MY.BOX.", "10.0.0.7", "[fd00::1]:8787", "localhost"):
        assert http.get(url, headers={"host": host}).status_code == 200, host
    for host in ("box", "not.my.box", "10.0.0.8", "[fd00::2]"):
        assert http.get(url, headers={"host": host}).status_code == 403, host
    for origin, status in {
        "https://chat.example:8443": 200,
        "HTTPS://Chat.Example:8443": 200,
        "http://localhost:3000": 200,
        "https://chat.example": 403,
        "http://chat.example:8443": 403,
        "app://obsidian.md": 403,
    }.items():
        assert http.get(url, headers={"origin": origin}).status_code == status, origin


# Keys


def test_with_keys_the_key_decides_and_no_host_or_origin_does(http, keyed):
    headers = {"host": "evil.example", "origin": "https://evil.example"}
    preflight = http.options(keyed.url + CHAT, headers={**headers, "access-control-request-method": "POST"})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "*")
    without = http.post(keyed.url + CHAT, json=chat_body("demo"), headers=headers)
    assert (without.status_code, without.headers["access-control-allow-origin"]) == (401, "*")
    given = {**headers, "authorization": "Bearer k1"}
    assert http.post(keyed.url + CHAT, json=chat_body("demo"), headers=given).status_code == 200
    assert http.get(keyed.url + "/metrics", headers=headers).status_code == 401
    url = keyed.url.replace("http", "ws", 1) + "/v1/responses"
    with pytest.raises(InvalidStatus) as refused:
        with connect(url, additional_headers={"Origin": "http://localhost"}, proxy=None):
            pass
    assert refused.value.response.status_code == 401
    with connect(
        url, additional_headers={"Origin": "https://evil.example", "Authorization": "Bearer k1"}, proxy=None
    ) as connection:
        assert ask_once(connection)[0] == "response.created"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("header", [b"authorization", b"x-api-key"])
def test_a_key_may_have_letters_beyond_ascii(http, keyed, encoding, header):
    prefix = b"Bearer " if header == b"authorization" else b""
    headers = [(header, prefix + "schlüssel".encode(encoding))]
    assert http.post(keyed.url + CHAT, json=chat_body("demo"), headers=headers).status_code == 200
    wrong = [(header, prefix + "schlüssek".encode(encoding))]
    assert http.post(keyed.url + CHAT, json=chat_body("demo"), headers=wrong).status_code == 401


def test_a_clients_key_beyond_ascii_reaches_the_backend_as_it_was(http, gateway, upstream):
    upstream.replies["beyond"] = Reply([stream(created(), text("hi"), completed())])
    headers = [(b"authorization", "Bearer schlüssel".encode())]
    http.post(gateway.url + CHAT, json=chat_body("up/beyond"), headers=headers)
    assert upstream.of("beyond")[-1].headers["authorization"] == "Bearer schlüssel"


def test_readiness_lists_backends_only_to_those_with_a_key(http, keyed):
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = http.get(keyed.url + "/readyz", headers=headers)
        body = answer.json()
        assert body.pop("configuration")  # a hash without secrets
        assert (answer.status_code, body) == (200, {"status": "ready", "store": "ok"})
    known = http.get(keyed.url + "/readyz", headers={"authorization": "Bearer k1"})
    assert known.json()["backends"] == ["up", "demo"]


def test_a_key_from_a_variable_may_end_with_a_line(http, start):
    gateway = start('[[keys]]\nname = "a"\nkey_env = "THE_KEY"\n', THE_KEY="k1\n")
    headers = {"authorization": "Bearer k1"}
    assert http.get(gateway.url + "/v1/models", headers=headers).status_code == 200


# Ids


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_id_is_not_the_response_id_and_the_log_has_both(http, gateway, streamed):
    answer = http.post(f"{gateway.base_url}/responses", json=response_body("demo", stream=streamed))
    request_id = answer.headers["x-request-id"]
    response_id = read_events(answer).response["id"] if streamed else answer.json()["id"]
    assert request_id.removeprefix("req_") != response_id.removeprefix("resp_")
    gateway.wait_until(lambda: any(line["request_id"] == request_id for line in gateway.turns()))
    [line] = [line for line in gateway.turns() if line["request_id"] == request_id]
    assert f"resp_{line['turn']}" == response_id


def test_no_id_can_be_foretold():
    """Ids come from the system's source of randomness: no generator has a state that could be worked out."""
    source = Path(__file__).parents[2] / "src" / "toolwire"
    makers = [path for path in source.rglob("*.py") if "getrandbits" in path.read_text()]
    assert makers == []
