"""The published descriptions of Responses judge what they know, and the sound turns of these tests fit them."""

from typing import Any

import pytest

from tests.check.responses_turns import ALSO_SOUND, ERROR_EVENT, RESPONSE, USAGE, event, sound
from tests.check.streams import Frames, Json, place_of, remove
from tests.support.schemas import HAS_SPECS, OPEN_RESPONSES, event_errors, load, response_errors

needs_specs = pytest.mark.skipif(not HAS_SPECS, reason="needs the specifications beside the repository")

FITTING = (
    "text",
    "failed",
    "failed after an item",
    "text that is annotated inside its part",
    "hosted tools with events of their own",
    "an incomplete message that is the last",
    "an incomplete message in a failed response",
)


def faults_of(frames: Frames) -> list[str]:
    return [error for frame in frames if frame.data != "[DONE]" for error in event_errors(frame.data)]


def test_a_sound_stream_fits_the_schemas():
    assert faults_of(sound()) == []


@pytest.mark.parametrize("name", FITTING)
def test_other_sound_streams_fit_the_schemas(name: str):
    assert faults_of(ALSO_SOUND[name][0]) == []


def changed(**fields: Any) -> Json:
    return {**RESPONSE, **fields}


def test_the_response_object_fits_the_schemas():
    assert response_errors(RESPONSE) == []


@needs_specs
def test_the_response_object_has_the_31_required_keys():
    required = load(OPEN_RESPONSES)["components"]["schemas"]["ResponseResource"]["required"]
    assert len(required) == 31
    assert set(RESPONSE) == set(required)


@needs_specs
@pytest.mark.parametrize("key", RESPONSE)
def test_a_missing_key_of_the_response_object_is_found(key: str):
    incomplete = {name: value for name, value in RESPONSE.items() if name != key}
    expected = f"Open Responses: $: '{key}' is a required property"
    assert expected in response_errors(incomplete)
    for type in ("created", "in_progress", "completed", "failed", "incomplete"):
        whole = event(type, sequence_number=0, response=incomplete)
        assert expected.replace("$", "$.response") in event_errors(whole)


@needs_specs
@pytest.mark.parametrize(
    "key",
    [
        *(
            "temperature",
            "top_p",
            "presence_penalty",
            "frequency_penalty",
            "top_logprobs",
            "truncation",
            "text",
            "store",
        ),
        *("background", "service_tier", "tools", "tool_choice", "parallel_tool_calls"),
    ],
)
def test_a_key_that_may_not_be_null_is_found(key: str):
    assert any(f"$.{key}: None is not" in error for error in response_errors(changed(**{key: None})))


def test_the_package_alone_finds_a_missing_key():
    incomplete = {key: value for key, value in RESPONSE.items() if key != "tools"}
    assert "openai package: $: 'tools' is a required property" in response_errors(incomplete)


def test_a_response_may_tell_which_action_it_requires():
    assert response_errors(changed(required_action={"type": "submit_tool_outputs"})) == []


def test_a_response_may_have_no_usage():
    assert response_errors(changed(usage=None)) == []


def test_usage_that_is_there_is_judged():
    assert response_errors(changed(usage=USAGE)) == []
    assert response_errors(changed(usage={"input_tokens": 1}))


@needs_specs
def test_usage_needs_the_written_cache_tokens():
    details = {"input_tokens_details": {"cached_tokens": 0}}
    errors = response_errors(changed(usage={**USAGE, **details}))
    assert "OpenAI document: $.usage.input_tokens_details: 'cache_write_tokens' is a required property" in errors


@pytest.mark.parametrize("type", ["response.reasoning.delta", "ping", "toolwire:ping", None])
def test_an_event_that_nobody_knows_is_found(type: str | None):
    assert event_errors({"type": type, "sequence_number": 0}) == [f"openai package: there is no event {str(type)!r}"]


def test_a_fault_in_an_item_is_told_by_the_schema_of_its_type():
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": {}}
    errors = response_errors(changed(output=[item]))
    assert errors[0] == "openai package: $.output[0].arguments: {} is not of type 'string'"


@needs_specs
def test_each_side_finds_its_own_half_of_an_error_missing():
    flat = {key: value for key, value in ERROR_EVENT.items() if key != "error"}
    nested = {"type": "error", "error": ERROR_EVENT["error"]}
    assert event_errors({**ERROR_EVENT, "sequence_number": 0}) == []
    assert event_errors({**flat, "sequence_number": 0}) == ["Open Responses: $: 'error' is a required property"]
    assert "OpenAI document: $: 'code' is a required property" in event_errors({**nested, "sequence_number": 0})


@needs_specs
@pytest.mark.parametrize(
    ("kind", "key"),
    [("function_call_arguments.done", "name"), ("output_text.delta", "logprobs"), ("output_text.done", "logprobs")],
)
def test_what_only_openai_needs_is_found_missing(kind: str, key: str):
    frames = sound()
    remove(kind, key)(frames)
    errors = event_errors(frames[place_of(frames, kind)].data)
    assert f"OpenAI document: $: '{key}' is a required property" in errors


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "status": "completed", "input": ""},
        {"type": "pigeon", "id": "pg_1", "status": "completed"},
    ],
    ids=["custom-call-without-a-name", "unknown-item"],
)
def test_items_that_open_responses_does_not_describe_are_still_judged(item: Json):
    assert event_errors(event("output_item.done", sequence_number=0, output_index=0, item=item))
    assert response_errors(changed(output=[item]))


@needs_specs
@pytest.mark.parametrize(("place", "key"), [(0, "encrypted_content"), (1, "phase")])
def test_null_for_what_should_be_left_out_is_found(place: int, key: str):
    closing = sound()[-2].data
    closing["response"]["output"][place][key] = None
    assert any(error.startswith("Open Responses: ") for error in event_errors(closing))


@pytest.mark.parametrize("choice", ["none", {"type": "function", "name": "weather"}, {"type": "custom", "name": "run"}])
def test_every_form_of_tool_choice_fits(choice: Any):
    assert response_errors(changed(tool_choice=choice)) == []


def test_allowed_tools_need_a_mode():
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "run"}]}
    assert response_errors(changed(tool_choice=allowed)) == []
    del allowed["mode"]
    assert response_errors(changed(tool_choice=allowed))
