"""Images in results: what a tool shows reaches the model, in the words of its server."""

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import ask, ask_responses
from tests.museum.routes import ASK, ask_messages, sent
from toolwire.core.request import Request

theme = Theme("images")

_USER: Json = {"role": "user", "content": "Go."}
_DATA, _ADDRESS = "data:image/png;base64,iVBORw0KGgo=", "https://example.org/i.png"


def _shows(dialect: str, *urls: str) -> Request:
    """A history whose one result shows a text and these images."""
    if dialect == "chat":
        made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        images: list[Json] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        result: Json = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "See:"}, *images]}
        return ask(messages=[_USER, {"role": "assistant", "tool_calls": [made]}, result], tools=("f",))
    if dialect == "responses":
        images = [{"type": "input_image", "image_url": url} for url in urls]
        output = [{"type": "input_text", "text": "See:"}, *images]
        made = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "a", "output": output}
        return ask_responses(input=[_USER, made, result], tools=("f",))
    images = [{"type": "image", "source": _source(url)} for url in urls]
    used: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    answer: Json = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "See:"}, *images]}
    return ask_messages(
        messages=[_USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [answer]}]
    )


def _source(url: str) -> Json:
    if url == _DATA:
        return {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    return {"type": "url", "url": url}


@theme.row("img-wrong-shape")
def _() -> None:
    for dialect in ASK:
        request = _shows(dialect, _DATA, _ADDRESS)
        # Messages has images in results.
        told = sent("messages", request)
        [result] = told.body["messages"][2]["content"]
        assert result["content"] == [
            {"type": "text", "text": "See:"},
            {"type": "image", "source": _source(_DATA)},
            {"type": "image", "source": _source(_ADDRESS)},
        ], dialect
        assert told.codes == []
        # So has Responses.
        output = sent("responses", request).body["input"][2]["output"]
        assert [part["type"] for part in output] == ["input_text", "input_image", "input_image"]
        assert [part["image_url"] for part in output[1:]] == [_DATA, _ADDRESS]
        # Chat has them in messages of the user alone, which follow the results.
        *_, tool, shown = sent("chat", request).body["messages"]
        assert (tool["role"], tool["tool_call_id"]) == ("tool", "a")
        assert isinstance(tool["content"], str)
        assert tool["content"].startswith("See:")
        assert shown["role"] == "user"
        seen = [part["image_url"]["url"] for part in shown["content"] if part["type"] == "image_url"]
        assert seen == [_DATA, _ADDRESS]


test_museum = theme.test()
