"""A request that does not fit into a model's context window: every server says it in its own words, we in one."""

import json
from typing import Any

import pytest

from toolwire.backends import codex, responses
from toolwire.backends.codex.failures import make_turn_failure
from toolwire.backends.codex.protocol import TurnError
from toolwire.backends.failures import Error, make_http_failure, make_stream_failure
from toolwire.core.errors import CONTEXT_LENGTH_EXCEEDED
from toolwire.core.request import Message, Request, TextPart
from toolwire.core.sse import Frame
from toolwire.turns.context_windows import find_window

Json = dict[str, Any]
DEEP = b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"

MESSAGES: dict[str, str] = {
    "OpenAI chat": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "OpenAI Responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Anthropic": "prompt is too long: 208310 tokens > 200000 maximum",
    "Anthropic with max_tokens": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
    "Bedrock": "Input is too long for requested model.",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "OpenRouter": "This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens.",
    "vLLM, a prompt": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "vLLM, the engine": "The engine prompt length 1000 exceeds the max_model_len 900. Please reduce prompt.",
    "SGLang": "The input (10000 tokens) is longer than the model's context length (8192 tokens).",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "llama.cpp with numbers": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "Ollama": "the input length exceeds the context length",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "LM Studio, loaded": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
    "with context length of only 4096 tokens, which is not enough.",
    "Text Generation Inference": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "Mistral": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Groq": "Please reduce the length of the messages or completion.",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Kimi": "Invalid request: Your request exceeded model token limit: 262144",
    "MiniMax": "invalid params, context window exceeds limit",
    "GLM": "Prompt exceeds max length",
    "DashScope": "Range of input length should be [1, 129024]",
    "Copilot": "prompt token count of 140000 exceeds the limit of 128000",
    "Codex": "Codex ran out of room in the model's context window. Start a new thread before retrying.",
}
SAID = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)


@SAID
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_refusal_has_the_one_code(message: str, status: int):
    failure = make_http_failure(
        status, {}, json.dumps({"error": {"message": message, "type": "BadRequestError"}}).encode()
    )
    assert (failure.code, failure.retryable, failure.message) == (CONTEXT_LENGTH_EXCEEDED, False, message)
    assert failure.status == (status if status < 500 else 400)


@SAID
@pytest.mark.parametrize("error", [{"code": 400}, {"type": "invalid_request_error"}, {"code": "server_error"}, {}])
def test_a_failure_inside_a_stream_has_it_too(message: str, error: Json):
    failure = make_stream_failure(Error(message, **error))
    assert (failure.status, failure.code, failure.retryable) == (400, CONTEXT_LENGTH_EXCEEDED, False)


@SAID
@pytest.mark.parametrize("info", ["other", "badRequest", {"httpConnectionFailed": {"httpStatusCode": 400}}])
def test_so_has_one_that_app_server_passes_on(message: str, info: Any):
    body = json.dumps({"error": {"message": message}})
    for text in (body, f"unexpected status 400 Bad Request: {body}"):
        assert make_turn_failure(TurnError(text, info)).code == CONTEXT_LENGTH_EXCEEDED


def test_app_server_has_a_word_for_it():
    failure = make_turn_failure(TurnError("It is full.", "contextWindowExceeded"))
    assert (failure.status, failure.code) == (400, CONTEXT_LENGTH_EXCEEDED)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "No."},
        {"type": "exceed_context_size_error", "message": "No.", "code": 400},
        {"type": "model_context_window_exceeded", "message": "No."},
    ],
)
def test_a_word_of_the_servers_own_is_enough(error: Json):
    assert make_http_failure(400, {}, json.dumps({"error": error}).encode()).code == CONTEXT_LENGTH_EXCEEDED
    assert make_stream_failure(Error(**error)).code == CONTEXT_LENGTH_EXCEEDED


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            429,
            {"message": "Request too large on tokens per min (TPM): Limit 10000. Reduce the length of the messages."},
        ),
        (429, {"message": "You reached the limit of 1000 for your context window", "code": "rate_limit_exceeded"}),
        (413, {"message": "Request exceeds the maximum size", "type": "request_too_large"}),
        (400, {"message": "Unknown parameter: 'context_window'.", "code": "unknown_parameter"}),
        (400, {"message": "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."}),
        (400, {"message": "Too long."}),
        (401, {"message": "The key may only use a context window of 8000."}),
        (500, {"message": "The server had an error."}),
    ],
)
def test_other_failures_keep_their_own(status: int, error: Json):
    failure = make_http_failure(status, {}, json.dumps({"error": error}).encode())
    assert (failure.status, failure.code) == (status, error.get("code", ""))
    assert failure.retryable == (status in (429, 500))


# How many tokens a model takes

LISTS: dict[str, tuple[Json, int]] = {
    "vLLM": ({"id": "m", "max_model_len": 32768}, 32768),
    "OpenRouter": ({"id": "m", "context_length": 131072}, 131072),
    "Groq": ({"id": "m", "context_window": 8192}, 8192),
    "Mistral": ({"id": "m", "max_context_length": 65536}, 65536),
    "Anthropic": ({"id": "m", "type": "model", "max_input_tokens": 200000}, 200000),
    "llama.cpp": ({"id": "m", "meta": {"n_ctx": 4096, "n_ctx_train": 40960}}, 4096),
    "an older llama.cpp": ({"id": "m", "meta": {"vocab_type": 2, "n_ctx_train": 40960}}, 40960),
    "OpenAI": ({"id": "m", "object": "model", "owned_by": "openai"}, 0),
    "no number": ({"id": "m", "max_model_len": "many", "context_length": None, "context_window": True}, 0),
    "no meta": ({"id": "m", "meta": None}, 0),
}


@pytest.mark.parametrize(("model", "tokens"), LISTS.values(), ids=LISTS)
def test_a_list_of_models_says_how_many_tokens_they_take(model: Json, tokens: int):
    other = {"id": "other", "max_model_len": 1}
    assert find_window(json.dumps({"object": "list", "data": [other, model]}).encode(), "m") == tokens
    assert find_window(json.dumps({"data": [model]}).encode(), "any name") == tokens, "there is no other"
    assert find_window(json.dumps({"data": [other, model]}).encode(), "none of them") == 0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"nonsense", b'{"data":null}', b'{"data":[{"name":"m"}]}', b"\xff", DEEP]
)
def test_what_is_no_list_says_nothing(body: bytes):
    assert find_window(body, "m") == 0


def request() -> Request:
    return Request("m", (Message("user", (TextPart("Hi"),)),), stream=True)


@pytest.mark.parametrize(("told", "tokens"), [(258400, 258400), (None, 0)])
def test_app_server_says_how_many_tokens_the_model_takes(told: int | None, tokens: int):
    conversation = codex.Conversation(request(), "s")
    conversation.start()
    assert conversation.decoder.context_window.tokens == 0
    usage = {"total": {"inputTokens": 1}, "modelContextWindow": told}
    line = {"method": "thread/tokenUsage/updated", "params": {"threadId": "t", "turnId": "u", "tokenUsage": usage}}
    conversation.feed(Frame(b"", json.dumps(line).encode()))
    assert conversation.decoder.context_window.tokens == tokens


@pytest.mark.parametrize(("reason", "is_full"), [("max_context_length", True), ("max_output_tokens", False)])
def test_a_response_says_that_the_window_is_full(reason: str, is_full: bool):
    conversation = responses.Conversation(request(), "s")
    conversation.start()
    body = {"id": "resp_1", "status": "incomplete", "incomplete_details": {"reason": reason}, "output": []}
    conversation.feed(Frame(b"", json.dumps({"type": "response.incomplete", "response": body}).encode()))
    assert conversation.decoder.context_window.is_full == is_full
