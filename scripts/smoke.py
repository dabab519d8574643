"""Smoke test: calls of a tool over every API, streamed and plain, in both output modes, against a real server.

    python scripts/smoke.py [--url http://127.0.0.1:8787] [--model NAME]… [--key-env VARIABLE]

Without --url it starts a server of its own. Without --model it asks the demo models, one with structured and one with
textual calls. One line a case; the exit code is 1 if any of them failed. It needs Toolwire and the standard library.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

QUESTION = "What is the weather in Paris?"
NAME = "get_weather"
ABOUT = "Tells the weather in a city."
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USER = [{"role": "user", "content": QUESTION}]

DEMO = ("demo", "demo-use-tool")
MODES = ("openai-json", "obsidian-xml")
WAYS = ("streamed", "plain")
SECONDS = 120

Json = dict[str, Any]
Call = tuple[str, Any]


class Answer(NamedTuple):
    """What a client ends up with."""

    calls: list[Call]
    text: str
    finish: str


class Api(NamedTuple):
    """One API: where and what it is asked, how its answers are read, and how a turn with calls ends there."""

    path: str
    body: Json
    plain: Callable[[Json], Answer]
    streamed: Callable[[list[Json]], Answer]
    finish: str


def chat_plain(body: Json) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    return Answer(calls, message["content"] or "", choice["finish_reason"])


def chat_streamed(events: list[Json]) -> Answer:
    text, names, arguments, finish = "", list[str](), list[str](), list[str]()
    for choice in (event["choices"][0] for event in events if event["choices"]):
        text += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls") or ():
            if part["index"] == len(names):
                names.append(part["function"]["name"])
                arguments.append("")
            arguments[part["index"]] += part["function"]["arguments"]
        finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    [reason] = finish
    return Answer(list(zip(names, map(json.loads, arguments), strict=True)), text, reason)


def responses_plain(body: Json) -> Answer:
    output = body["output"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in output if item["type"] == "function_call"]
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    return Answer(calls, "".join(texts), body["status"])


def responses_streamed(events: list[Json]) -> Answer:
    arguments: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments[event["item_id"]] = arguments.get(event["item_id"], "") + event["delta"]
    whole = responses_plain(events[-1]["response"])
    if [json.loads(each) for each in arguments.values()] != [each for _, each in whole.calls]:
        raise ValueError(f"the deltas of arguments are {[*arguments.values()]}")
    return whole


def messages_plain(body: Json) -> Answer:
    blocks = body["content"]
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return Answer(calls, "".join(block["text"] for block in blocks if block["type"] == "text"), body["stop_reason"])


def messages_streamed(events: list[Json]) -> Answer:
    blocks: dict[int, Json] = {}
    pieces: dict[int, str] = {}
    finish = ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                delta = event["delta"]
                piece = delta.get("text") or delta.get("partial_json") or ""
                pieces[event["index"]] = pieces.get(event["index"], "") + piece
            case "message_delta":
                finish = event["delta"]["stop_reason"]
            case _:
                pass
    for index, block in blocks.items():
        if block["type"] == "tool_use":
            block["input"] = json.loads(pieces.get(index) or "{}")
        elif block["type"] == "text":
            block["text"] = pieces.get(index, "")
    return messages_plain({"content": [*blocks.values()], "stop_reason": finish})


FUNCTION = {"name": NAME, "description": ABOUT, "parameters": PARAMETERS}
APIS = {
    "chat": Api(
        "/v1/chat/completions",
        {"messages": USER, "tools": [{"type": "function", "function": FUNCTION}]},
        chat_plain,
        chat_streamed,
        "tool_calls",
    ),
    "responses": Api(
        "/v1/responses",
        {"input": QUESTION, "store": False, "tools": [{"type": "function", **FUNCTION}]},
        responses_plain,
        responses_streamed,
        "completed",
    ),
    "messages": Api(
        "/v1/messages",
        {
            "max_tokens": 1024,
            "messages": USER,
            "tools": [{"name": NAME, "description": ABOUT, "input_schema": PARAMETERS}],
        },
        messages_plain,
        messages_streamed,
        "tool_use",
    ),
}


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


def ask(url: str, key: str, api: Api, model: str, mode: str, way: str) -> Answer:
    """The answer of a model."""
    headers = {"content-type": "application/json", "x-proxy-output-mode": mode, "anthropic-version": "2023-06-01"}
    if key:
        headers |= {"authorization": f"Bearer {key}", "x-api-key": key}
    body = json.dumps({**api.body, "model": model, "stream": way == "streamed"}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url + api.path, body, headers), timeout=SECONDS) as response:
        data = response.read().decode()
    return api.streamed(events_in(data)) if way == "streamed" else api.plain(json.loads(data))


def events_in(stream: str) -> list[Json]:
    """The events of a stream, which has to end as its API says."""
    data = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    if not data or (data[-1] != "[DONE]" and '"message_stop"' not in data[-1]):
        raise ValueError("the stream does not come to its end")
    return [json.loads(each) for each in data if each != "[DONE]"]


def fault(answer: Answer, api: Api, mode: str) -> str:
    """What is wrong with an answer, or nothing."""
    if not answer.calls or any(name != NAME or "Paris" not in input["city"] for name, input in answer.calls):
        return f"the calls are {answer.calls}"
    if answer.finish != api.finish:
        return f"the turn ends with {answer.finish!r}"
    blocks = [
        f"<use_tool>\n<name>{NAME}</name>\n<city>{input['city']}</city>\n</use_tool>" for _, input in answer.calls
    ]
    expected = blocks if mode == "obsidian-xml" else []
    if answer.text.count("<use_tool>") != len(expected) or any(block not in answer.text for block in expected):
        return f"the text is {answer.text!r}"
    return ""


def run(url: str, key: str, models: Iterable[str]) -> bool:
    """All cases, one line each; whether all went well."""
    passed = True
    for model, (name, api), way, mode in itertools.product(models, APIS.items(), WAYS, MODES):
        try:
            wrong = fault(ask(url, key, api, model, mode, way), api, mode)
        except urllib.error.HTTPError as error:
            wrong = f"{error.code}: {error.read().decode(errors='replace')[:500]}"
        except (OSError, LookupError, TypeError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        print(f"{model:14}  {name:9}  {way:8}  {mode:12}  {f'failed: {wrong}' if wrong else 'ok'}", flush=True)
        passed = passed and not wrong
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Call a tool through a running gateway.")
    parser.add_argument("--url", help="a running gateway, such as http://127.0.0.1:8787")
    parser.add_argument(
        "--model", action="append", help="a model to ask; may be given again (default: the demo models)"
    )
    parser.add_argument("--key-env", default="", help="the environment variable with a key for the gateway")
    given = parser.parse_args()
    chosen = given.url.rstrip("/").removesuffix("/v1") if given.url else None
    key = os.environ[given.key_env] if given.key_env else ""
    with contextlib.nullcontext(chosen) if chosen else server() as url:
        return 0 if run(url, key, given.model or DEMO) else 1


if __name__ == "__main__":
    sys.exit(main())
