"""The first things a user does."""

import httpx

from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, chat_body, read_sse, tool
from tests.support.upstream import Reply, Upstream


def test_streamed_and_plain_give_the_same_call(gateway: Gateway, upstream: Upstream, http: httpx.Client):
    upstream.replies["one-call"] = Reply(
        [stream(created(), text("Hm. "), call("c1", "find", '{"q":', '"x"}'), completed())]
    )
    tools = [tool("find", q={"type": "string"})]
    url = f"{gateway.base_url}/chat/completions"
    with http.stream("POST", url, json=chat_body("up/one-call", stream=True, tools=tools)) as response:
        folded = fold_chat(list(read_sse(response)))
    plain = http.post(url, json=chat_body("up/one-call", tools=tools)).json()["choices"][0]
    assert folded["message"]["tool_calls"] == plain["message"]["tool_calls"]
    assert folded["message"]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"q":"x"}'}
    assert (folded["finish"], plain["finish_reason"]) == ("tool_calls", "tool_calls")
    assert folded["message"]["content"] == plain["message"]["content"] == "Hm. "
