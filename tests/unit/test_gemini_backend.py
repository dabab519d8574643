"""The Gemini API as a backend: what is asked, and what is made of the answers."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.chunks import in_any_chunking
from toolwire.backends.failures import find_refused_part
from toolwire.backends.gemini import (
    GOOGLE,
    Conversation,
    Profile,
    convert_models,
    count_tokens,
    profile_from,
    read_count,
)
from toolwire.backends.gemini.encode import OPENING, make_path
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn, collect
from toolwire.core.events import Note, RawFrame, Usage
from toolwire.core.order import TurnOrder
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    OutputFormat,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
    ToolsEntry,
)
from toolwire.core.signatures import UNKNOWN_THOUGHT_SIGNATURE, PackedSignature, wrap_thought_signature
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.dialects import gemini
from toolwire.dialects.gemini.carried import Carried, pack_carried
from toolwire.reader import TurnReader

Json = dict[str, Any]

SIGNED, OTHER = "c2lnbmVk", "b3RoZXI="
HEAD: Json = {"modelVersion": "gemini-3-pro", "responseId": "r1"}


def chunk(*parts: Json, finish: str = "", message: str = "", **fields: Any) -> Json:
    """One chunk, as AI Studio sends it."""
    candidate: Json = {"content": {"parts": [*parts], "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    if message:
        candidate["finishMessage"] = message
    return {"candidates": [candidate], **HEAD, **fields}


def text(words: str, **fields: Any) -> Json:
    return {"text": words, **fields}


def thought(words: str, **fields: Any) -> Json:
    return {"text": words, "thought": True, **fields}


def call(name: str, args: Any = None, id: str = "", signature: str = "") -> Json:
    inner: Json = {"name": name, "args": {} if args is None else args, **({"id": id} if id else {})}
    return {"functionCall": inner, **({"thoughtSignature": signature} if signature else {})}


def piece(**fields: Any) -> Json:
    """A part of streamed arguments."""
    return {"functionCall": fields}


def value(path: str, **fields: Any) -> Json:
    return piece(partialArgs=[{"jsonPath": path, **fields}], willContinue=True)


STOP = chunk(text(""), finish="STOP")


def turn(*chunks: Json, tools: tuple[str, ...] = (), ends: bytes = b"\r\n\r\n", dialect: str = "") -> Turn:
    """The turn a stream makes: legal, and the same in any chunking."""
    request = Request("m", (), dialect=dialect, stream=True, tools=tuple(Tool(name) for name in tools))

    def run(pieces: list[bytes]) -> Turn:
        line = Pipeline(FrameReader(), Conversation(request, "S"), TurnOrder())
        return collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))

    return in_any_chunking(b"".join(b"data: " + json.dumps(each).encode() + ends for each in chunks), run)


def plain(body: Any) -> Turn:
    """The turn of a reply that is not an event stream."""
    reader = TurnReader(Conversation(Request("m", ()), "S"), "application/json")
    order = Pipeline(TurnOrder())
    events = [*reader.feed(json.dumps(body).encode()), *reader.end()]
    return collect([*order.feed_all(events), *order.end()])


def codes(result: Turn) -> list[str]:
    return [note.code for note in result.notes]


def posted(*entries: Entry, model: str = "gemini-3-pro", profile: Profile = GOOGLE, **fields: Any) -> Json:
    """The body as a conversation posts it: lowered."""
    return json.loads(Conversation(Request(model, entries, **fields), "S", profile).start().body)


def noted(
    *entries: Entry, model: str = "gemini-3-pro", profile: Profile = GOOGLE, **fields: Any
) -> list[tuple[str, str]]:
    conversation = Conversation(Request(model, entries, **fields), "S", profile)
    conversation.start()
    return [(note.code, note.subject) for note in conversation.notes]


def contents(*entries: Entry, **fields: Any) -> list[Json]:
    return posted(*entries, **fields)["contents"]


def says(role: Any, *words: str) -> Message:
    return Message(role, tuple(TextPart(each) for each in words))


USER = says("user", "Go.")
ASKED = {"role": "user", "parts": [{"text": "Go."}]}


def made(id: str, name: str = "f", signature: str = SIGNED, arguments: str = "{}") -> CallEntry:
    return CallEntry(id, name, arguments, signature=wrap_thought_signature(signature) if signature else "")


def result(id: str, words: str = "ok", **fields: Any) -> ResultEntry:
    return ResultEntry(id, (TextPart(words),), **fields)


# Reading: text, thoughts and their signatures


def test_text_comes_in_pieces_and_the_reason_later():
    got = turn(chunk(text("Hel")), chunk(text("lo")), STOP)
    assert (got.items, got.reason, got.id, got.model) == ((Text("Hello"),), "stop", "r1", "gemini-3-pro")
    assert got.notes == ()


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n", b"\n\n\n"])
def test_frames_end_in_any_kind_of_line_end(ends: bytes):
    assert turn(chunk(text("Hello")), STOP, ends=ends).text == "Hello"


def test_thoughts_are_shown_before_the_text():
    got = turn(chunk(thought("**One**")), chunk(thought(" two")), chunk(text("So.")), STOP)
    assert got.items == (Reasoning(("**One** two",), origin="gemini"), Text("So."))


def test_a_signed_thought_has_its_signature():
    got = turn(chunk(thought("Hm.", thoughtSignature=SIGNED)), chunk(text("So.")), STOP)
    assert got.items == (Reasoning(("Hm.",), signature=SIGNED, origin="gemini"), Text("So."))


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(text("So.")), chunk(text("", thoughtSignature=SIGNED), finish="STOP")],
        [chunk(text("So.", thoughtSignature=SIGNED), finish="STOP")],
        [chunk(text("S", thoughtSignature=SIGNED)), chunk(text("o.")), STOP],
        [chunk(text("So.")), chunk({"thoughtSignature": SIGNED}), STOP],
    ],
)
def test_the_signature_of_a_text_is_behind_the_whole_text(chunks: list[Json]):
    assert turn(*chunks).items == (Text("So."), Reasoning(signature=SIGNED, origin="gemini", redacted=True))


def test_a_signature_in_the_other_alphabet_becomes_standard():
    got = turn(chunk(text("a", thoughtSignature="-_8")), chunk(call("f", signature="-_8"), finish="STOP"))
    assert got.items[1] == Reasoning(signature="+/8=", origin="gemini", redacted=True)
    assert got.calls[0].signature == '{"google":{"thought_signature":"+/8="}}'


# Reading: calls


def test_a_call_is_one_part_with_its_signature():
    got = turn(chunk(call("f", {"a": 1.0, "b": "e"}, signature=SIGNED)), STOP)
    assert got.items == (Call("call_S01", "f", '{"a":1.0,"b":"e"}', signature=wrap_thought_signature(SIGNED)),)
    assert got.reason == "stop"


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(call("f", {"n": 1}, signature=SIGNED), call("f", {"n": 2}), call("g"), finish="STOP")],
        [chunk(call("f", {"n": 1}, signature=SIGNED)), chunk(call("f", {"n": 2})), chunk(call("g")), STOP],
    ],
)
def test_parallel_calls_come_in_one_chunk_or_several(chunks: list[Json]):
    got = turn(*chunks)
    assert [(each.id, each.name, each.arguments, bool(each.signature)) for each in got.calls] == [
        ("call_S01", "f", '{"n":1}', True),
        ("call_S02", "f", '{"n":2}', False),
        ("call_S03", "g", "{}", False),
    ]
    assert all(each.complete for each in got.calls)


def test_ids_of_the_server_are_kept():
    got = turn(chunk(call("f", id="1zgnzmz8"), call("f", id="1zgnzmz8"), call("f")), STOP)
    assert [each.id for each in got.calls] == ["1zgnzmz8", "call_S02", "call_S03"]
    assert codes(got) == ["id_reused"]


def test_equal_calls_whose_only_argument_is_text_stay_apart():
    got = turn(*(chunk({"functionCall": {"args": {"text": each}, "name": "f"}}) for each in "aab"), STOP)
    assert [each.arguments for each in got.calls] == ['{"text":"a"}', '{"text":"a"}', '{"text":"b"}']


@pytest.mark.parametrize("args", [{"args": None}, {"args": {}}, {}])
def test_a_call_without_arguments_has_an_empty_object(args: Json):
    assert turn(chunk({"functionCall": {"name": "f", **args}}), STOP).calls[0].arguments == "{}"


def test_text_around_calls_keeps_its_place():
    got = turn(chunk(text("So."), call("f"), text("Done.", thoughtSignature=SIGNED)), STOP)
    assert got.items[0] == Text("So.")
    assert got.items[2:] == (Text("Done."), Reasoning(signature=SIGNED, origin="gemini", redacted=True))


def test_a_call_without_a_name_has_its_arguments():
    got = turn(chunk({"functionCall": {"args": {"a": 1}}}), STOP)
    assert [(each.name, each.arguments) for each in got.calls] == [("", '{"a":1}')]


# Reading: streamed arguments

STREAMED: dict[str, tuple[list[Json], str]] = {
    "strings, numbers and words": (
        [
            value("$.a", stringValue="Pa", willContinue=True),
            value("$.a", stringValue='r"is', willContinue=True),
            value("$.a", stringValue=""),
            value("$.n", numberValue=0.5),
            value("$.yes", boolValue=True),
            value("$.no", boolValue=False),
            value("$.none", nullValue="NULL_VALUE"),
            value("$.last", stringValue="é\n"),
        ],
        '{"a":"Par\\"is","n":0.5,"yes":true,"no":false,"none":null,"last":"é\\n"}',
    ),
    "nested, with nothing between the elements": (
        [
            value("$.recipe.steps[0].amount", stringValue="16 oz", willContinue=True),
            value("$.recipe.steps[0].amount", stringValue=""),
            value("$.recipe.steps[0].name", stringValue="flour"),
            piece(willContinue=True),
            value("$.recipe.steps[1].amount", stringValue="1 lb", willContinue=True),
            value("$.recipe.steps[1].amount"),
            value("$.recipe.name", stringValue="Lasagne"),
            value("$.tags[0][0]", numberValue=1),
            value("$.tags[0][1]", numberValue=2),
            value("$.tags[1][0]", numberValue=3),
        ],
        '{"recipe":{"steps":[{"amount":"16 oz","name":"flour"},{"amount":"1 lb"}],"name":"Lasagne"},"tags":[[1,2],[3]]}',
    ),
    "odd keys": (
        [value("$['a.b']", numberValue=1), value('$["c\\"d"].e f', numberValue=2), value("$.ü[0]", stringValue="")],
        '{"a.b":1,"c\\"d":{"e f":2},"ü":[""]}',
    ),
    "several values in one part": (
        [piece(partialArgs=[{"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": "$.b", "numberValue": 2}], willContinue=True)],
        '{"a":1,"b":2}',
    ),
    "a string that begins before its text": ([value("$.a", willContinue=True), value("$.a", stringValue="x")], '{"a":"x"}'),
    "nothing": ([], "{}"),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("ending", [[piece()], []])
def test_streamed_arguments_become_text(name: str, ending: list[Json]):
    pieces, arguments = STREAMED[name]
    start = {**piece(name="f", willContinue=True), "thoughtSignature": SIGNED}
    got = turn(*map(chunk, [start, *pieces, *ending]), STOP)
    assert got.calls == (Call("call_S01", "f", arguments, signature=wrap_thought_signature(SIGNED)),)
    assert json.loads(arguments) is not None


def test_the_last_fragment_may_end_the_call():
    last = piece(partialArgs=[{"jsonPath": "$.a", "numberValue": 1}])
    got = turn(*map(chunk, [piece(name="f", willContinue=True), last, text("So."), call("g")]), STOP)
    assert got.items == (Call("call_S01", "f", '{"a":1}'), Text("So."), Call("call_S02", "g", "{}"))


def test_a_name_begins_the_next_call():
    both = [piece(name="f", willContinue=True), value("$.a", stringValue="x"), piece(name="g", willContinue=True)]
    got = turn(*map(chunk, both), STOP)
    assert [(each.name, each.arguments) for each in got.calls] == [("f", '{"a":"x"}'), ("g", "{}")]


def test_streamed_arguments_that_are_cut_off_are_incomplete():
    start = [piece(name="f", willContinue=True), value("$.a", stringValue="half a", willContinue=True)]
    got = turn(*map(chunk, start), chunk(finish="MAX_TOKENS"))
    assert got.calls == (Call("call_S01", "f", '{"a":"half a', complete=False),)
    assert got.reason == "length"


# Reading: the end


@pytest.mark.parametrize(
    ("finish", "reason", "notes"),
    [
        ("STOP", "stop", []),
        ("MAX_TOKENS", "length", []),
        ("SAFETY", "filter", []),
        ("RECITATION", "filter", []),
        ("LANGUAGE", "filter", []),
        ("IMAGE_OTHER", "filter", []),
        ("OTHER", "stop", ["reason_unknown"]),
        ("SOMETHING_NEW", "stop", ["reason_unknown"]),
        ("CONTINUATION", "stop", ["turn_paused"]),
    ],
)
def test_the_finish_reason_is_told_as_it_is(finish: str, reason: str, notes: list[str]):
    got = turn(chunk(text("So."), finish=finish))
    assert (got.reason, codes(got), got.text) == (reason, notes, "So.")
    assert plain(chunk(text("So."), finish=finish)).reason == reason


def test_success_may_have_a_message():
    got = turn(chunk(call("f")), chunk(text(""), finish="STOP", message="Model generated function call(s)."))
    assert got.items == (Call("call_S01", "f", "{}"),)


def test_an_answer_that_was_withheld_says_why():
    got = turn({"candidates": [{"finishReason": "PROHIBITED_CONTENT", "finishMessage": "Not this."}]})
    assert (got.items, got.reason) == ((Refusal("Not this."),), "filter")


@pytest.mark.parametrize(
    ("feedback", "words"),
    [
        ({"blockReason": "OTHER"}, "The model's server refused the prompt: OTHER."),
        ({"blockReason": "JAILBREAK", "blockReasonMessage": "No."}, "No."),
    ],
)
def test_a_refused_prompt_is_a_refusal(feedback: Json, words: str):
    got = turn({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 9}})
    assert (got.items, got.reason, got.usage) == ((Refusal(words),), "filter", Usage(9))
    assert plain({"promptFeedback": feedback}).reason == "filter"


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"])
def test_a_call_that_the_model_did_not_manage_is_a_failure(finish: str):
    end = {"candidates": [{"finishReason": finish, "finishMessage": "print(default_api.f(", "content": {}}]}
    for got in (turn(end), plain(end)):
        assert got.failure is not None
        assert (got.failure.code, got.failure.message) == (finish.lower(), "print(default_api.f(")
        assert (got.failure.status, got.failure.retryable, got.failure.quoted) == (502, True, True)


def test_an_unexpected_call_is_delivered_if_it_is_there():
    got = turn(chunk(call("g", {"a": 1}), finish="UNEXPECTED_TOOL_CALL"))
    assert (got.failure, got.reason, [each.name for each in got.calls]) == (None, "stop", ["g"])


def test_a_stream_without_its_end_is_cut():
    got = turn(chunk(text("Hel")))
    assert (got.failure and got.failure.code, got.text) == ("stream_cut", "Hel")


def test_frames_after_the_reason_are_counted():
    conversation = Conversation(Request("m", (), stream=True), "S")
    line = Pipeline(FrameReader(), conversation)
    for each in (chunk(text("a")), STOP, STOP):
        line.feed(b"data: " + json.dumps(each).encode() + b"\n\n")
    assert conversation.decoder.finishing == 2


# Reading: usage


def test_counts_are_totals_and_the_last_one_wins():
    got = turn(
        chunk(text("a"), usageMetadata={"promptTokenCount": 29, "candidatesTokenCount": 1, "totalTokenCount": 30}),
        chunk(
            text("b"),
            finish="STOP",
            usageMetadata={
                "promptTokenCount": "29",
                "toolUsePromptTokenCount": 11,
                "cachedContentTokenCount": 20,
                "candidatesTokenCount": 15,
                "thoughtsTokenCount": 804,
            },
        ),
    )
    assert got.usage == Usage(40, 819, 20, 0, 804)


def test_a_missing_count_changes_nothing():
    counted = {"promptTokenCount": 5, "thoughtsTokenCount": 7}
    got = turn(
        chunk(text("a"), usageMetadata=counted), chunk(finish="STOP", usageMetadata={"trafficType": "ON_DEMAND"})
    )
    assert got.usage == Usage(5, 7, 0, 0, 7)


# Reading: other forms of a reply, and what has no form here


REPLIES = [
    [chunk(text("Hel")), chunk(text("lo"), call("f", {"a": 1}, signature=SIGNED)), STOP],
    [chunk(thought("Hm.")), chunk(text("So.", thoughtSignature=SIGNED), finish="STOP")],
]


@pytest.mark.parametrize("chunks", REPLIES)
def test_a_list_is_read_like_a_stream(chunks: list[Json]):
    assert plain(chunks) == turn(*chunks)


def test_a_plain_reply_is_read_like_a_stream():
    parts = [thought("Hm."), text("So."), call("f", {"a": 1}, "id1", SIGNED), call("f", {"a": 2})]
    usage = {"promptTokenCount": 1}
    whole = plain(chunk(*parts, finish="STOP", usageMetadata=usage))
    assert whole == turn(*map(chunk, parts), chunk(finish="STOP", usageMetadata=usage))


@pytest.mark.parametrize("body", [{}, [], {"candidates": []}, "text", 5, {"modelVersion": "m"}])
def test_a_reply_without_candidates_is_bad(body: Any):
    conversation = Conversation(Request("m", ()), "S")
    got = collect(list(conversation.feed_plain(json.dumps(body).encode())))
    assert got.failure is not None
    assert got.failure.code == "bad_reply"


def test_a_list_that_is_cut_off_is_a_failure():
    assert plain([chunk(text("Hel"))]).failure == turn(chunk(text("Hel"))).failure


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "AA"}, "thoughtSignature": SIGNED},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"somethingNew": {"text": "x"}},
    ],
)
def test_parts_without_a_counterpart_are_noted_or_kept(part: Json):
    kind = next(iter(part))
    got = turn(chunk(text("a")), chunk(part), chunk(part), chunk(text("b")), STOP)
    assert [(note.code, note.subject) for note in got.notes] == [("item_dropped", kind)]
    same = turn(chunk(text("a")), chunk(part), chunk(text("b")), STOP, dialect="gemini")
    kept = [item for item in same.items if isinstance(item, RawFrame) and item.type == "part"]
    assert [(each.item, json.loads(each.data), each.is_unknown) for each in kept] == [(kind, part, True)]
    assert same.notes == ()


def test_further_candidates_and_sources_are_noted():
    more = chunk(text("a"))
    more["candidates"].append({"index": 1, "content": {"parts": [{"text": "b"}]}, "finishReason": "STOP"})
    more["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["q"]}
    got = turn(more, more, STOP)
    assert got.text == "aa"
    assert sorted(codes(got)) == ["annotations_dropped", "item_dropped"]


def test_a_client_of_the_same_dialect_gets_the_frames():
    whole = chunk(text("a"), usageMetadata={"promptTokenCount": 1})
    conversation = Conversation(Request("m", (), dialect="gemini", stream=True), "S")
    line = Pipeline(FrameReader(), conversation)
    data = json.dumps(whole).encode()
    events = [
        *line.feed(b"data: " + data + b"\r\n\r\n"),
        *line.feed(b"data: " + json.dumps(STOP).encode() + b"\r\n\r\n"),
    ]
    [delta] = [event for event in events if hasattr(event, "text")]
    assert delta.frame.data == data  # type: ignore[attr-defined]
    assert [json.loads(event.data) for event in events if isinstance(event, RawFrame)] == [STOP]


def test_an_unreadable_frame_is_skipped_with_a_note():
    got = turn(chunk(text("a")), {"candidates": 5}, STOP)
    assert (got.text, codes(got)) == ("a", ["frame_skipped"])


# Errors


def error(code: int, status: str, message: str = "Bad.", **details: Any) -> Json:
    listed = [{"@type": "type.googleapis.com/google.rpc.Thing", **details}] if details else []
    return {"error": {"code": code, "message": message, "status": status, "details": listed}}


ERRORS = [
    (error(400, "INVALID_ARGUMENT"), 400, "invalid_request_error", False, ""),
    (error(400, "INVALID_ARGUMENT", reason="API_KEY_INVALID"), 401, "invalid_api_key", False, ""),
    (error(400, "FAILED_PRECONDITION"), 400, "failed_precondition", False, ""),
    (error(401, "UNAUTHENTICATED"), 401, "invalid_api_key", False, ""),
    (error(403, "PERMISSION_DENIED"), 403, "permission_error", False, ""),
    (error(404, "NOT_FOUND", "models/x is not found"), 404, "model_not_found", False, ""),
    (error(429, "RESOURCE_EXHAUSTED", retryDelay="34.4s"), 429, "rate_limit_exceeded", True, "35"),
    (error(429, "RESOURCE_EXHAUSTED", violations=[{"quotaId": "RequestsPerDay"}]), 429, "insufficient_quota", False, ""),
    (error(500, "INTERNAL"), 500, "internal", True, ""),
    (error(503, "UNAVAILABLE"), 503, "server_is_overloaded", True, ""),
    (error(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum."), 400, "context_length_exceeded", False, ""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code", "retryable", "wait"), ERRORS)
def test_errors_have_their_code(body: Json, status: int, code: str, retryable: bool, wait: str):
    conversation = Conversation(Request("m", ()), "S")
    listed = [conversation.read_error(body["error"]["code"], {}, json.dumps(form).encode()) for form in (body, [body])]
    inside = turn(chunk(text("a")), body).failure
    alone, whole = plain(body).failure, plain([body]).failure
    for found in (*listed, inside, alone, whole):
        assert found is not None
        assert (found.status, found.code, found.retryable, found.retry_after) == (status, code, retryable, wait)
        assert found.message == body["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"<html><title>Oops</title></html>", b"", b"{}", b"[]", b'{"error":"no"}', b'{"error":5}']
)
def test_errors_of_proxies_are_read_as_elsewhere(body: bytes):
    found = Conversation(Request("m", ()), "S").read_error(503, {"retry-after": "7"}, body)
    assert (found.status, found.retryable, found.retry_after) == (503, True, "7")


@pytest.mark.parametrize("given", ["words", 5, {}, {"code": "x", "details": 3}])
def test_an_error_of_another_shape_inside_a_stream_ends_the_turn(given: Any):
    found = turn(chunk(text("a")), {"error": given}).failure
    assert found is not None
    assert (found.status, found.code) == (502, "server_error")


@pytest.mark.parametrize(
    "message",
    [
        "Corrupted thought signature.",
        "Thought signature is not valid.",
    ],
)
def test_a_refused_signature_is_recognised(message: str):
    body = json.dumps(error(400, "INVALID_ARGUMENT", message)).encode()
    found = find_refused_part(Conversation(Request("m", ()), "S").read_error(400, {}, body))
    assert found is not None
    assert (found.part, found.always) == ("reasoning", False)


# Asking: where


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-3-pro", "/models/gemini-3-pro:countTokens"),
        ("models/gemini-3-pro", "/models/gemini-3-pro:countTokens"),
        ("tunedModels/mine", "/tunedModels/mine:countTokens"),
        ("endpoints/123", "/endpoints/123:countTokens"),
        ("openai/gpt-5", "/models/openai%2Fgpt-5:countTokens"),
        ("qwen3:8b", "/models/qwen3%3A8b:countTokens"),
        ("../x?y#z", "/models/..%2Fx%3Fy%23z:countTokens"),
        ("m@001", "/models/m@001:countTokens"),
    ],
)
def test_the_model_is_in_the_path(model: str, path: str):
    assert make_path(model, "countTokens") == path


def test_the_path_says_whether_the_reply_is_streamed():
    asked = Conversation(Request("m", (USER,), stream=True), "S").start()
    assert asked.path == "/models/m:streamGenerateContent?alt=sse"
    assert Conversation(Request("m", (USER,)), "S").start().path == "/models/m:generateContent"


# Asking: the history


def test_a_history_becomes_contents():
    history = (
        says("system", "One."),
        says("developer", "Two."),
        USER,
        says("assistant", "So."),
        made("a", arguments='{"x": 1.0}'),
        made("b", signature=""),
        result("b", "second"),
        result("a", "boom", failed=True),
        says("user", "And?"),
        says("assistant", "Done."),
        says("developer", "Later."),
    )
    body = posted(*history, instructions="Zero.")
    assert body["systemInstruction"] == {"parts": [{"text": "Zero.\n\nOne.\n\nTwo."}]}
    assert body["contents"] == [
        ASKED,
        {
            "role": "model",
            "parts": [
                {"text": "So."},
                {"functionCall": {"id": "a", "name": "f", "args": {"x": 1.0}}, "thoughtSignature": SIGNED},
                {"functionCall": {"id": "b", "name": "f", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "a", "name": "f", "response": {"error": "boom"}}},
                {"functionResponse": {"id": "b", "name": "f", "response": {"output": "second"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "And?"}]},
        {"role": "model", "parts": [{"text": "Done."}]},
        {"role": "user", "parts": [{"text": "<system>\nLater.\n</system>"}]},
    ]


def test_steps_of_one_turn_have_contents_of_their_own():
    listed = contents(USER, made("a"), result("a"), made("b", signature=OTHER), result("b"))
    assert [each["role"] for each in listed] == ["user", "model", "user", "model", "user"]
    assert [each["parts"][0].get("thoughtSignature") for each in listed if each["role"] == "model"] == [SIGNED, OTHER]


@pytest.mark.parametrize("history", [(), (says("assistant", "Hi."),), (says("system", "Be."),)])
def test_a_conversation_begins_with_the_user(history: tuple[Entry, ...]):
    assert contents(*history)[0] == {"role": "user", "parts": [{"text": OPENING}]}
    assert ("message_added", "user") in noted(*history)


@pytest.mark.parametrize(
    ("ids", "sent"),
    [("own", ["toolu_1", None]), ("always", ["toolu_1", "call_" + "0" * 24 + "01"]), ("never", [None, None])],
)
def test_ids_that_were_made_here_are_left_out(ids: str, sent: list[str | None]):
    own = "call_" + "0" * 24 + "01"
    history = (USER, made("toolu_1"), made(own), result("toolu_1"), result(own))
    _, calls, results = contents(*history, profile=profile_from({"ids": ids}))
    assert [each["functionCall"].get("id") for each in calls["parts"]] == sent
    assert [each["functionResponse"].get("id") for each in results["parts"]] == sent


def test_empty_texts_are_left_out():
    assert contents(USER, says("assistant", ""), says("user", "", "a"), says("developer", "")) == [
        {"role": "user", "parts": [{"text": "Go."}, {"text": "a"}]}
    ]


def test_arguments_that_are_no_object_are_wrapped():
    assert contents(USER, made("a", arguments="[1]"))[1]["parts"][0]["functionCall"]["args"] == {"__arguments": "[1]"}


IMAGE = ImagePart("data:image/png;base64,AA==")
PNG = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (IMAGE, PNG),
        (ImagePart("https://x/i"), {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x/i"}}),
        (ImagePart("data:text/plain,a%20b"), {"inlineData": {"mimeType": "text/plain", "data": "YSBi"}}),
        (FilePart("data:application/pdf;base64,AA==", name="n.pdf"), {"inlineData": {"mimeType": "application/pdf", "data": "AA==", "displayName": "n.pdf"}}),
        (FilePart(url="gs://b/f"), {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://b/f"}}),
        (AudioPart("AA==", "mp3"), {"inlineData": {"mimeType": "audio/mp3", "data": "AA=="}}),
        (RefusalPart("No."), {"text": "No."}),
    ],
)  # fmt: skip
def test_media_are_parts(part: Any, written: Json):
    assert contents(Message("user", (part,)))[0]["parts"] == [written]


@pytest.mark.parametrize("part", [ImagePart("", id="file_1"), FilePart(id="file_1")])
def test_files_of_another_server_are_noted(part: Any):
    assert ("part_dropped", type(part).__name__[:-4].lower()) in noted(USER, Message("user", (part,)))


def test_images_of_results_stand_in_the_result_or_behind_it():
    history = (USER, made("a"), made("b"), ResultEntry("a", (TextPart("see"), IMAGE)), result("b"))
    inside, beside = (contents(*history, model=model)[2]["parts"] for model in ("gemini-3-pro", "gemini-2.5-flash"))
    assert inside[0]["functionResponse"]["parts"] == [PNG]
    assert [*map(next, map(iter, beside))] == ["functionResponse", "functionResponse", "inlineData"]


# Asking: signatures


def test_the_first_call_of_a_step_has_a_signature_even_if_it_is_unknown():
    history = (
        USER,
        made("a", signature=""),
        made("b", signature=""),
        result("a"),
        result("b"),
        made("c", signature=""),
        result("c"),
    )
    signed = [
        [part.get("thoughtSignature") for part in each["parts"]]
        for each in contents(*history)
        if each["role"] == "model"
    ]
    assert signed == [[UNKNOWN_THOUGHT_SIGNATURE, None], [UNKNOWN_THOUGHT_SIGNATURE]]
    assert noted(*history) == [("signature_missing", "a"), ("signature_missing", "c")]
    assert "thoughtSignature" not in str(contents(*history, model="gemini-2.5-pro"))


def test_a_signature_of_another_server_is_not_sent():
    foreign = CallEntry("a", "f", "{}", signature='{"other":{"x":1}}')
    assert contents(USER, foreign)[1]["parts"][0]["thoughtSignature"] == UNKNOWN_THOUGHT_SIGNATURE


def test_signed_texts_and_thoughts_return_as_they_were():
    history = (
        USER,
        ReasoningEntry(summary=("Hm.",), signature=OTHER, origin="gemini"),
        says("assistant", "So."),
        ReasoningEntry(signature=SIGNED, origin="gemini", redacted=True),
        made("a"),
        ReasoningEntry(signature=OTHER, origin="gemini", redacted=True),
    )
    assert contents(*history)[1]["parts"] == [
        {"text": "Hm.", "thought": True, "thoughtSignature": OTHER},
        {"text": "So.", "thoughtSignature": SIGNED},
        {"functionCall": {"id": "a", "name": "f", "args": {}}, "thoughtSignature": SIGNED},
        {"text": "", "thoughtSignature": OTHER},
    ]


def test_reasoning_of_others_is_dropped_with_a_note():
    other = ReasoningEntry("r1", ("Hm.",), signature="S", origin="messages")
    plain_text = ReasoningEntry("", ("Hm.",))
    assert contents(USER, other, plain_text, says("assistant", "So."))[1]["parts"] == [{"text": "So."}]
    assert noted(USER, other, plain_text) == [("reasoning_dropped", "r1")]


# Asking: tools


SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"a":{"const":1}},"$schema":"x"}')


def test_tools_are_declared_with_their_json_schema():
    body = posted(USER, tools=(Tool("f", "D", SCHEMA), Tool("g")))
    assert body["tools"] == [
        {"functionDeclarations": [{"name": "f", "description": "D", "parametersJsonSchema": json.loads(bytes(SCHEMA))}, {"name": "g"}]}
    ]  # fmt: skip
    assert "toolConfig" not in body


@pytest.mark.parametrize(
    ("schema", "is_sent"),
    [
        (b'{"type":"object"}', False),
        (b'{"type":"object","properties":{},"required":[],"additionalProperties":false}', False),
        (b'{"type":"object","minProperties":1}', True),
        (b'{"type":"object","properties":{"a":{}}}', True),
    ],
)
def test_a_schema_without_parameters_is_left_out(schema: bytes, is_sent: bool):
    [declared] = posted(USER, tools=(Tool("f", "", msgspec.Raw(schema)),))["tools"][0]["functionDeclarations"]
    assert ("parametersJsonSchema" in declared) is is_sent


def test_older_servers_get_part_of_json_schema():
    profile = profile_from({"schema_field": "parameters"})
    schema = msgspec.Raw(b'{"type":"object","properties":{"a":{"type":["string","null"],"const":"x"}},"$schema":"x"}')
    body = posted(USER, profile=profile, tools=(Tool("f", "", schema),), output_format=OutputFormat(schema))
    lowered = {"type": "object", "properties": {"a": {"type": "string", "nullable": True, "enum": ["x"]}}}
    assert body["tools"][0]["functionDeclarations"] == [{"name": "f", "parameters": lowered}]
    assert body["generationConfig"]["responseSchema"] == lowered


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        (ToolChoice("auto"), {"mode": "AUTO"}),
        (ToolChoice("required"), {"mode": "ANY"}),
        (ToolChoice("none"), {"mode": "NONE"}),
        (ToolChoice(name="f"), {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        (ToolChoice("required", allowed=("f",), limited=True), {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        (ToolChoice("auto", allowed=("f",), limited=True), {"mode": "VALIDATED", "allowedFunctionNames": ["f"]}),
        (ToolChoice("auto", limited=True), {"mode": "NONE"}),
    ],
)
def test_the_tool_choice_is_a_mode(choice: ToolChoice, config: Json):
    body = posted(USER, tools=(Tool("f"), Tool("g")), tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": config}
    assert len(body["tools"][0]["functionDeclarations"]) == 2


def test_a_custom_tool_is_a_function_there():
    conversation = Conversation(Request("m", (USER,), stream=True, tools=(Tool("patch", kind="custom"),)), "S")
    declared = json.loads(conversation.start().body)["tools"][0]["functionDeclarations"][0]
    assert [*declared["parametersJsonSchema"]["properties"]] == ["input"]
    reply = b"data: " + json.dumps(chunk(call("patch", {"input": "raw"}), finish="STOP")).encode() + b"\n\n"
    line = Pipeline(FrameReader(), conversation)
    assert collect([*line.feed(reply), *line.end()]).calls == (Call("call_S01", "patch", "raw", "custom"),)


def test_streamed_arguments_are_asked_for_if_the_profile_says_so():
    fields: Json = {"tools": (Tool("f"),), "profile": profile_from({"streams_arguments": True})}
    assert posted(USER, stream=True, **fields)["toolConfig"] == {
        "functionCallingConfig": {"streamFunctionCallArguments": True}
    }
    assert "toolConfig" not in posted(USER, **fields)


# Asking: the rest


def test_sampling_is_in_the_generation_config():
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, stop=("END",), effort="low")
    extra = {"top_k": msgspec.Raw(b"3"), "seed": msgspec.Raw(b"1"), "logit_bias": msgspec.Raw(b"{}")}
    assert posted(USER, sampling=sampling, extra=extra)["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 7,
        "stopSequences": ["END"],
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
        "topK": 3,
        "seed": 1,
    }
    assert noted(USER, sampling=sampling, extra=extra) == [("field_dropped", "logit_bias")]
    assert "generationConfig" not in posted(USER)


@pytest.mark.parametrize(
    ("model", "effort", "config", "note"),
    [
        ("gemini-3-pro", "high", {"includeThoughts": True, "thinkingLevel": "HIGH"}, ""),
        ("gemini-3-pro", "max", {"includeThoughts": True, "thinkingLevel": "HIGH"}, "value_changed"),
        ("gemini-3.1-pro-preview", "minimal", {"includeThoughts": True, "thinkingLevel": "LOW"}, "value_changed"),
        ("gemini-3-flash", "minimal", {"includeThoughts": True, "thinkingLevel": "MINIMAL"}, ""),
        ("gemini-3-flash", "none", {"includeThoughts": True, "thinkingLevel": "MINIMAL"}, "value_changed"),
        ("gemini-flash-latest", "medium", {"includeThoughts": True, "thinkingLevel": "MEDIUM"}, ""),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}, ""),
        ("gemini-2.5-pro", "low", {"includeThoughts": True, "thinkingBudget": 1024}, ""),
        ("gemini-1.5-pro", "low", None, "field_dropped"),
    ],
)
def test_effort_is_a_level_or_a_budget(model: str, effort: str, config: Json | None, note: str):
    fields: Json = {"model": model, "sampling": Sampling(effort=effort)}
    assert posted(USER, **fields).get("generationConfig", {}).get("thinkingConfig") == config
    assert noted(USER, **fields) == ([(note, "reasoning_effort")] if note else [])


@pytest.mark.parametrize(
    ("model", "fields", "is_sent"),
    [
        ("gemini-3-pro", {}, True),
        ("gemini-2.5-pro", {}, True),
        ("gemini-3-pro", {"tools": (Tool("f"),)}, True),
        ("gemini-2.5-pro", {"tools": (Tool("f"),)}, False),
        ("gemini-3-pro", {"tools": (Tool("f"),), "tool_choice": ToolChoice("required")}, False),
    ],
)
def test_structured_output_is_asked_for_where_it_is_accepted(model: str, fields: Json, is_sent: bool):
    format = OutputFormat(msgspec.Raw(b'{"type":"object"}'))
    config = posted(USER, model=model, output_format=format, **fields).get("generationConfig")
    assert config == (
        {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}} if is_sent else None
    )
    dropped = [] if is_sent else [("field_dropped", "response_format")]
    assert noted(USER, model=model, output_format=format, **fields) == dropped
    any_json = posted(USER, output_format=OutputFormat())["generationConfig"]
    assert any_json == {"responseMimeType": "application/json"}


def test_what_has_no_place_is_noted():
    fields: Json = {
        "tools": (Tool("f", strict=True),),
        "parallel_calls": False,
        "sampling": Sampling(verbosity="low", service_tier="flex"),
        "caller": Caller(metadata=msgspec.Raw(b"{}")),
    }
    other = OtherEntry("mcp_list_tools", msgspec.Raw(b"{}"))
    declared = ToolsEntry(msgspec.Raw(b"[]"), msgspec.Raw(b"{}"))
    assert sorted(noted(USER, other, declared, **fields)) == [
        ("field_dropped", "f.strict"),
        ("field_dropped", "metadata"),
        ("field_dropped", "parallel_tool_calls"),
        ("field_dropped", "service_tier"),
        ("field_dropped", "verbosity"),
        ("item_dropped", "mcp_list_tools"),
    ]


def test_fields_that_a_server_refuses_are_left_out():
    profile = profile_from({"refuses": ["systemInstruction", "generationConfig.seed", "labels"]})
    extra = {"seed": msgspec.Raw(b"1"), "top_k": msgspec.Raw(b"3")}
    body = posted(USER, instructions="Be.", extra=extra, profile=profile)
    assert (body["generationConfig"], "systemInstruction" in body) == ({"topK": 3}, False)
    refused = [("field_dropped", "systemInstruction"), ("field_dropped", "generationConfig.seed")]
    assert noted(USER, instructions="Be.", extra=extra, profile=profile) == refused


# Asking: a client of the same dialect


def same(body: Json, *entries: Entry, **fields: Any) -> Request:
    """A request as the dialect decodes it."""
    raws = {name: msgspec.Raw(json.dumps(each).encode()) for name, each in body.items()}
    return Request(
        "gemini-3-pro",
        entries,
        dialect="gemini",
        history_field="contents",
        fields=raws,
        original_entries=entries,
        **fields,
    )


def body_of(request: Request, profile: Profile = GOOGLE) -> Json:
    return json.loads(Conversation(request, "S", profile).start().body)


def test_the_fields_of_a_client_of_the_same_dialect_survive():
    body = {
        "contents": [{"parts": [{"text": "Go.", "videoMetadata": {"fps": 1}}]}],
        "tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f", "response": {"type": "OBJECT"}}]}],
        "cachedContent": "cachedContents/1",
        "generationConfig": {"speechConfig": {}},
        "somethingNew": 1,
    }
    hosted = (HostedTool("googleSearch", msgspec.Raw(b'{"googleSearch":{}}')),)
    request = same(body, Message("user", (TextPart("Go."),), message=0), tools=(Tool("f"),), hosted_tools=hosted)
    assert body_of(request) == body


def test_one_content_that_must_change_does_not_change_its_neighbours():
    body = {
        "contents": [
            {"parts": [{"text": "Go.", "videoMetadata": {"fps": 1}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f"}}, {"executableCode": {"code": "1"}}]},
            {"role": "user", "parts": [{"text": "And?", "x": 1}]},
        ]
    }
    first = Message("user", (TextPart("Go."),), message=0)
    called = CallEntry("a", "f", "{}", message=1)
    code = OtherEntry("executableCode", msgspec.Raw(b'{"executableCode":{"code":"1"}}'), message=1)
    last = Message("user", (TextPart("And?"),), message=2)
    request = same(body, first, called, code, last)
    added = ResultEntry("a", (TextPart("none"),))
    signed = msgspec.structs.replace(called, signature=wrap_thought_signature(SIGNED))
    changed = msgspec.structs.replace(request, entries=(first, signed, code, added, last))
    assert body_of(changed)["contents"] == [
        body["contents"][0],
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "a", "name": "f", "args": {}}, "thoughtSignature": SIGNED},
                {"executableCode": {"code": "1"}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "a", "name": "f", "response": {"output": "none"}}}]},
        body["contents"][2],
    ]


def test_unchanged_parts_of_a_content_that_changes_stay_as_they_are():
    parts = [
        {"text": "So.", "partMetadata": {"a": 1}},
        {"functionCall": {"name": "f"}, "thoughtSignature": SIGNED},
        {"functionCall": {"name": "g", "args": {}}},
    ]
    body = {"contents": [ASKED, {"role": "model", "parts": parts}]}
    raws = [msgspec.Raw(json.dumps(part).encode()) for part in parts]
    first = Message("user", (TextPart("Go."),), message=0)
    text = Message("assistant", (TextPart("So."),), raw=msgspec.Raw(json.dumps(parts[:1]).encode()), message=1)
    one = CallEntry("a", "f", "{}", raw=raws[1], signature=wrap_thought_signature(SIGNED), message=1)
    two = CallEntry("b", "g", "{}", raw=raws[2], message=1)
    request = same(body, first, text, one, two)
    changed = msgspec.structs.replace(two, arguments='{"x":1}')
    sent = body_of(msgspec.structs.replace(request, entries=(first, text, one, changed)))
    assert sent["contents"][1]["parts"] == [*parts[:2], {"functionCall": {"id": "b", "name": "g", "args": {"x": 1}}}]


@pytest.mark.parametrize(("model", "sign"), [("gemini-3-pro", UNKNOWN_THOUGHT_SIGNATURE), ("gemini-2.5-pro", None)])
def test_a_client_of_the_same_dialect_that_drops_signatures_gets_the_unknown_one(model: str, sign: str | None):
    word = "context_engineering_is_the_way_to_go"
    contents = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f"}}, {"functionCall": {"name": "g"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"output": "1"}}} for name in "fg"]},
        {"role": "model", "parts": [{"functionCall": {"name": "f"}, "thoughtSignature": word}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "1"}}}]},
    ]
    request = gemini.decode_request(json.dumps({"model": model, "contents": contents}).encode())
    sent = body_of(msgspec.structs.replace(request, model=model))["contents"]
    assert [part.get("thoughtSignature") for part in sent[1]["parts"]] == [sign, None]
    assert [sent[0], *sent[2:]] == [contents[0], *contents[2:]]
    assert all("id" not in part["functionCall"] for part in sent[1]["parts"])


def test_signatures_of_another_server_do_not_reach_the_service():
    package = pack_carried(Carried("toolu_1", "", (PackedSignature("messages", "", ("Hm.",), "SEAL"),)))
    contents = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": package}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "1"}}}]},
    ]
    request = gemini.decode_request(json.dumps({"model": "gemini-3-pro", "contents": contents}).encode())
    call = {"functionCall": {"id": "toolu_1", "name": "f", "args": {}}, "thoughtSignature": UNKNOWN_THOUGHT_SIGNATURE}
    sent = body_of(msgspec.structs.replace(request, model="gemini-3-pro"))["contents"]
    assert sent[1]["parts"] == [call]


@pytest.mark.parametrize("dialect", ["", "gemini"])
def test_refused_signatures_are_all_replaced(dialect: str):
    part = {"functionCall": {"name": "f"}, "thoughtSignature": SIGNED}
    text = ReasoningEntry(signature=SIGNED, origin="gemini", redacted=True, message=1)
    called = CallEntry(
        "a", "f", "{}", raw=msgspec.Raw(json.dumps(part).encode()), signature=wrap_thought_signature(SIGNED), message=1
    )
    request = same(
        {"contents": [ASKED, {"role": "model", "parts": [part]}]},
        Message("user", (TextPart("Go."),), message=0),
        text,
        called,
    )
    sent = json.dumps(body_of(msgspec.structs.replace(request, dialect=dialect, without=("reasoning",))))
    assert (sent.count(UNKNOWN_THOUGHT_SIGNATURE), sent.count(SIGNED)) == (1, 0)


def test_tools_that_changed_are_declared_anew():
    body = {"contents": [ASKED], "tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f"}]}]}
    hosted = (HostedTool("googleSearch", msgspec.Raw(b'{"googleSearch":{}}')),)
    entry = Message("user", (TextPart("Go."),), message=0)
    more = same(body, entry, tools=(Tool("f"), Tool("g")), hosted_tools=hosted, tools_changed=True)
    declared = [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    assert body_of(more)["tools"] == declared
    renamed = same(body, entry, tools=(Tool("a b"),), hosted_tools=hosted)
    assert body_of(renamed)["tools"][1]["functionDeclarations"][0]["name"].startswith("a_b_")


# The list of models, and counting


def test_the_list_of_models_is_read():
    listed = {
        "models": [
            {"name": "models/gemini-3-pro", "inputTokenLimit": 1048576, "displayName": "x"},
            {"name": "tunedModels/a"},
        ]
    }
    assert json.loads(convert_models(json.dumps(listed).encode())) == {
        "data": [{"id": "gemini-3-pro", "context_length": 1048576}, {"id": "tunedModels/a", "context_length": 0}]
    }
    for other in (b"<html>", b'{"data":[{"id":"a"}]}'):
        assert convert_models(other) == other


def test_tokens_are_counted_with_all_that_is_sent():
    request = Request("models/gemini-3-pro", (USER,), instructions="Be.", tools=(Tool("f"),), stream=True)
    post = count_tokens(request, GOOGLE)
    body = json.loads(post.body)["generateContentRequest"]
    assert post.path == "/models/gemini-3-pro:countTokens"
    assert (body.pop("model"), [*body]) == ("models/gemini-3-pro", ["contents", "systemInstruction", "tools"])
    on_vertex = json.loads(count_tokens(request, profile_from({"vertex": True})).body)
    assert on_vertex == body
    assert read_count(b'{"totalTokens": 12, "promptTokensDetails": []}') == 12


def test_notes_about_the_request_come_with_the_turn():
    conversation = Conversation(Request("m", (), stream=True, parallel_calls=False, tools=(Tool("f"),)), "S")
    conversation.start()
    line = Pipeline(FrameReader(), conversation)
    reply = b"data: " + json.dumps(chunk(text("a"), finish="STOP")).encode() + b"\n\n"
    events = [*line.feed(reply), *line.end()]
    assert Note("field_dropped", "parallel_tool_calls") in events
