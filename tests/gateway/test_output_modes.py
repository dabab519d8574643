"""The same calls, whichever way the model writes them and whichever way the client reads them."""

import json

import httpx
import pytest

from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, read_sse, tool
from tests.support.pace import at_any_pace
from tests.support.upstream import Hold, Pause, Reply, Upstream
from toolwire import extract_use_tool_blocks

TOOLS = [tool("find", q={"type": "string"}), tool("now")]
USE_TOOL = "<use_tool>\n<name>find</name>\n<q>x</q>\n</use_tool>"
TOOL_CALL = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
TAGGED = "<tool_call><function=find><parameter=q>x</parameter></function></tool_call>"
FIND, NOW = ("find", {"q": "x"}), ("now", {})

TURNS = {
    "structured": (stream(call("c1", "find", '{"q":', '"x"}'), call("c2", "now", "", index=1)), [FIND, NOW]),
    "use_tool": (text(f"Let me see.\n{USE_TOOL}\n"), [FIND]),
    "tool_call": (text(f"{TOOL_CALL} and {TAGGED}"), [NOW, FIND]),
    "split": (b"".join(text(letter) for letter in USE_TOOL), [FIND]),
    "both, one a twin": (stream(call("c1", "find", '{"q": "x"}'), text(USE_TOOL + TOOL_CALL)), [FIND, NOW]),
}


@pytest.fixture(scope="module", autouse=True)
def replies(upstream: Upstream) -> None:
    for name, (data, _) in TURNS.items():
        upstream.replies[name] = Reply([stream(created(), data, completed())])


def ask(http: httpx.Client, gateway: Gateway, body: dict, **headers: str) -> dict:
    """The message and finish of an answer, streamed or plain alike."""
    response = http.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    if body["stream"]:
        return fold_chat(list(read_sse(response)))
    choice = response.json()["choices"][0]
    return {"message": choice["message"], "finish": choice["finish_reason"]}


def calls_of(message: dict) -> list[tuple[str, dict]]:
    return [
        (made["function"]["name"], json.loads(made["function"]["arguments"])) for made in message.get("tool_calls", ())
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
@pytest.mark.parametrize("name", TURNS)
def test_every_turn_gives_the_same_calls(http, gateway, name, mode, streamed):
    answer = ask(http, gateway, chat_body(f"up/{name}", stream=streamed, tools=TOOLS), **{"x-proxy-output-mode": mode})
    assert calls_of(answer["message"]) == TURNS[name][1]
    assert answer["finish"] == "tool_calls"
    content = answer["message"]["content"] or ""
    if mode == "obsidian-xml":
        assert [(name, json.loads(text)) for name, text in extract_use_tool_blocks(content)] == TURNS[name][1]
    else:
        assert "<use_tool" not in content
        assert "<tool_call" not in content


@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
@pytest.mark.parametrize("name", TURNS)
def test_stream_and_plain_are_equal(http, gateway, name, mode):
    headers = {"x-proxy-output-mode": mode}
    streamed = ask(http, gateway, chat_body(f"up/{name}", stream=True, tools=TOOLS), **headers)["message"]
    plain = ask(http, gateway, chat_body(f"up/{name}", stream=False, tools=TOOLS), **headers)["message"]
    assert streamed["content"] == plain["content"]
    assert calls_of(streamed) == calls_of(plain)


def test_a_prompt_that_teaches_use_tool_is_answered_in_text_and_structure(http, gateway):
    messages = [{"role": "system", "content": "Call tools with <use_tool> blocks."}, {"role": "user", "content": "go"}]
    body = {"model": "up/use_tool", "messages": messages, "stream": True}
    response = http.post(f"{gateway.base_url}/chat/completions", json=body)
    assert response.headers["x-proxy-output-mode"] == "obsidian-xml"
    message = fold_chat(list(read_sse(response)))["message"]
    assert USE_TOOL in message["content"]
    assert calls_of(message) == [FIND]


def test_blocks_in_text_are_text_for_a_client_without_tools(http, gateway):
    answer = ask(http, gateway, chat_body("up/use_tool", stream=False))
    assert answer["message"]["content"] == f"Let me see.\n{USE_TOOL}\n"
    assert answer["finish"] == "stop"


def test_blocks_in_the_prompt_or_in_results_are_never_calls(http, gateway, upstream):
    upstream.replies["calm"] = Reply([stream(created(), text("Nothing to do."), completed())])
    messages = [
        {"role": "user", "content": USE_TOOL},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": TOOL_CALL},
    ]
    answer = ask(http, gateway, {"model": "up/calm", "messages": messages, "tools": TOOLS, "stream": False})
    assert (calls_of(answer["message"]), answer["finish"]) == ([], "stop")


@pytest.mark.parametrize("prefix", ["obsidian-xml", "openai-json"])
def test_a_path_prefix_sets_the_mode(http, gateway, prefix):
    response = http.post(f"{gateway.url}/{prefix}/v1/chat/completions", json=chat_body("demo"))
    assert response.headers["x-proxy-output-mode"] == prefix
    assert http.get(f"{gateway.url}/{prefix}/v1/models").status_code == 200


def test_an_unknown_mode_is_refused_by_name(http, gateway):
    response = http.post(
        f"{gateway.base_url}/chat/completions", json=chat_body("demo"), headers={"x-proxy-output-mode": "yaml"}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-proxy-output-mode")


@pytest.mark.parametrize("streamed", [False, True])
def test_strict_parsing_fails_a_turn_with_a_broken_block(http, gateway, upstream, streamed):
    upstream.replies["broken"] = Reply([stream(created(), text("<use_tool>oops</use_tool>"), completed())])
    body = chat_body("up/broken", stream=streamed, tools=TOOLS)
    assert ask(http, gateway, body)["message"]["content"] == "<use_tool>oops</use_tool>"
    strict = http.post(f"{gateway.base_url}/chat/completions", json=body, headers={"x-proxy-strict-tools": "true"})
    assert (strict.status_code, strict.json()["error"]["code"]) == (502, "tool_block_invalid")


# Stopping

PAIR = stream(call("c1", "now", "{}"), call("c2", "now", "{}", index=1))


def test_the_cap_counts_the_same_streamed_and_plain(http, start, upstream):
    upstream.replies["many"] = Reply([stream(created(), PAIR, call("c3", "now", "{}", index=2), completed())])
    gateway = start(backend(upstream.url), PROXY_TOOL_BLOCK_MAX="2")
    url = f"{gateway.base_url}/chat/completions"
    streamed = list(read_sse(http.post(url, json=chat_body("up/many", stream=True, tools=TOOLS))))
    comment = json.loads(next(value for kind, value in streamed if kind == "comment"))
    plain = http.post(url, json=chat_body("up/many", tools=TOOLS))
    assert (
        len(fold_chat(streamed)["message"]["tool_calls"])
        == len(plain.json()["choices"][0]["message"]["tool_calls"])
        == 2
    )
    assert (comment["tool_call_count"], comment["tool_call_truncated"]) == (2, True)
    assert (plain.headers["x-codex-tool-call-count"], plain.headers["x-codex-tool-call-truncated"]) == ("2", "true")
    assert json.loads(plain.headers["x-toolwire-notes"]) == comment["notes"]
    assert [turn["tool_call_truncated"] for turn in gateway.wait_for_turns(2)] == [True, True]


def test_a_burst_is_cut_after_its_grace_and_the_upstream_is_closed(http, start, upstream):
    steps = [stream(created(), PAIR), *[text("tail "), Pause(0.05)] * 10_000, Hold()]
    upstream.replies["babbles"] = Reply(steps)
    upstream.gone.clear()
    gateway = start(backend(upstream.url), PROXY_STOP_AFTER_TOOLS="true", PROXY_STOP_AFTER_TOOLS_GRACE_MS="200")
    answer = ask(http, gateway, chat_body("up/babbles", stream=True, tools=TOOLS))
    assert (answer["message"]["content"], len(answer["message"]["tool_calls"]), answer["finish"]) == (
        None,
        2,
        "tool_calls",
    )
    assert upstream.gone.wait(60)


def test_every_call_begins_the_grace_period_anew(http, start, upstream):
    def count(factor: float) -> None:
        """The last call comes after more than one period."""
        pause = Pause(0.2 * factor)
        calls = [step for place in range(4) for step in (call(f"c{place}", "now", "{}", index=place), pause)]
        upstream.replies["paced"] = Reply([created(), *calls, completed()])
        grace = str(int(500 * factor))
        gateway = start(backend(upstream.url), PROXY_STOP_AFTER_TOOLS="true", PROXY_STOP_AFTER_TOOLS_GRACE_MS=grace)
        assert len(ask(http, gateway, chat_body("up/paced", stream=True, tools=TOOLS))["message"]["tool_calls"]) == 4

    at_any_pace(count)


def test_mode_first_ends_after_one_call(http, start, upstream):
    upstream.replies["first"] = Reply([stream(created(), PAIR), Hold()])
    upstream.gone.clear()
    gateway = start(backend(upstream.url) + '[tools]\nstop_after = true\nstop_after_mode = "first"\n')
    frames = list(
        read_sse(
            http.post(f"{gateway.base_url}/chat/completions", json=chat_body("up/first", stream=True, tools=TOOLS))
        )
    )
    assert len(fold_chat(frames)["message"]["tool_calls"]) == 1
    assert '"stop_after_tools_mode":"first"' in next(value for kind, value in frames if kind == "comment")
    assert upstream.gone.wait(60)
