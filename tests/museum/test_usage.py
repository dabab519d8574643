"""Usage: what was counted reaches whoever asked, once and with its meaning."""

from tests.museum.cases import Theme
from tests.museum.lines import Answer, answer, ask, plain_answer
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
    told = stream(created(), text("Hi"), completed(usage=_USAGE))
    for options in (None, {"include_usage": False}, {}):
        answered = answer(told, ask(stream_options=options))
        assert _usage_chunks(answered) == []
        assert all(len(chunk["choices"]) == 1 for chunk in answered.chunks)
        assert all("usage" not in chunk for chunk in answered.chunks)
        assert answered.turn.usage is not None  # it is known all the same, for the log
        assert answered.response["usage"]["total_tokens"] == 240419  # and a Responses client need not ask
    asked = answer(told, ask(stream_options={"include_usage": True}))
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
        told = answered.response["usage"]
        assert (told["input_tokens"], told["input_tokens_details"]["cached_tokens"]) == (240403, 229504)


@theme.row("use-combined-chunk")
def _() -> None:
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "end"}]}
    usage = {"input_tokens": 1, "output_tokens": 2}
    request = ask(stream_options={"include_usage": True})
    for before in ((), (text("e"), text("nd"))):
        answered = answer(stream(created(), *before, completed([message], usage=usage)), request)
        assert answered.content == "end"
        assert [each["total_tokens"] for each in _usage_chunks(answered)] == [3]


test_museum = theme.test()
