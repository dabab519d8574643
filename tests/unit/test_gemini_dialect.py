"""The Gemini dialect: what clients may ask, and what they get."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from toolwire.adapt.names import is_minted_item_id
from toolwire.core.bounds import UNBOUNDED, run_steps
from toolwire.core.collect import Call, collect
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    ReasoningEntry,
    Request,
    RequestHead,
    ResultEntry,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.core.signatures import wrap_thought_signature
from toolwire.core.sse import Frame
from toolwire.dialects import gemini

Json = dict[str, Any]
RECORDINGS = Path(__file__).parent.parent / "recordings" / "gemini-clients"
USER = {"role": "user", "parts": [{"text": "Go."}]}
STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"


def decoded(*contents: Json, path: str = "/v1beta/models/m:generateContent", **fields: Any) -> Request:
    return decode_at(path, {"contents": list(contents) or [USER], **fields})


def decode_at(path: str, body: Any) -> Request:
    url = urlsplit(path)
    found = gemini.PATTERN.fullmatch(url.path)
    assert found is not None, path
    head = RequestHead({}, found.groupdict(), url.query.encode())
    return run_steps(gemini.decode_steps(json.dumps(body).encode(), UNBOUNDED, head))


def bare(entries: tuple[Entry, ...]) -> list[Entry]:
    """Entries without the parts they came in."""
    kept = (entry if isinstance(entry, OtherEntry) else msgspec.structs.replace(entry, raw=None) for entry in entries)
    return [msgspec.structs.replace(entry, message=-1) for entry in kept]


def user(*parts: Json) -> Json:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def call(name: str = "look", args: Any = None, signature: str = "", **fields: Any) -> Json:
    part = {"functionCall": {"name": name, **({} if args is None else {"args": args}), **fields}}
    return {**part, "thoughtSignature": signature} if signature else part


def result(response: Any, name: str = "look", **fields: Any) -> Json:
    return {"functionResponse": {"name": name, "response": response, **fields}}


# Paths


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1beta/models/demo:generateContent", "demo"),
        ("/v1/models/demo:generateContent", "demo"),
        ("/v1beta1/models/qwen3:8b:generateContent", "qwen3:8b"),
        ("/v1beta/models/openai/gpt-5:generateContent", "openai/gpt-5"),
        ("/v1beta/openai/gpt-5:generateContent", "openai/gpt-5"),
        ("/gw/gemini/v1beta/models/demo:generateContent", "demo"),
        ("/v1beta/models/a b:generateContent", "a b"),
        ("/v1beta1/projects/P/locations/L/publishers/google/models/demo:generateContent", "demo"),
        ("/v1beta1/publishers/google/models/demo:generateContent", "demo"),
        ("/v1beta1/projects/P/locations/L/publishers/anthropic/models/claude:generateContent", "anthropic/claude"),
        ("/v1beta1/projects/P/locations/L/endpoints/12:generateContent", "endpoints/12"),
        ("/v1beta/tunedModels/mine:generateContent", "tunedModels/mine"),
    ],
)
def test_the_path_names_the_model(path: str, name: str):
    assert decoded(path=path).model == name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1beta/models/m:generateContent", (False, "")),
        ("/v1beta/models/m:generateContent?alt=sse", (False, "")),
        ("/v1beta/models/m:streamGenerateContent", (True, "array")),
        ("/v1beta/models/m:streamGenerateContent?key=k&alt=json", (True, "array")),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", (True, "")),
    ],
)
def test_method_and_query_say_how_to_stream(path: str, expected: tuple[bool, str]):
    request = decoded(path=path)
    assert (request.stream, request.stream_form) == expected


def test_a_body_by_itself_names_its_model():
    request = gemini.decode_request(json.dumps({"model": "models/m", "contents": [USER], "stream": True}).encode())
    assert (request.model, request.stream, request.stream_form) == ("m", True, "")
    inner = {"model": "models/m", "contents": [USER]}
    assert gemini.decode_request(json.dumps({"generateContentRequest": inner}).encode()).entries == request.entries


@pytest.mark.parametrize("path", ["/v1beta/models/m:embedContent", "/v1/chat/completions", "/v1beta/models/m"])
def test_other_paths_are_not_of_the_dialect(path: str):
    assert gemini.PATTERN.fullmatch(path) is None


# Requests


def test_both_spellings_mean_the_same():
    def write(camel: bool) -> Json:
        def name(text: str) -> str:
            return text if camel else "".join(f"_{c.lower()}" if c.isupper() else c for c in text)

        declared: Json = {"name": "look", name("parametersJsonSchema"): {"type": "object", "properties": {"a_b": {}}}}
        said = [
            user({name("inlineData"): {name("mimeType"): "image/png", "data": "AA=="}}),
            model({name("functionCall"): {"name": "look", "args": {"a_b": {"c_d": 1}}}, name("thoughtSignature"): "QQ=="}),
            user({name("functionResponse"): {"name": "look", "response": {"output": "x"}}}),
        ]  # fmt: skip
        return {
            "contents": said,
            name("systemInstruction"): {"parts": [{"text": "S"}]},
            "tools": [{name("functionDeclarations"): [declared]}],
            name("toolConfig"): {name("functionCallingConfig"): {"mode": "ANY", name("allowedFunctionNames"): ["look"]}},
            name("generationConfig"): {name("maxOutputTokens"): 9, name("topK"): 4, name("thinkingConfig"): {name("includeThoughts"): True, name("thinkingBudget"): 0}},
        }  # fmt: skip

    path = "/v1beta/models/m:generateContent"
    one, two = decode_at(path, write(True)), decode_at(path, write(False))
    assert bare(one.entries) == bare(two.entries)
    assert (one.tools, one.tool_choice, one.sampling, one.instructions) == (
        two.tools,
        two.tool_choice,
        two.sampling,
        two.instructions,
    )
    assert list(one.extra) == list(two.extra) == ["topK"]
    assert msgspec.json.decode(one.fields["generationConfig"]) == msgspec.json.decode(two.fields["generationConfig"])
    assert one.entries[1] == msgspec.structs.replace(
        CallEntry(one.entries[1].id, "look", '{"a_b": {"c_d": 1}}'),  # type: ignore[union-attr]
        raw=one.entries[1].raw,
        signature=wrap_thought_signature("QQ=="),
        message=1,
    )


def test_neighbours_of_one_role_are_one_message():
    entries = decoded(USER, model({"text": "Hel"}), model({"text": "lo"}), model(call(id="a")), model(call(id="b")),
                      user(result({"output": "1"}, id="b")), user(result({"output": "2"}, id="a"))).entries  # fmt: skip
    assert bare(entries) == [
        Message("user", (TextPart("Go."),)),
        Message("assistant", (TextPart("Hello"),)),
        CallEntry("a", "look", "{}"),
        CallEntry("b", "look", "{}"),
        ResultEntry("b", (TextPart("1"),)),
        ResultEntry("a", (TextPart("2"),)),
    ]


def test_a_server_of_the_protocol_gets_joined_contents():
    request = decoded(USER, model({"text": "Hel"}), model({"text": "lo", "thoughtSignature": "QQ=="}), USER)
    assert request.history_unchanged
    assert msgspec.json.decode(request.fields["contents"]) == [
        USER,
        model({"text": "Hel"}, {"text": "lo", "thoughtSignature": "QQ=="}),
        USER,
    ]
    apart = [USER, model({"text": "a"}), {"parts": [{"text": "b"}]}]
    assert msgspec.json.decode(decoded(*apart).fields["contents"]) == apart


def test_results_stay_apart_from_what_the_user_says():
    request = decoded(USER, model(call(id="a")), user(result({}, id="a")), USER, USER)
    contents = msgspec.json.decode(request.fields["contents"])
    assert [len(content["parts"]) for content in contents] == [1, 1, 1, 2]
    assert [entry.message for entry in request.entries] == [0, 1, 2, 3]


def ids(*contents: Json) -> list[str]:
    return [
        entry.id if isinstance(entry, CallEntry) else entry.call_id
        for entry in decoded(*contents).entries
        if isinstance(entry, CallEntry | ResultEntry)
    ]


def test_calls_and_results_without_ids_are_paired_by_name_and_order():
    one, two, three, *results = ids(
        USER,
        model(call("look"), call("find"), call("look")),
        user(result({}, "find"), result({}, "look"), result({}, "look")),
    )
    assert len({one, two, three}) == 3
    assert results == [two, one, three]


def test_made_ids_stay_the_same_as_the_history_grows():
    step = [model(call()), user(result({"output": "x"}))]
    first, second = ids(USER, *step), ids(USER, *step, *step)
    assert all(map(is_minted_item_id, second))
    assert second[:2] == first
    assert len({*second}) == 2


def test_an_id_that_stands_twice_counts_once():
    one, two, *results = ids(USER, model(call(id="a"), call(id="a")), user(result({}, id="a"), result({}, id="a")))
    assert one == "a"
    assert one != two
    assert results == [one, two]


def test_a_result_without_a_call_keeps_its_id():
    assert ids(user(result({}, id="gone"))) == ["gone"]
    assert ids(user(result({})))[0].startswith("call_")


def test_a_late_result_finds_its_call_by_id():
    assert ids(USER, model(call(id="a")), USER, model(call("find", id="b")), user(result({}, id="a"))) == [
        "a",
        "b",
        "a",
    ]


@pytest.mark.parametrize(
    ("response", "text", "failed"),
    [
        ({"output": "x"}, "x", False),
        ({"result": {"t": 1}}, '{"t":1}', False),
        ({"content": [1, 2]}, "[1,2]", False),
        ({"name": "look", "content": "x"}, "x", False),
        ({"name": "other", "content": "x"}, '{"name":"other","content":"x"}', False),
        ({"error": "no"}, "no", True),
        ({"output": "x", "more": 1}, '{"output":"x","more":1}', False),
        ({}, "{}", False),
        (None, "", False),
    ],
)
def test_results_have_the_forms_of_all_clients(response: Any, text: str, failed: bool):
    entry = decoded(USER, model(call(id="a")), user(result(response, id="a"))).entries[-1]
    assert isinstance(entry, ResultEntry)
    assert (entry.parts, entry.failed) == ((TextPart(text),) if text else (), failed)


def test_media_belong_to_the_result_before_them_or_in_it():
    png = {"inlineData": {"mimeType": "image/png", "data": "_-8"}}
    inside = result({"output": "x"}, id="a", parts=[png])
    entries = decoded(USER, model(call(id="a")), user(inside, png, {"text": "Well?"}, png)).entries
    image = ImagePart("data:image/png;base64,/+8=")
    assert bare(entries)[2:] == [
        ResultEntry("a", (TextPart("x"), image, image)),
        Message("user", (TextPart("Well?"), image)),
    ]


def test_media_in_all_their_forms():
    def file(uri: str, kind: str) -> Json:
        return {"fileData": {"fileUri": uri, "mimeType": kind}}

    [entry] = decoded(
        user(
            {"inlineData": {"mimeType": "audio/mpeg", "data": "AA=="}},
            {"inlineData": {"mimeType": "application/pdf", "data": "AA==", "displayName": "a.pdf"}},
            file("https://example.org/a.png", "image/png"),
            file("gs://bucket/a.png", "image/png"),
            file("https://generativelanguage.googleapis.com/v1beta/files/1", "application/pdf"),
            file("https://example.org/a.pdf", "application/pdf"),
        )
    ).entries
    assert isinstance(entry, Message)
    assert entry.parts == (
        AudioPart("AA==", "mp3"),
        FilePart("data:application/pdf;base64,AA==", name="a.pdf"),
        ImagePart("https://example.org/a.png"),
        ImagePart("", id="gs://bucket/a.png"),
        FilePart(id="https://generativelanguage.googleapis.com/v1beta/files/1"),
        FilePart(url="https://example.org/a.pdf"),
    )


def test_thoughts_and_signatures_stand_where_they_were():
    entries = decoded(
        USER,
        model({"text": "Hm", "thought": True}, {"text": "m.", "thought": True}, {"text": "So", "thoughtSignature": "-_8"}),
        model({"text": "."}, call(id="a", signature="QQ=="), {"thoughtSignature": "Qg=="}, {"executableCode": {"code": "1"}}),
    ).entries  # fmt: skip
    assert bare(entries)[1:] == [
        ReasoningEntry(summary=("Hmm.",), origin="gemini"),
        Message("assistant", (TextPart("So."),)),
        ReasoningEntry(signature="+/8=", origin="gemini", redacted=True),
        CallEntry("a", "look", "{}", signature='{"google":{"thought_signature":"QQ=="}}'),
        ReasoningEntry(signature="Qg==", origin="gemini", redacted=True),
        OtherEntry("executableCode", msgspec.Raw(b'{"executableCode": {"code": "1"}}')),
    ]


@pytest.mark.parametrize("word", ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"])
def test_a_placeholder_is_no_signature(word: str):
    encoded = base64.b64encode(word.encode()).decode()
    for sentinel in (word, word.replace("_", "/"), encoded, encoded.rstrip("=")):
        [_, entry] = decoded(USER, model(call(id="a", signature=sentinel))).entries
        assert isinstance(entry, CallEntry)
        assert entry.signature == ""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"mode": "MODE_UNSPECIFIED"}, ToolChoice("auto")),
        ({"mode": "auto"}, ToolChoice("auto")),
        ({"mode": "ANY"}, ToolChoice("required")),
        ({"mode": "ANY", "allowedFunctionNames": ["a"]}, ToolChoice("required", "a")),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, ToolChoice("required", allowed=("a", "b"), limited=True)),
        ({"mode": "VALIDATED"}, ToolChoice("auto")),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["a"]}, ToolChoice("auto", allowed=("a",), limited=True)),
        ({"mode": "NONE"}, ToolChoice("none")),
    ],
)
def test_every_mode_of_calling(config: Json, expected: ToolChoice | None):
    tools = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]
    choice = decoded(tools=tools, toolConfig={"functionCallingConfig": config}).tool_choice
    assert choice == (expected or ToolChoice("auto"))
    assert decoded(tools=tools, toolConfig={}).tool_choice is None


def test_tools_in_all_their_forms():
    googles = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "nullable": True, "enum": ["a"], "format": "enum"}, "n": {"type": "ARRAY", "minItems": "1", "items": {"type": "INTEGER"}}},
        "propertyOrdering": ["n", "type"],
        "required": ["n"],
    }  # fmt: skip
    request = decoded(
        tools=[
            {"googleSearch": {}},
            {"functionDeclarations": [
                {"name": "a", "description": "A", "parameters": googles},
                {"name": "b", "parametersJsonSchema": {"type": "object", "properties": {"x": {"type": "STRING"}}, "propertyOrdering": ["x"]}},
                {"name": "c"},
            ]},
            {"function_declarations": {"name": "d", "parameters": {"type": "object", "any_of": [{"ref": "#/x"}]}}},
        ]
    )  # fmt: skip
    schemas = [tool.parameters and msgspec.json.decode(tool.parameters) for tool in request.tools]
    assert [tool.name for tool in request.tools] == ["a", "b", "c", "d"]
    assert schemas == [
        {"type": "object", "properties": {"type": {"type": ["string", "null"], "enum": ["a", None]}, "n": {"type": "array", "minItems": 1, "items": {"type": "integer"}}}, "required": ["n"]},
        {"type": "object", "properties": {"x": {"type": "string"}}, "propertyOrdering": ["x"]},
        None,
        {"type": "object", "anyOf": [{"$ref": "#/x"}]},
    ]  # fmt: skip
    assert request.tools[2] == Tool("c")
    assert [tool.type for tool in request.hosted_tools] == ["googleSearch"]


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({}, None),
        ({"includeThoughts": True}, None),
        ({"thinkingLevel": "HIGH"}, "high"),
        ({"thinkingLevel": "low"}, "low"),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None),
        ({"thinkingBudget": -1}, None),
        ({"thinkingBudget": 0}, "none"),
        ({"thinkingBudget": 1024}, "low"),
        ({"thinkingBudget": 8192}, "medium"),
        ({"thinkingBudget": 8193}, "high"),
    ],
)
def test_thinking_is_an_effort(thinking: Json, effort: str | None):
    assert decoded(generationConfig={"thinkingConfig": thinking}).sampling.effort == effort


def test_an_answer_in_json():
    config: Json = {"responseMimeType": "application/json"}
    bare_json = decoded(generationConfig=config).output_format
    assert bare_json is not None
    assert bare_json.schema is None
    for field in ("responseSchema", "responseJsonSchema"):
        form = decoded(generationConfig={**config, field: {"type": "OBJECT"}}).output_format
        assert form is not None
        assert form.schema == msgspec.Raw(b'{"type":"object"}')
    assert [*decoded(generationConfig={"responseMimeType": "text/x.enum"}).extra] == ["responseMimeType"]


def test_fields_without_a_counterpart_are_extra():
    request = decoded(
        generationConfig={"topK": 64.0, "seed": 1, "candidateCount": 1},
        safetySettings=[],
        labels={"a": "b"},
        toolConfig={"retrievalConfig": {"languageCode": "de"}},
    )
    assert [*request.extra] == ["topK", "seed", "labels", "retrievalConfig"]
    assert request.needs_own_dialect == ""
    assert decoded(cachedContent="cachedContents/1").needs_own_dialect == "cachedContent"
    assert decoded(generationConfig={"candidateCount": 2}).needs_own_dialect == "candidateCount"


INVALID: list[tuple[Any, str | None]] = [
    ({}, "contents"),
    ({"contents": []}, "contents"),
    ({"contents": "Go."}, "contents"),
    ({"contents": [{"role": "assistant", "parts": []}]}, "contents[0].role"),
    ({"contents": [{"parts": "Go."}]}, "contents[0].parts"),
    ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text"),
    ({"contents": [{"parts": [{"inline_data": {"data": 1}}]}]}, "contents[0].parts[0].inlineData.data"),
    ({"contents": [USER, model({"functionCall": {}})]}, "contents[1].parts[0].functionCall.name"),
    ({"contents": [USER, user({"functionResponse": {"response": "x"}})]}, "contents[1].parts[0].functionResponse.response"),
    ({"contents": [USER], "tools": "x"}, "tools"),
    ({"contents": [USER], "tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    ({"contents": [USER], "tool_config": {"function_calling_config": {"mode": "MAYBE"}}}, "toolConfig.functionCallingConfig.mode"),
    ({"contents": [USER], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig"),
    ({"contents": [USER], "generation_config": {"top_p": "x"}}, "generationConfig.topP"),
    ({"contents": [USER], "generationConfig": {"thinkingConfig": {"thinking_budget": "x"}}}, "generationConfig.thinkingConfig.thinkingBudget"),
    ({"contents": [USER], "systemInstruction": {"parts": [{"text": 1}]}}, "systemInstruction.parts[0].text"),
    ([], None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), INVALID)
def test_invalid_requests_name_the_field(body: Any, field: str | None):
    with pytest.raises(BadRequest) as caught:
        decode_at("/v1beta/models/m:generateContent", body)
    assert caught.value.param == field


def recorded_requests() -> Iterator[Any]:
    for file in sorted(RECORDINGS.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        asked = [row for row in rows if row["dir"] == "request" and "enerateContent" in row["path"]]
        for number, row in enumerate(asked):
            yield pytest.param(row["path"], row["body"], id=f"{file.stem}-{number}")


@pytest.mark.parametrize(("path", "body"), list(recorded_requests()))
def test_recorded_requests_of_real_clients_are_understood(path: str, body: Json):
    for tool in body.get("tools", ()):
        if isinstance(tool.get("functionDeclarations"), str):  # the recording leaves them out
            tool["functionDeclarations"] = []
    request = decode_at(path, body)
    calls = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    results = [entry for entry in request.entries if isinstance(entry, ResultEntry)]
    assert [entry.call_id for entry in results if entry.call_id not in calls] == []
    assert len({entry.call_id for entry in results}) == len(results)
    assert not any(isinstance(entry, OtherEntry) for entry in request.entries)
    signatures = [entry.signature for entry in request.entries if isinstance(entry, CallEntry | ReasoningEntry)]
    assert not any("skip" in signature for signature in signatures)


# Answers

SHOWN = decoded(path=STREAM, generationConfig={"thinkingConfig": {"includeThoughts": True}})
HIDDEN = decoded(path=STREAM)
ARRAY = decoded(path="/v1beta/models/m:streamGenerateContent")


def written(*events: Event, request: Request = SHOWN) -> bytes:
    encoder = gemini.StreamEncoder(request, "id1", 7, TurnStats())
    return b"".join(piece for event in (TurnStarted(), *events) for piece in encoder.feed(event))


def chunks(data: bytes) -> list[Json]:
    """The chunks of a stream, read as strictly as Google's Python SDK does."""
    assert data.endswith(b"\r\n\r\n")
    frames = data.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n")
    assert all(frame.startswith(b"data: {") and b"\n" not in frame for frame in frames)
    return [json.loads(frame[6:]) for frame in frames]


def parts_of(data: bytes) -> list[Json]:
    return [part for chunk in chunks(data) for part in chunk["candidates"][0]["content"]["parts"]]


def a_call(id: str = "call_1", name: str = "look", arguments: str = "{}", **fields: Any) -> tuple[Event, ...]:
    return CallStarted(id, name, **fields), CallArgs(id, arguments), CallEnded(id)


def carried(part: Json) -> Any:
    data = base64.b64decode(part["thoughtSignature"], validate=True)
    assert data.startswith(b"toolwire.signature.1.")
    return json.loads(data[21:])


def test_a_stream_of_text():
    data = written(TextDelta("Hel"), TextDelta("lo"), Usage(10, 9, 4, 0, 3), TurnEnded())
    assert chunks(data) == [
        *(
            {"candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}], "modelVersion": "m", "responseId": "id1"}
            for text in ("Hel", "lo")
        ),
        {
            "candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 6, "thoughtsTokenCount": 3, "totalTokenCount": 19},
            "modelVersion": "m",
            "responseId": "id1",
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "finish"),
    [
        ((TextDelta("a"), TurnEnded("stop")), "STOP"),
        ((*a_call(), TurnEnded("calls")), "STOP"),
        ((TextDelta("a"), TurnEnded("length")), "MAX_TOKENS"),
        ((TurnEnded("filter"),), "SAFETY"),
        ((RefusalDelta("No."), TurnEnded("stop")), "SAFETY"),
    ],
)
def test_finish_reasons(events: tuple[Event, ...], finish: str):
    assert chunks(written(*events))[-1]["candidates"][0]["finishReason"] == finish
    plain = json.loads(gemini.encode_turn(collect((TurnStarted(), *events)), SHOWN, "id1", 7))
    assert plain["candidates"][0]["finishReason"] == finish


def test_a_call_is_one_part_and_carries_its_id():
    part = parts_of(written(*a_call("toolu:1", arguments='{"n": 1.0,\n "n": 2}'), TurnEnded("calls")))[0]
    assert part["functionCall"]["name"] == "look"
    assert part["functionCall"]["id"].startswith("call_")
    assert carried(part) == ["toolu:1", "", []]
    [_, entry] = decoded(USER, model(part)).entries
    assert isinstance(entry, CallEntry)
    assert (entry.id, entry.signature) == ("toolu:1", "")


def test_arguments_stay_as_they_were_written():
    data = written(*a_call(arguments='{"n": 1.0,\n "n": 2}'), TurnEnded("calls"))
    assert b'"args":{"n":1.0,"n":2}' in data
    assert parts_of(written(*a_call(arguments="[1]"), TurnEnded()))[0]["functionCall"]["args"] == {"__arguments": "[1]"}


def test_an_incomplete_call_is_not_written():
    data = written(CallStarted("a", "look"), CallArgs("a", '{"x'), CallEnded("a", complete=False), TurnEnded("length"))
    assert parts_of(data) == [{"text": ""}]


def test_gemini_cli_would_take_a_name_before_an_id_for_its_own():
    part = parts_of(written(*a_call("look__7"), TurnEnded()))[0]
    assert "__" not in part["functionCall"]["id"]
    assert carried(part)[0] == "look__7"


THOUGHT = (ReasoningDelta("Hm"), ReasoningDelta("m."), ReasoningEnded("rs_1", "SEAL", "responses"))


def test_a_thought_is_shown_if_it_is_asked_for():
    shown, hidden = (
        parts_of(written(*THOUGHT, TextDelta("So."), TurnEnded(), request=each)) for each in (SHOWN, HIDDEN)
    )
    assert [part["text"] for part in shown] == ["Hm", "m.", "So.", ""]
    assert [part.get("thought", False) for part in shown] == [True, True, False, False]
    assert [part["text"] for part in hidden] == ["So.", ""]
    for parts in (shown, hidden):
        assert carried(parts[-2]) == ["", "", [["responses", "rs_1", ["Hmm."], "SEAL", False]]]


@pytest.mark.parametrize("alphabet", ["standard", "url-safe"])
def test_a_signature_of_another_server_returns_from_any_part(alphabet: str):
    thought = ReasoningEntry("rs_1", ("Hmm.",), (), "SEAL", "responses")
    for after in ((TextDelta("So."),), a_call(), ()):
        parts = parts_of(written(*THOUGHT, *after, TurnEnded()))
        if alphabet == "url-safe":
            parts = [
                {**part, "thoughtSignature": part["thoughtSignature"].replace("+", "-").replace("/", "_").rstrip("=")}
                if "thoughtSignature" in part
                else part
                for part in parts
            ]
        request = decoded(USER, model(*parts))
        kinds = [entry for entry in bare(request.entries) if isinstance(entry, ReasoningEntry)]
        assert kinds == [thought]
        assert not request.history_unchanged


def test_a_damaged_package_is_nothing():
    for data in (b"toolwire.signature.1.", b'toolwire.signature.1.["a","{",[]]', b"toolwire.signature.1.[1]"):
        [_, entry] = decoded(USER, model(call(id="c", signature=base64.b64encode(data).decode()))).entries
        assert bare((entry,)) == [CallEntry("c", "look", "{}")]


def test_plain_reasoning_cannot_be_forged():
    data = b'toolwire.signature.1.["a","",[["chat","",[],"{}",false]]]'
    entries = decoded(USER, model(call(id="c", signature=base64.b64encode(data).decode()))).entries
    assert bare(entries)[1:] == [CallEntry("a", "look", "{}")]


def test_a_large_signature_is_carried_whole():
    seal = "S" * 24_000
    parts = parts_of(written(ReasoningEnded("", seal, "messages"), *a_call(), TurnEnded()))
    assert carried(parts[0])[2][0][3] == seal


def test_a_signature_that_is_no_base64_is_carried_in_one_that_is():
    """The Python SDK refuses a whole answer with any other signature; a chat server may send what it likes."""
    signature = wrap_thought_signature("sig.1")
    [part, _] = parts_of(written(*a_call(signature=signature), TurnEnded()))
    assert carried(part) == ["call_1", signature, []]
    [_, entry] = decoded(USER, model(part)).entries
    assert isinstance(entry, CallEntry)
    assert entry.signature == signature


def test_geminis_own_signature_stays_as_it_is():
    events = a_call(signature=wrap_thought_signature("QUJD"))
    assert parts_of(written(*events, TurnEnded()))[0]["thoughtSignature"] == "QUJD"
    late = parts_of(written(TextDelta("So."), ReasoningEnded("", "QUJD", "gemini", redacted=True), TurnEnded()))
    assert late[:2] == [{"text": "So."}, {"text": "", "thoughtSignature": "QUJD"}]


def test_another_servers_signature_of_a_call_is_carried():
    part = parts_of(written(*a_call(signature='{"vendor":1}'), TurnEnded()))[0]
    [_, entry] = decoded(USER, model(part)).entries
    assert isinstance(entry, CallEntry)
    assert entry.signature == '{"vendor":1}'


def test_the_array_form_is_one_json_document():
    encoder = gemini.StreamEncoder(ARRAY, "id1", 7, TurnStats())
    assert encoder.content_type == b"application/json"
    data = b"".join(encoder.keepalive(15))
    data += b"".join(encoder.feed(TextDelta("a")))
    data += b"".join(encoder.keepalive(15))
    data += b"".join(encoder.feed(TurnEnded()))
    assert [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in json.loads(data)] == ["a", ""]
    assert json.loads(written(TurnFailed(Failure(503, "overloaded", "No.")), request=ARRAY))[0]["error"]["code"] == 503
    assert "error" in json.loads(written(TextDelta("a"), TurnFailed(Failure(503, "", "No.")), request=ARRAY))[1]
    broken = gemini.StreamEncoder(ARRAY, "id1", 7, TurnStats())
    assert json.loads(b"".join(broken.break_off()))[0]["error"]["status"] == "INTERNAL"


def test_a_keepalive_is_a_blank_line():
    encoder = gemini.StreamEncoder(SHOWN, "id1", 7, TurnStats())
    assert b"".join(encoder.keepalive(15)) == b"\r\n"


def test_a_failure_inside_a_stream_is_an_error_object():
    data = written(TextDelta("a"), TurnFailed(Failure(429, "rate_limited", "Slow.", retry_after="3")))
    assert chunks(data)[-1]["error"]["code"] == 429


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure(400, "invalid_value", "No.", param="contents"), "INVALID_ARGUMENT"),
        (Failure(401, "invalid_api_key", "No."), "UNAUTHENTICATED"),
        (Failure(403, "", "No."), "PERMISSION_DENIED"),
        (Failure(404, "model_not_found", "No."), "NOT_FOUND"),
        (Failure(413, "request_too_large", "No."), "INVALID_ARGUMENT"),
        (Failure(429, "rate_limited", "No.", retry_after="1.5"), "RESOURCE_EXHAUSTED"),
        (Failure(500, "internal_error", "No."), "INTERNAL"),
        (Failure(502, "bad_reply", "No."), "UNAVAILABLE"),
        (Failure(504, "timeout", "No.", retry_after="Fri, 20 Nov 2026 00:00:00 GMT"), "DEADLINE_EXCEEDED"),
    ],
)
def test_failures_are_googles_error_objects(failure: Failure, status: str):
    error = json.loads(gemini.encode_error(failure))["error"]
    assert (error["code"], error["message"], error["status"]) == (failure.status, "No.", status)
    kinds = {detail["@type"].rpartition(".")[2]: detail for detail in error.get("details", ())}
    assert ("ErrorInfo" in kinds, "BadRequest" in kinds) == (bool(failure.code), bool(failure.param))
    assert kinds.get("RetryInfo", {}).get("retryDelay") == ("1.5s" if failure.retry_after == "1.5" else None)


def test_a_plain_answer_joins_what_a_stream_divides():
    events = [TurnStarted(), *THOUGHT, TextDelta("Hel"), TextDelta("lo"), *a_call(), Usage(1, 2), TurnEnded("calls")]
    answer = json.loads(gemini.encode_turn(collect(events), SHOWN, "id1", 7))
    parts = answer["candidates"][0]["content"]["parts"]
    assert [part.get("text") for part in parts] == ["Hmm.", "Hello", None]
    assert carried(parts[1])[2][0][3] == "SEAL"
    assert (answer["modelVersion"], answer["responseId"]) == ("m", "id1")
    assert answer["usageMetadata"]["totalTokenCount"] == 3
    empty = json.loads(gemini.encode_turn(collect([TurnStarted(), TurnEnded()]), SHOWN, "id1", 7))
    assert empty["candidates"][0]["content"]["parts"] == [{"text": ""}]


# From Gemini to Gemini


def raw_chunk(**fields: Any) -> RawFrame:
    return RawFrame("chunk", "", json.dumps(fields).encode())


def test_a_delta_is_written_as_it_came():
    data = b'{"candidates": [{"content": {"parts": [{"text": "a"}]}, "index": 0}], "modelVersion": "x", "responseId": "r", "new": {"a": [1]}}'
    out = written(TextDelta("a", frame=Frame(b"", data)))
    assert out == b"data: " + data.replace(b'"modelVersion": "x"', b'"modelVersion":"m"').replace(
        b'"responseId": "r"', b'"responseId":"id1"') + b"\r\n\r\n"  # fmt: skip
    without = written(TextDelta("a", frame=Frame(b"", b'{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}')))
    assert chunks(without)[0]["modelVersion"] == "m"


def test_unknown_fields_of_a_chunk_are_kept():
    frame = raw_chunk(
        candidates=[{"content": {"parts": [{"text": "a"}]}, "groundingMetadata": {"x": 1}, "finishReason": "LANGUAGE"}],
        usageMetadata={"promptTokenCount": 5, "trafficType": "ON_DEMAND"},
        createTime="now",
        modelVersion="x",
    )
    [first, last] = chunks(written(frame, TextDelta("a"), Usage(5, 1), TurnEnded("filter")))
    assert first["candidates"][0]["groundingMetadata"] == {"x": 1}
    assert (first["createTime"], first["modelVersion"]) == ("now", "m")
    assert last["candidates"][0]["finishReason"] == "LANGUAGE"
    assert last["usageMetadata"]["trafficType"] == "ON_DEMAND"
    plain = json.loads(gemini.encode_turn(collect([TurnStarted(), frame, TextDelta("a"), TurnEnded("filter")]), SHOWN, "i", 7))  # fmt: skip
    assert (plain["candidates"][0]["groundingMetadata"], plain["createTime"]) == ({"x": 1}, "now")


def test_signatures_stay_on_their_parts():
    frame = raw_chunk(
        candidates=[{"content": {"parts": [{"text": "Hm", "thought": True, "thoughtSignature": "QQ"}, {"text": "So", "thoughtSignature": "Qg=="}]}}]
    )  # fmt: skip
    events = (frame, ReasoningDelta("Hm"), ReasoningEnded("", "QQ==", "gemini"), TextDelta("So"), ReasoningEnded("", "Qg==", "gemini"), TurnEnded())  # fmt: skip
    expected = [{"text": "Hm", "thought": True, "thoughtSignature": "QQ"}, {"text": "So", "thoughtSignature": "Qg=="}]
    assert parts_of(written(*events))[:2] == expected
    plain = json.loads(gemini.encode_turn(collect((TurnStarted(), *events)), SHOWN, "i", 7))
    assert plain["candidates"][0]["content"]["parts"] == expected


def test_an_id_that_the_server_did_not_give_is_not_shown():
    minted = f"call_{'0' * 24}01"
    [one, *_] = parts_of(written(raw_chunk(candidates=[]), *a_call(minted), TurnEnded()))
    [two, *_] = parts_of(written(*a_call(minted), TurnEnded()))
    assert one == {"functionCall": {"name": "look", "args": {}}}
    assert two["functionCall"]["id"] == minted


def test_a_part_without_events_keeps_its_place():
    part = RawFrame("part", "part-1", b'{"executableCode":{"code":"1"}}', is_unknown=True)
    events = (raw_chunk(candidates=[]), TextDelta("a"), part, *a_call("c1"), TurnEnded("calls"))
    expected: list[Json] = [
        {"text": "a"},
        {"executableCode": {"code": "1"}},
        {"functionCall": {"name": "look", "args": {}, "id": "c1"}},
    ]
    assert parts_of(written(*events))[:3] == expected
    plain = json.loads(gemini.encode_turn(collect((TurnStarted(), *events)), SHOWN, "i", 7))
    assert plain["candidates"][0]["content"]["parts"] == expected


def test_the_call_table_and_the_stream_agree_on_calls():
    turn = collect((TurnStarted(), *a_call("c1"), TurnEnded("calls")))
    assert turn.calls == (Call("c1", "look", "{}"),)


# Models


def test_models_have_pages():
    names = [(f"m{number}", "b") for number in range(5)]
    page = gemini.encode_models(names, {"pageSize": "2", "pageToken": "2"})
    assert [each["name"] for each in page["models"]] == ["models/m2", "models/m3"]
    assert page["nextPageToken"] == "4"
    assert "nextPageToken" not in gemini.encode_models(names, {"pageToken": "4"})
    with pytest.raises(BadRequest, match="pageSize"):
        gemini.encode_models(names, {"pageSize": "x"})
