"""The console of a gateway, asked as its page asks it."""

import time
from typing import Any

import httpx

from tests.support.gateway import Gateway

PATIENCE = 90.0
"""Seconds that anything may take on a busy machine."""

PAGES = r"""
const PATIENCE = 120000;

async function open(width, scheme, mayFail = false) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme: scheme, reducedMotion: "reduce", acceptDownloads: true });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: given.url });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.on("console", (message) => { if (!mayFail && ["error", "warning"].includes(message.type())) seen.said.push(`${message.type()}: ${message.text()}`); });
  page.on("pageerror", (error) => seen.said.push(String(error)));
  page.on("request", (request) => { if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(given.url)) seen.elsewhere.push(request.url()); });
  return page;
}
async function go(page, hash, view) {
  await page.evaluate((wanted) => { document.getElementById("main").dataset.view = ""; location.hash = wanted; }, hash);
  await page.waitForSelector(`main[data-view="${view}"]`);
}
let seen = { said: [], elsewhere: [] };
"""
"""For a script that drives a browser: `open` opens a page whose complaints and foreign requests are `seen`, `go` goes to
a view of the console."""


class ConsoleClient:
    """Somebody who looks, by the token or by a key."""

    def __init__(self, gateway: Gateway, secret: str = "") -> None:
        self.gateway = gateway
        key = secret or gateway.console.partition("token=")[2]
        headers = {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> "ConsoleClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str) -> Any:
        answer = self.http.get(f"/console/api/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **value: Any) -> Any:
        answer = self.http.post(f"/console/api/{path}", json=value)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self) -> list[dict[str, Any]]:
        """All turns that are over, the oldest first."""
        workers = self.get("turns")["workers"]
        return sorted((row for worker in workers for row in worker["rows"]), key=lambda row: row["at"])

    def wait_for(self, **facts: Any) -> dict[str, Any]:
        """The last turn with these facts, once it is over."""
        end = time.monotonic() + PATIENCE
        while True:
            rows = [row for row in self.rows() if all(row.get(name) == value for name, value in facts.items())]
            if rows:
                return rows[-1]
            assert time.monotonic() < end, f"no turn with {facts} in {self.rows()}"
            time.sleep(0.05)

    def turn(self, **facts: Any) -> dict[str, Any]:
        """All that is kept of the last turn with these facts."""
        return self.get(f"turns/{self.wait_for(**facts)['id']}")
