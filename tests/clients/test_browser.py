"""A real browser: what pages of other sites can do with a gateway on the same machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.browser import browse
from tests.support.gateway import Gateway, chat_body, response_body

# evil.example is this machine, and the browser does not protect the gateway by itself.
OPTIONS = (
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights",
)
ASK = """
const seen = {};
for (const [name, address, gateway] of given.visits) {
  const page = await browser.newPage();
  const answers = [];
  page.on("response", (response) => { if (response.url().startsWith(gateway)) answers.push(response.status()); });
  await page.goto(address);
  seen[name] = await page.evaluate(async ({ gateway, chat, create }) => {
    const url = `${gateway}/v1/chat/completions`;
    const post = async (type, options) => {
      try {
        const answer = await fetch(url, { method: "POST", body: chat, headers: { "content-type": type }, ...options });
        return answer.type === "opaque" ? "opaque" : answer.status;
      } catch { return "failed"; }
    };
    const socket = () => new Promise((resolve) => {
      const opened = new WebSocket(`${gateway.replace("http", "ws")}/v1/responses`);
      opened.onopen = () => opened.send(create);
      opened.onmessage = (message) => { resolve(JSON.parse(message.data).type); opened.close(); };
      opened.onerror = () => resolve("failed");
    });
    return {
      simple: await post("text/plain", { mode: "no-cors" }),
      json: await post("application/json", {}),
      socket: await socket(),
    };
  }, { ...given, gateway });
  seen[name].answers = answers;
  await page.close();
}
"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A page</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What pages could do, and how many turns the gateway that they attacked had."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    evil, own = f"http://evil.example:{port}/", f"http://localhost:{port}/"
    gateways = [
        Gateway(tmp_path_factory.mktemp(name), config)
        for name, config in (("attacked", ""), ("own", ""), ("open", f'[server]\norigins = ["{evil[:-1]}"]\n'))
    ]
    attacked, at_home, opened = gateways
    rebound = attacked.url.replace("127.0.0.1", "evil.example")
    given = {
        "visits": [
            ("foreign", evil, attacked.url),
            ("rebound", f"{rebound}/healthz", rebound),
            ("own", own, at_home.url),
            ("listed", evil, opened.url),
        ],
        "chat": json.dumps(chat_body("demo")),
        "create": json.dumps({"type": "response.create", **response_body("demo")}),
    }
    seen = browse(ASK, given, *OPTIONS)
    at_home.wait_for_turns(3)
    attacked.stop()  # with it all its lines are written
    yield {**seen, "attacked": attacked.turns(), "at home": at_home.turns()}
    for gateway in (at_home, opened):
        gateway.stop()
    server.shutdown()
    server.server_close()


def test_a_foreign_page_reaches_nothing(visits):
    foreign = visits["foreign"]
    assert (foreign["json"], foreign["socket"]) == ("failed", "failed")
    assert foreign["answers"] == [] or set(foreign["answers"]) <= {403}
    assert visits["attacked"] == [], "a turn was spent"


def test_a_page_under_a_name_that_leads_here_reaches_nothing(visits):
    rebound = visits["rebound"]
    assert (rebound["simple"], rebound["json"], rebound["socket"]) == (403, 403, "failed")
    assert set(rebound["answers"]) == {403}


def test_a_page_on_this_machine_may_ask(visits):
    own = visits["own"]
    assert (own["simple"], own["json"], own["socket"]) == ("opaque", 200, "response.created")
    assert len(visits["at home"]) == 3


def test_the_same_foreign_page_may_ask_where_the_settings_list_it(visits):
    """It is the gateway that kept the page out, not the browser."""
    listed = visits["listed"]
    assert (listed["simple"], listed["json"], listed["socket"]) == ("opaque", 200, "response.created")
