"""The real gateway as users run it: a process of its own."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support import processes
from tests.support.upstream import Pause

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


CONSOLE = "toolwire: console "
"""How the line begins that has the link to the console; it holds a token, and is not part of `log`."""


class Gateway:
    """`toolwire serve` on a free port. `log` holds its stderr lines."""

    program: tuple[str, ...] = (sys.executable, "-m", "toolwire")
    own_session = False
    """Whether it has no terminal, also where the tests have one."""

    def __init__(
        self, folder: Path, config: str = "", args: tuple[str, ...] = (), *, fresh: bool = False, **environment: str
    ) -> None:
        path = folder / "toolwire.toml"
        path.write_text(with_store(config))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PROXY_", "OPENAI_", "CODEX_"))}
        clean = {key: value for key, value in clean.items() if key not in PROXIES}
        self.process = processes.Popen(
            [*self.program, "serve", "--config", str(path), "--port", "0", *args],
            env={**clean, **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            text=True,
            start_new_session=self.own_session,
            fresh=fresh,
        )
        self.log: list[str] = []
        self._console: list[str] = []
        self.url = ""
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(120), self.log
        assert self.url, (self.process.wait(60), self.log)

    @property
    def console(self) -> str:
        """The link to the console, which is said right after the address."""
        self.wait_until(lambda: bool(self._console))
        return self._console[0]

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def turns(self) -> list[dict[str, Any]]:
        """The log lines of turns so far."""
        return self.lines("turn")

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event so far."""
        lines = [json.loads(line) for line in self.log if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    def wait_for_turns(self, count: int, seconds: float = 60) -> list[dict[str, Any]]:
        self.wait_until(lambda: len(self.turns()) >= count, seconds)
        return self.turns()

    def wait_until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for the gateway to have written something."""
        end = time.monotonic() + seconds
        while not holds() and time.monotonic() < end:
            time.sleep(0.02)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(120)
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.stop()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(CONSOLE):
                self._console.append(line.removeprefix(CONSOLE).strip())
                continue
            self.log.append(line.rstrip("\n"))
            if line.startswith("toolwire ready on "):
                self.url = line.split()[-1]
                self._started.set()
        self._started.set()


def with_store(config: str) -> str:
    """The configuration with a store in memory, unless it says where its store is."""
    store = '[store]\nurl = "memory:"\n'
    if "[store]" not in config:
        return f"{config}\n{store}"
    return config if re.search(r"^url = ", config, re.MULTILINE) else config.replace("[store]\n", store)


def backend(url: str, name: str = "up", **fields: str) -> str:
    """A `[[backends]]` table for a scripted upstream; models are addressed as `up/NAME`."""
    extra = "".join(f"{key} = {value}\n" for key, value in fields.items())
    return f'[[backends]]\nname = "{name}"\nkind = "responses"\nbase_url = "{url}"\nretries = 0\n{extra}'


def chat_body(model: str, *, stream: bool = False, tools: Any = None, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Go."}],
        "stream": stream,
        **fields,
    }
    if tools is not None:
        body["tools"] = tools
    return body


def response_body(model: str, input: Any = "Go.", *, tools: Any = None, **fields: Any) -> dict[str, Any]:
    """A Responses request. Tools may be given in the form that chat has for them."""
    body: dict[str, Any] = {"model": model, "input": input, **fields}
    if tools is not None:
        body["tools"] = [flat(tool) for tool in tools]
    return body


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A declared tool as Responses has it."""
    return {"type": "function", **tool["function"]} if "function" in tool else tool


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def read_sse(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(`data`, value) and (`comment`, text) of a finished or running stream, strictly: LF, one line an event."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line[6:]
            yield "data", data if data == "[DONE]" else json.loads(data)
        elif line.startswith(": "):
            yield "comment", line[2:]
        else:
            assert line == "", line


class Events:
    """A stream of Responses events, read strictly. `frames` is what `checked.responses_faults` wants."""

    def __init__(self) -> None:
        self.frames: list[tuple[str | None, dict[str, Any]]] = []
        self.comments: list[str] = []
        self.done = False
        """Whether `[DONE]` came, and nothing after it."""

    @property
    def types(self) -> list[str]:
        return [data["type"] for _, data in self.frames]

    @property
    def numbers(self) -> list[int]:
        return [data["sequence_number"] for _, data in self.frames]

    @property
    def response(self) -> dict[str, Any]:
        """The response object of the last event."""
        return self.frames[-1][1]["response"]

    @property
    def telemetry(self) -> dict[str, Any]:
        """The closing comment."""
        return json.loads(self.comments[-1])

    def of(self, type: str) -> list[dict[str, Any]]:
        return [data for _, data in self.frames if data["type"] == type]


def read_events(response: httpx.Response) -> Events:
    """All events of a stream: an `event` line and a `data` line each, LF, a blank line after."""
    events = Events()
    for name, data in iter_events(response, events):
        events.frames.append((name, data))
    return events


def iter_events(response: httpx.Response, into: Events) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The events of a running stream; comments and the end are noted in `into`."""
    name = None
    for line in response.iter_lines():
        assert not (into.done and line), f"{line!r} comes after [DONE]"
        if line.startswith("event: "):
            name = line[7:]
        elif line == "data: [DONE]":
            into.done = True
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])
            name = None
        elif line.startswith(": "):
            into.comments.append(line[2:])
        else:
            assert line == "", line


class Responses:
    """The Responses endpoints, as one client with one key uses them."""

    def __init__(self, http: httpx.Client, gateway: Gateway, key: str = "") -> None:
        self.http = http
        self.url = f"{gateway.base_url}/responses"
        self.headers = {"authorization": f"Bearer {key}"} if key else {}

    def post(self, body: Any, path: str = "", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(self.url + path, json=body, headers={**self.headers, **named})

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.http.get(f"{self.url}/{path}", params=query, headers=self.headers)

    def delete(self, id: str) -> httpx.Response:
        return self.http.delete(f"{self.url}/{id}", headers=self.headers)

    def create(self, model: str, input: Any = "Go.", **fields: Any) -> dict[str, Any]:
        """A plain answer."""
        return good(self.post(response_body(model, input, **fields))).json()

    def stream(self, model: str, input: Any = "Go.", **fields: Any) -> Events:
        return read_events(good(self.post(response_body(model, input, stream=True, **fields))))

    def ask(self, model: str, input: Any = "Go.", *, stream: bool, **fields: Any) -> dict[str, Any]:
        """The final response object, streamed or plain."""
        return self.stream(model, input, **fields).response if stream else self.create(model, input, **fields)

    def retrieve(self, id: str) -> dict[str, Any]:
        return good(self.get(id)).json()

    def replay(self, id: str, **query: Any) -> Events:
        return read_events(good(self.get(id, stream="true", **query)))

    def submit(self, id: str, outputs: dict[str, Any], **fields: Any) -> httpx.Response:
        """Outputs by call id."""
        given = [{"tool_call_id": call, "output": output} for call, output in outputs.items()]
        return self.post({"tool_outputs": given, **fields}, f"/{id}/submit_tool_outputs")

    def wait_for(self, id: str, *statuses: str, seconds: float = 60) -> dict[str, Any]:
        """The response once it has one of these statuses; whatever it is when that takes too long."""
        end = time.monotonic() + seconds
        while True:
            response = self.get(id)
            found = response.json()
            if (response.status_code == 200 and found["status"] in statuses) or time.monotonic() > end:
                return found
            time.sleep(0.02)


def good(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text
    return response


def post_through(http: httpx.Client, url: str, body: Any, gate: "Gate", seen: str, **headers: str) -> httpx.Response:
    """The whole of a streamed answer whose upstream goes on when the client has seen this."""
    received = b""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with http.stream("POST", url, json=body, headers=named) as response:
        for piece in response.iter_bytes():
            received += piece
            if seen.encode() in received:
                gate.open()
    return httpx.Response(response.status_code, headers=response.headers, content=received)


def leave_when(gateway: Gateway, path: str, body: Any, arrived: Callable[[], Any]) -> None:
    """Ask, and leave without an answer once the question has arrived."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as client:
        client.sendall(head.encode() + content)
        gateway.wait_until(lambda: bool(arrived()))


def error_of(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    """The status and the error object of an answer that is nothing else."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) >= {"message", "type", "param", "code"}
    return response.status_code, body["error"]


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a response, as items."""
    return [item for item in response["output"] if item["type"] in ("function_call", "custom_tool_call")]


def text_of(response: dict[str, Any]) -> str:
    """All text of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part.get("text", "") for message in messages for part in message["content"])


class Gate:
    """Steps of a scripted reply that stop in the middle until somebody opens the gate."""

    def __init__(self, *before: Any, after: tuple[Any, ...] = ()) -> None:
        self._before = before
        self._after = after
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __iter__(self) -> Iterator[Any]:
        yield from self._before
        while not self._open.is_set():
            yield Pause(0.01)
        yield from self._after
