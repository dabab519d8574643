"""Smoke test: structured and textual calls, streamed and plain, in both output modes, against a real server.

    python scripts/smoke.py [--url http://127.0.0.1:8787]

Without --url it starts a server of its own. One line a case; the exit code is 1 if any of them failed.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import httpx

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODY = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
}
BLOCK = "<use_tool>\n<name>get_weather</name>\n<city>Paris</city>\n</use_tool>"

MODELS = {"structured": "demo", "textual": "demo-use-tool"}
MODES = ("openai-json", "obsidian-xml")
WAYS = ("streamed", "plain")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A gateway on a free port, with no settings but its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("toolwire ready on "):
                break
        else:
            sys.exit(f"The server did not start.\n{''.join(lines)}")
        try:
            yield lines[-1].split()[-1]
        finally:
            process.terminate()


def ask(client: httpx.Client, model: str, mode: str, way: str) -> dict[str, Any]:
    """The choice a client ends up with: `message` and `finish_reason`."""
    body = {**BODY, "model": model, "stream": way == "streamed"}
    response = client.post("/v1/chat/completions", json=body, headers={"x-proxy-output-mode": mode})
    response.raise_for_status()
    return add_up(response.text) if way == "streamed" else response.json()["choices"][0]


def add_up(stream: str) -> dict[str, Any]:
    data = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    if data.pop() != "[DONE]":
        raise ValueError("the stream does not end with [DONE]")
    content, calls, finish = "", [], []
    for choice in (json.loads(chunk)["choices"][0] for chunk in data):
        content += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"function": {"name": part["function"]["name"], "arguments": ""}})
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    [reason] = finish
    return {"message": {"content": content or None, "tool_calls": calls}, "finish_reason": reason}


def fault(choice: dict[str, Any], mode: str) -> str:
    """What is wrong with an answer, or nothing."""
    message, content = choice["message"], choice["message"]["content"] or ""
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    if calls != [("get_weather", {"city": "Paris"})]:
        return f"the calls are {calls}"
    if choice["finish_reason"] != "tool_calls":
        return f"the finish reason is {choice['finish_reason']!r}"
    if content.count(BLOCK) != (mode == "obsidian-xml") or content.count("<use_tool>") > 1:
        return f"the content is {content!r}"
    return ""


def run(url: str) -> bool:
    """All cases, one line each; whether all went well."""
    passed = True
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        for kind, way, mode in itertools.product(MODELS, WAYS, MODES):
            try:
                wrong = fault(ask(client, MODELS[kind], mode, way), mode)
            except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
                wrong = f"{type(error).__name__}: {error}"
            print(f"{kind:10}  {way:8}  {mode:12}  {f'failed: {wrong}' if wrong else 'ok'}")
            passed = passed and not wrong
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Call tools through a running gateway.")
    parser.add_argument("--url", help="a running gateway, such as http://127.0.0.1:8787")
    chosen = parser.parse_args().url
    with contextlib.nullcontext(chosen) if chosen else server() as url:
        return 0 if run(url) else 1


if __name__ == "__main__":
    sys.exit(main())
