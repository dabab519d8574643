"""Every frame of every situation fits the types of the installed SDK, made strict."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.sdk.turns import TIME, TURNS, WEATHER
from tests.support.fold import fold_chat
from tests.support.gateway import read_sse
from tests.support.shapes import chunk_errors, completion_errors, error_errors
from toolwire.backends.demo import MODELS

TOOLS = {"tools": [WEATHER, TIME, {"type": "custom", "custom": {"name": "run"}}]}
FUNCTIONS = {"functions": [WEATHER["function"]]}
DEMOS = [model for model in MODELS if model != "demo-silent"]  # which says nothing for an hour

SITUATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{model: (model, "openai-json", TOOLS) for model in DEMOS},
    **{f"{model}-as-xml": (model, "obsidian-xml", TOOLS) for model in DEMOS},
    **{turn: (f"up/client-{turn}", "openai-json", TOOLS) for turn in TURNS},
    "without-tools": ("demo", "openai-json", {}),
    "functions": ("up/client-one-call", "openai-json", FUNCTIONS),
    "nobody": ("nobody", "openai-json", {}),
}


class Said(msgspec.Struct):
    """What one situation brings: a stream, a plain answer, or errors in their place."""

    frames: list[tuple[str, Any]] = []
    plain: Any = None
    errors: list[Any] = []

    @property
    def chunks(self) -> Iterator[Any]:
        return (value for kind, value in self.frames if kind == "data" and value != "[DONE]" and "error" not in value)


@pytest.fixture(scope="module", params=SITUATIONS)
def said(request: pytest.FixtureRequest, base_url: str, http: httpx.Client) -> Said:
    model, mode, tools = SITUATIONS[request.param]
    url, headers = f"{base_url}/chat/completions", {"x-proxy-output-mode": mode}
    body = {"model": model, "messages": [{"role": "user", "content": "The weather in Paris?"}], **tools}
    said = Said()
    streamed = http.post(url, headers=headers, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    if streamed.status_code == 200:
        said.frames = list(read_sse(streamed))
        said.errors += [value for _, value in said.frames if "error" in value and isinstance(value, dict)]
    else:
        said.errors.append(streamed.json())
    plain = http.post(url, headers=headers, json=body)
    if plain.status_code == 200:
        said.plain = plain.json()
    else:
        said.errors.append(plain.json())
    return said


def test_chunks_fit_the_sdk(said: Said):
    assert chunk_errors(said.chunks) == []


def test_every_chunk_has_the_usage_that_was_asked_for(said: Said):
    assert all("usage" in chunk for chunk in said.chunks)


def test_plain_answers_fit_the_sdk(said: Said):
    assert said.plain is None or completion_errors(said.plain) == []


def test_errors_have_exactly_the_known_fields(said: Said):
    assert [fault for error in said.errors for fault in error_errors("chat", error)] == []


def test_frames_keep_the_order_of_a_stream(said: Said):
    if said.frames:
        fold_chat(said.frames)


def test_without_an_error_there_are_both_answers(said: Said):
    assert said.errors or (said.frames and said.plain)
