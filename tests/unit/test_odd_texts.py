"""Bytes and texts that are broken, too deep or cut, in the small functions that read them."""

import json

import msgspec
import pytest

from toolwire.backends.codex.config import find_key_variables
from toolwire.backends.codex.failures import make_turn_failure
from toolwire.backends.codex.protocol import TurnError
from toolwire.backends.failures import NO_SUCH_ENDPOINT, make_http_failure
from toolwire.core.errors import BackendFault
from toolwire.core.request import Tool
from toolwire.core.secret_patterns import remove_secrets
from toolwire.core.shapes import text_of_message
from toolwire.core.sse import FrameReader
from toolwire.core.text import SurrogateHalves, is_begun_object
from toolwire.notations.values import Schemas

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("text", ['{"a":' * 100_000, '{"a":"\ud83d'], ids=["deep", "half-a-letter"])
def test_an_object_that_cannot_be_looked_into_may_have_begun(text: str):
    assert is_begun_object(text)


@pytest.mark.parametrize("data", [b'{"a":"\\ud83d"', b"[" * 100_000 + b'"\\ud83d"'], ids=["cut", "deep"])
def test_half_a_letter_in_what_is_no_json_is_not_made_whole(data: bytes):
    assert SurrogateHalves().repair(data) is None


@pytest.mark.parametrize(("message", "text"), [(5, ""), ({"role": "assistant"}, ""), ([{"text": "a"}, "b"], "ab")])
def test_the_text_of_a_message_of_any_shape(message: object, text: str):
    assert text_of_message(message) == text


def test_secrets_do_not_reach_a_recording():
    assert remove_secrets(b'{"said":"my-own-key"}', (b"my-own-key",)) == '{"said":"[removed]"}'


def test_one_event_of_many_in_a_read_may_be_too_large():
    reader = FrameReader(limit=100)
    block = b"event: a\ndata: %b\n\n"
    assert len(reader.feed((block % b"x") * 40)) == 40
    with pytest.raises(BackendFault, match="limit of 100 bytes"):
        reader.feed((block % b"x") * 3 + block % (b"y" * 101))


def test_a_list_of_what_is_wrong_is_told_as_it_is():
    body = json.dumps({"detail": [{"loc": ["body", "model"], "msg": "field required"}]}).encode()
    assert "field required" in make_http_failure(422, {}, body).message


def test_the_keys_of_codex_providers_are_found_in_nested_settings():
    settings = {"model_providers": {"a": {"env_key": "A_KEY", "name": "A"}, "b": {"env_key": 5}}}
    assert find_key_variables(settings) == ["A_KEY"]


def test_a_schema_that_is_too_deep_says_nothing_of_its_parameters():
    assert not Schemas([Tool("f", parameters=msgspec.Raw(DEEP))]).types_of("f", "x")


def test_a_codex_that_finds_no_way_to_its_server_may_be_asked_again():
    failure = make_turn_failure(TurnError("workspace routing discovery failed"))
    assert (failure.code, failure.retryable) == ("backend_unreachable", True)


PAGE = b"<!DOCTYPE HTML>\n<html><head><title> 503 Busy </title></head><body><h1>Busy</h1></body></html>"


def test_a_web_page_of_an_error_is_named_and_not_quoted():
    failure = make_http_failure(503, {}, PAGE)
    assert (failure.status, failure.message) == (503, "The backend answered with status 503 and a web page: 503 Busy.")
    assert not failure.quoted
    assert make_http_failure(500, {}, b"<html>").message == "The backend answered with status 500 and a web page."


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_web_page_where_nothing_is_served_means_a_wrong_address(status: int):
    assert make_http_failure(status, {}, PAGE).code == NO_SUCH_ENDPOINT
