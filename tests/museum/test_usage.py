"""Usage: what was counted reaches whoever asked, once and with its meaning."""

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import Answer, answer, ask, cc, plain_answer
from tests.museum.routes import began, chunks, completion, message, over, told, told_plainly
from tests.support.frames import completed, created, stream, text

theme = Theme("usage")

_USAGE = {
    "input_tokens": 240403,
    "input_tokens_details": {"cached_tokens": 229504},
    "output_tokens": 16,
    "total_tokens": 240419,
}


def _usage_chunks(answered: Answer) -> list[dict[str, int]]:
    return [chunk["usage"] for chunk in answered.chunks if chunk.get("usage")]


@theme.row("use-forced-chunk")
def _() -> None:
    turn = stream(created(), text("Hi"), completed(usage=_USAGE))
    for options in (None, {"include_usage": False}, {}):
        answered = answer(turn, ask(stream_options=options))
        assert _usage_chunks(answered) == []
        assert all(len(chunk["choices"]) == 1 for chunk in answered.chunks)
        assert all("usage" not in chunk for chunk in answered.chunks)
        assert answered.turn.usage is not None  # it is known all the same, for the log
        assert answered.response["usage"]["total_tokens"] == 240419  # and a Responses client need not ask
    asked = answer(turn, ask(stream_options={"include_usage": True}))
    assert len(_usage_chunks(asked)) == 1
    assert asked.chunks[-1]["choices"] == []


@theme.row("use-cache-semantics")
def _() -> None:
    request = ask(stream_options={"include_usage": True})
    reply = {"status": "completed", "usage": _USAGE, "output": []}
    for answered in (answer(stream(created(), completed(usage=_USAGE)), request), plain_answer(reply, request)):
        assert answered.usage is not None
        assert answered.usage["prompt_tokens"] == 240403  # cached tokens are part of it, as chat means it
        assert answered.usage["prompt_tokens_details"]["cached_tokens"] == 229504
        assert answered.usage["total_tokens"] == 240419
        tokens = answered.response["usage"]
        assert (tokens["input_tokens"], tokens["input_tokens_details"]["cached_tokens"]) == (240403, 229504)
    # A Messages server and its clients count what was cached apart: taken out for them, and added back for the others.
    chat = {"prompt_tokens": 240403, "completion_tokens": 16, "prompt_tokens_details": {"cached_tokens": 229504}}
    apart = {"input_tokens": 10899, "cache_read_input_tokens": 229504, "output_tokens": 16}
    for each in (
        told("responses", stream(created(), completed(usage=_USAGE))),
        told("chat", chunks(cc(content="Hi"), cc(finish="stop"), {"choices": [], "usage": chat})),
        told_plainly("chat", completion({"content": "Hi"}, usage=chat)),
        told("messages", began({**apart, "output_tokens": 1}) + over(usage={"output_tokens": 16})),
        told_plainly("messages", message(counted=apart)),
    ):
        for counted in (each.blocks.message["usage"], each.plain["usage"]):
            assert {name: counted[name] for name in apart} == apart
        assert each.usage is not None
        assert (each.usage["prompt_tokens"], each.usage["prompt_tokens_details"]["cached_tokens"]) == (240403, 229504)
        assert each.usage["total_tokens"] == each.received.response["usage"]["total_tokens"] == 240419
    # What was written to the cache is in the sum as well; and a server that counts otherwise does not go below zero.
    written = told_plainly(
        "messages", message(counted={"input_tokens": 1, "cache_creation_input_tokens": 4, "output_tokens": 2})
    )
    assert written.plain["usage"]["cache_creation_input_tokens"] == 4
    assert written.received.response["usage"]["input_tokens"] == 5
    odd = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}
    assert told_plainly("chat", completion({"content": "Hi"}, usage=odd)).plain["usage"]["input_tokens"] == 0


@theme.row("use-combined-chunk")
def _() -> None:
    item = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "end"}]}
    usage = {"input_tokens": 1, "output_tokens": 2}
    request = ask(stream_options={"include_usage": True})
    for before in ((), (text("e"), text("nd"))):
        answered = answer(stream(created(), *before, completed([item], usage=usage)), request)
        assert answered.content == "end"
        assert [each["total_tokens"] for each in _usage_chunks(answered)] == [3]
    counted = {"prompt_tokens": 1, "completion_tokens": 2}
    packed = {**cc(content="end", finish="stop"), "usage": counted}
    ways: list[tuple[str, list[Json]]] = [
        ("end", [packed]),
        ("The end", [cc(content="The "), packed]),
        ("end", [packed, {"choices": [], "usage": counted}]),
    ]
    for words, made in ways:
        told_once = told("chat", chunks(*made))
        assert told_once.said.text == words
        assert told_once.usage is not None
        assert told_once.usage["total_tokens"] == 3
        assert len([chunk for chunk in told_once.chunks if chunk.get("usage")]) == 1
        tokens = told_once.blocks.message["usage"]
        assert (tokens["input_tokens"], tokens["output_tokens"]) == (1, 2)


test_museum = theme.test()
