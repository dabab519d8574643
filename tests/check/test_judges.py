"""The types that judge answers find every fault, in the sound turns of these tests and in what the encoders write."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from openai.types.responses import Response

from tests.check.responses_turns import ALSO_SOUND, ERROR_EVENT, RESPONSE, USAGE, event, sound
from tests.check.streams import Frames, Json, index_of, remove
from tests.support import schemas
from tests.support.client_readers import EVENT_SHAPES, PLAIN_SHAPES
from tests.support.routes import question
from tests.support.schemas import event_errors, response_errors
from tests.support.scripts import LOOK, NAMES, Declared, Name
from tests.support.shapes import error_errors
from toolwire.core.collect import Collector
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.dialects import chat, messages, responses

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


def test_the_response_object_has_the_31_required_keys():
    required = schemas.validator(Response).schema["required"]
    assert len(required) == 31
    assert set(RESPONSE) == set(required)


@pytest.mark.parametrize("key", RESPONSE)
def test_a_missing_key_of_the_response_object_is_found(key: str):
    incomplete = {name: value for name, value in RESPONSE.items() if name != key}
    expected = f"$: '{key}' is a required property"
    assert expected in response_errors(incomplete)
    for type in ("created", "in_progress", "completed", "failed", "incomplete"):
        whole = event(type, sequence_number=0, response=incomplete)
        assert expected.replace("$", "$.response") in event_errors(whole)


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


def test_a_response_may_tell_which_action_it_requires():
    assert response_errors(changed(required_action={"type": "submit_tool_outputs"})) == []


def test_a_response_may_have_no_usage():
    assert response_errors(changed(usage=None)) == []


def test_usage_that_is_there_is_judged():
    assert response_errors(changed(usage=USAGE)) == []
    assert response_errors(changed(usage={"input_tokens": 1}))


def test_usage_needs_the_written_cache_tokens():
    details = {"input_tokens_details": {"cached_tokens": 0}}
    errors = response_errors(changed(usage={**USAGE, **details}))
    assert "$.usage.input_tokens_details: 'cache_write_tokens' is a required property" in errors


@pytest.mark.parametrize("type", ["response.reasoning.delta", "ping", "toolwire:ping", None])
def test_an_event_that_nobody_knows_is_found(type: str | None):
    assert event_errors({"type": type, "sequence_number": 0}) == [f"there is no event {str(type)!r}"]


def test_a_fault_in_an_item_is_told_by_the_schema_of_its_type():
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": {}}
    errors = response_errors(changed(output=[item]))
    assert errors[0] == "$.output[0].arguments: {} is not of type 'string'"


def test_either_half_of_an_error_is_found_missing():
    flat = {key: value for key, value in ERROR_EVENT.items() if key != "error"}
    nested = {"type": "error", "error": ERROR_EVENT["error"]}
    assert event_errors({**ERROR_EVENT, "sequence_number": 0}) == []
    assert event_errors({**flat, "sequence_number": 0}) == ["$: 'error' is a required property"]
    assert "$: 'code' is a required property" in event_errors({**nested, "sequence_number": 0})


@pytest.mark.parametrize(
    ("kind", "key"),
    [("function_call_arguments.done", "name"), ("output_text.delta", "logprobs"), ("output_text.done", "logprobs")],
)
def test_what_the_package_lacks_is_found_missing(kind: str, key: str):
    frames = sound()
    remove(kind, key)(frames)
    errors = event_errors(frames[index_of(frames, kind)].data)
    assert f"$: '{key}' is a required property" in errors


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "status": "completed", "input": ""},
        {"type": "pigeon", "id": "pg_1", "status": "completed"},
    ],
    ids=["custom-call-without-a-name", "unknown-item"],
)
def test_items_of_every_type_are_judged(item: Json):
    assert event_errors(event("output_item.done", sequence_number=0, output_index=0, item=item))
    assert response_errors(changed(output=[item]))


@pytest.mark.parametrize(("place", "key"), [(0, "encrypted_content"), (1, "phase")])
def test_null_for_what_should_be_left_out_is_found(place: int, key: str):
    closing = sound()[-2].data
    closing["response"]["output"][place][key] = None
    assert any("None is not" in error for error in event_errors(closing))


@pytest.mark.parametrize("choice", ["none", {"type": "function", "name": "weather"}, {"type": "custom", "name": "run"}])
def test_every_form_of_tool_choice_fits(choice: Any):
    assert response_errors(changed(tool_choice=choice)) == []


def test_allowed_tools_need_a_mode():
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "run"}]}
    assert response_errors(changed(tool_choice=allowed)) == []
    del allowed["mode"]
    assert response_errors(changed(tool_choice=allowed))


# Whatever the encoders write, broken in one place

TURN: list[Event] = [
    *(TurnStarted("r", "m"), ReasoningDelta("why"), ReasoningEnded("rs_1", "SIG", "responses"), TextDelta("Hi ")),
    *(TextDelta("there"), CallStarted("a", "look"), CallArgs("a", '{"x":'), CallArgs("a", "1}"), CallEnded("a")),
    *(CallStarted("b", "run", "custom"), CallArgs("b", "raw"), CallEnded("b"), Usage(20, 5, 4, 6, 3)),
    TurnEnded("calls"),
]
FAILED: list[Event] = [*TURN[:5], TurnFailed(Failure(502, "server_error", "Gone."))]
DIALECTS: dict[Name, Any] = {"chat": chat, "responses": responses, "messages": messages}
RUN = Declared("run", "custom")
OPEN = {"parameters", "schema", "input_schema", "input", "metadata"}
"""Fields that may hold anything: what is in them is the client's or the model's."""
OPTIONAL: dict[Name, set[str]] = {
    "chat": {
        *("cache_write_tokens", "cached_tokens", "content", "custom", "function", "id", "logprobs", "name"),
        *("reasoning_content", "reasoning_tokens", "refusal", "role", "tool_calls", "type", "usage"),
    },
    "responses": {"content", "custom.description", "encrypted_content", "reasoning.status"},
    "messages": {"cache_creation_input_tokens", "cache_read_input_tokens", "caller", "citations", "input_tokens"},
}
"""Fields that may be missing, anywhere or in objects of a type."""
LISTED = {"finish_reason", "object", "role", "status", "stop_reason", "tool_choice", "truncation", "type"}
"""Fields that have one of a few words."""


def written(dialect: Name) -> Iterator[tuple[str, Json]]:
    """The frames of two streams and a plain answer, and an error object, each with the name of the kind that it is."""
    module = DIALECTS[dialect]
    request = module.decode_request(
        json.dumps(question(dialect, "m", (LOOK, RUN) if dialect != "messages" else (LOOK,), stream=True)).encode()
    )
    for turn in (TURN, FAILED):
        encoder = module.StreamEncoder(request, "id_1", 7, TurnStats())
        wire = b"".join(piece for happened in turn for piece in encoder.feed(happened))
        lines = [line[6:] for line in wire.decode().split("\n") if line.startswith("data: {")]
        yield from (
            ("error" if "error" in data and dialect == "chat" else "frame", data) for data in map(json.loads, lines)
        )
    collector = Collector()
    for happened in TURN:
        collector.feed(happened)
    [whole] = collector.end()
    yield "plain", json.loads(module.encode_turn(whole, request, "id_1", 7))
    yield "error", json.loads(module.encode_error(Failure(400, "bad", "No.")))


JUDGED = [name for name in NAMES if name in DIALECTS]
"""All but Gemini, whose own library reads what we write in `tests/sdk`."""


def judged(dialect: Name, kind: str, data: Json) -> list[str]:
    if kind == "error":
        return error_errors(dialect, data)
    return (EVENT_SHAPES if kind == "frame" else PLAIN_SHAPES)[dialect](data)


def fields(value: Any) -> Iterator[tuple[Json, str]]:
    """Every field of every object in here. A response in an event is like one that is an answer, so that is enough."""
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from fields(value[key]) if key not in {*OPEN, "response"} else ()
    elif isinstance(value, list):
        for item in value:
            yield from fields(item)


def mutants(data: Json, change: Callable[[Json, str], bool]) -> Iterator[tuple[str, Json]]:
    """A field and the answer with a change of it, for every field where the change is a fault."""
    for index in range(len([*fields(data)])):
        copy = deepcopy(data)
        holder, key = [*fields(copy)][index]
        if change(holder, key):
            yield key, copy


def drop(optional: set[str]) -> Callable[[Json, str], bool]:
    def change(holder: Json, key: str) -> bool:
        is_fault = not {key, f"{holder.get('type')}.{key}"} & optional
        del holder[key]
        return is_fault

    return change


def mistype(holder: Json, key: str) -> bool:
    holder[key] = "text" if isinstance(holder[key], dict) else {"not": "this"}
    return key not in OPEN


def invent(holder: Json, key: str) -> bool:
    is_word = key in LISTED and isinstance(holder[key], str) and "param" not in holder  # whose type is free
    holder[key] = "pigeon"
    return is_word


@pytest.mark.parametrize("dialect", JUDGED)
def test_what_the_encoders_write_fits(dialect: Name):
    assert [fault for kind, data in written(dialect) for fault in judged(dialect, kind, data)] == []


@pytest.mark.parametrize("way", ["missing", "of another type", "an unknown word"])
@pytest.mark.parametrize("dialect", JUDGED)
def test_one_broken_field_anywhere_is_found(dialect: Name, way: str):
    change = {"missing": drop(OPTIONAL[dialect]), "of another type": mistype, "an unknown word": invent}[way]
    made = [(kind, *mutant) for kind, data in written(dialect) for mutant in mutants(data, change)]
    assert len(made) > 20
    assert {key for kind, key, mutant in made if not judged(dialect, kind, mutant)} == set()


def test_the_tables_speak_of_types_that_the_packages_have():
    judges = [schemas.validator(Response), *map(schemas.validator, schemas.events().values())]
    named = {*schemas.ALWAYS, *schemas.FIELDS, *schemas.NULLABLE}
    assert named <= {name for judge in judges for name, _ in schemas.objects(judge.schema)}
