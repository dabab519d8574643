"""The real gateway as users run it: a process of its own."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Gateway:
    """`toolwire serve` on a free port. `log` holds its stderr lines."""

    def __init__(self, folder: Path, config: str = "", args: tuple[str, ...] = (), **environment: str) -> None:
        path = folder / "toolwire.toml"
        path.write_text(config)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PROXY_", "OPENAI_", "CODEX_"))}
        clean = {key: value for key, value in clean.items() if key not in PROXIES}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "toolwire", "serve", "--config", str(path), "--port", "0", *args],
            env={**clean, **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            text=True,
        )
        self.log: list[str] = []
        self.url = ""
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(30), self.log
        assert self.url, self.log

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def turns(self) -> list[dict[str, Any]]:
        """The log lines of turns so far."""
        lines = [json.loads(line) for line in self.log if line.startswith("{")]
        return [line for line in lines if line.get("event") == "turn"]

    def wait_for_turns(self, count: int, seconds: float = 10) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        while len(self.turns()) < count and time.monotonic() < end:
            time.sleep(0.02)
        return self.turns()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(40)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if line.startswith("toolwire ready on "):
                self.url = line.split()[-1]
                self._started.set()
        self._started.set()


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
