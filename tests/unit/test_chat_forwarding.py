"""A Chat client and a Chat server: what we do not know survives, and what leaves is lawful all the same."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.museum.clients import read_frames
from tests.support.backend_writers import frame
from tests.support.checked import chat_faults
from tests.unit.test_batches import RULES, ask, carried_ways
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.chat import Conversation
from toolwire.core.collect import collect
from toolwire.core.request import Request
from toolwire.dialects import chat

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"
THEIRS: Json = {"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m-2026"}
OURS: Json = {"id": "id_7", "object": "chat.completion.chunk", "created": 7, "model": "m"}
WITH_USAGE: Json = {"stream_options": {"include_usage": True}}


def tools(*names: str) -> list[Json]:
    return [{"type": "function", "function": {"name": name}} for name in names]


TOOLS = tools("f", "g")


# What a server sends


def chunk(delta: Json | None = None, finish: str | None = None, choice: Json | None = None, **top: Any) -> bytes:
    first = {"index": 0, "delta": delta or {}, "finish_reason": finish, **(choice or {})}
    return frame("", {**THEIRS, "choices": [first], **top})


def text(words: str, **more: Any) -> bytes:
    return chunk({"content": words}, **more)


def started(id: str, name: str, index: int = 0, **more: Any) -> Json:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}, **more}


def growing(arguments: str, index: int = 0, **more: Any) -> Json:
    return {"index": index, "function": {"arguments": arguments}, **more}


def calling(*parts: Json, **more: Any) -> bytes:
    return chunk({"tool_calls": [*parts]}, **more)


def call(id: str, name: str, /, *arguments: str, index: int = 0, **repeated: Any) -> bytes:
    """A call, its arguments in pieces, and what is repeated with each of them."""
    grown = (calling(growing(each, index, **repeated)) for each in arguments)
    return b"".join((calling(started(id, name, index)), *grown))


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
CALLED = chunk(finish="tool_calls")
SPOKEN = b"".join(text(each) for each in ("Hel", "lo, ", "wor", "ld"))
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 4,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 1, "x_detail": 3},
    "completion_tokens_details": {"reasoning_tokens": 1, "accepted_prediction_tokens": 2},
    "x_count": 6,
    "prompt_cache_miss_tokens": 3,
}


# What a client gets


class Stream:
    """A chat stream in a client's hand."""

    def __init__(self, data: bytes, *, usage: bool) -> None:
        self.frames = read_frames(data)
        self.chunks: list[Json] = [value for kind, value in self.frames if kind == "data" and value != "[DONE]"]
        self._usage = usage

    @property
    def faults(self) -> list[str]:
        """Which rules of the protocol the first choice breaks."""
        own = [
            (kind, _first_alone(value) if kind == "data" and value != "[DONE]" else value)
            for kind, value in self.frames
        ]
        kept = [each for each in own if each[1] is not None]
        return chat_faults(kept, usage=self._usage)

    def choices(self, number: int = 0) -> list[Json]:
        return [choice for each in self.chunks for choice in each.get("choices", ()) if choice["index"] == number]

    def deltas(self, number: int = 0) -> list[Json]:
        return [choice["delta"] for choice in self.choices(number)]

    def said(self, field: str, number: int = 0) -> str:
        return "".join(delta.get(field) or "" for delta in self.deltas(number))

    def all(self, field: str, number: int = 0) -> list[Any]:
        """All that a field of deltas says, in order."""
        return [delta[field] for delta in self.deltas(number) if delta.get(field) is not None]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call, put together as official clients do: strings are joined, by index."""
        out: dict[int, list[str]] = {}
        for part in (part for delta in self.deltas() for part in delta.get("tool_calls") or ()):
            known = out.setdefault(part["index"], ["", "", ""])
            function: Json = part.get("function") or {}
            known[0] += part.get("id") or ""
            known[1] += function.get("name") or ""
            known[2] += function.get("arguments") or ""
        return [(known[0], known[1], known[2]) for _, known in sorted(out.items())]

    @property
    def finishes(self) -> list[str]:
        return [choice["finish_reason"] for choice in self.choices() if choice["finish_reason"] is not None]

    @property
    def sum(self) -> object:
        """What all of it adds up to."""
        words = [
            self.said(field, number) for number in range(3) for field in ("content", "reasoning_content", "refusal")
        ]
        return words, self.calls, self.finishes, self.faults, [each.get("usage") for each in self.chunks[-1:]]

    @property
    def usage(self) -> Json:
        return self.chunks[-1]["usage"]


def _first_alone(value: Json) -> Json | None:
    """A chunk without the choices after the first; none if it has no others."""
    if not value.get("choices"):
        return value
    first = [choice for choice in value["choices"] if choice["index"] == 0]
    return {**value, "choices": first} if first else None


def through(*chunks: bytes, request: Request | None = None, rules: ToolRules = RULES) -> Stream:
    """The client's stream, which adds up to the same in runs and one by one, at any chunking."""
    request = request or ask("chat", tools=TOOLS)
    data = b"".join((*chunks, DONE))
    first, *others = (
        Stream(each, usage=request.include_usage) for each in carried_ways(data, request, "chat", "chat", rules)
    )
    for other in others:
        assert other.sum == first.sum
    return first


def plain(body: Json, request: Request | None = None, rules: ToolRules = RULES) -> Json:
    """The plain answer."""
    request = request or ask("chat", tools=TOOLS, stream=False)
    conversation = Conversation(request, "S")
    conversation.start()
    assembly = assemble_policies(request, rules, "S", conversation.stand_in)
    events = conversation.feed_plain(json.dumps(body).encode())
    passed = [out for event in events for out in assembly.policies.feed(event)]
    return json.loads(chat.encode_turn(collect(passed), request, "id_7", 7))


def completion(
    message: Json | None = None, choice: Json | None = None, others: Iterable[Json] = (), **top: Any
) -> Json:
    told = {"role": "assistant", "content": "Hello", "refusal": None, **(message or {})}
    first = {"index": 0, "message": told, "finish_reason": "stop", **(choice or {})}
    return {
        "id": "up",
        "object": "chat.completion",
        "created": 1,
        "model": "m-2026",
        "choices": [first, *others],
        **top,
    }


# Ours on every chunk


def test_every_chunk_has_our_id_time_and_model():
    told = through(ROLE, SPOKEN, call("call_1", "f", '{"x"', ":", "1}"), CALLED)
    assert told.faults == []
    assert [{key: each[key] for key in OURS} for each in told.chunks] == [OURS] * len(told.chunks)


@pytest.mark.parametrize(
    "order",
    [("choices", *THEIRS), (*THEIRS, "choices"), ("model", "choices", "id", "created", "object"), ("choices",)],
    ids=["choices-first", "choices-last", "choices-between", "nothing-else"],
)
def test_ours_come_through_wherever_theirs_stand(order: tuple[str, ...]):
    def ordered(delta: Json, finish: str | None = None) -> bytes:
        whole = {**THEIRS, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        return frame("", {key: whole[key] for key in order})

    said = [ordered({"content": each}) for each in ("Hel", "lo, ", "wor", "ld")]
    told = through(ordered({"role": "assistant", "content": ""}), *said, ordered({}, "stop"))
    assert told.faults == []
    assert told.said("content") == "Hello, world"
    assert [{key: each[key] for key in OURS} for each in told.chunks] == [OURS] * len(told.chunks)


def test_a_time_that_changes_with_every_chunk_is_still_ours():
    told = through(ROLE, *(text(each, created=number) for number, each in enumerate("abcdef")), STOP)
    assert {each["created"] for each in told.chunks} == {7}
    assert told.said("content") == "abcdef"


def test_text_goes_out_in_the_pieces_it_came_in():
    assert through(ROLE, SPOKEN, STOP).all("content") == ["Hel", "lo, ", "wor", "ld"]


# What we have no word for


@pytest.mark.parametrize("field", ["system_fingerprint", "service_tier", "x_unknown", "provider"])
def test_a_field_of_every_chunk_is_in_every_chunk(field: str):
    more: Json = {field: {"a": [1]}}
    told = through(
        chunk({"role": "assistant"}, **more), *(text(each, **more) for each in "abcd"), chunk(finish="stop", **more)
    )
    assert told.faults == []
    assert [each.get(field) for each in told.chunks] == [{"a": [1]}] * len(told.chunks)


@pytest.mark.parametrize("field", ["logprobs", "content_filter_results", "x_choice"])
def test_a_field_of_a_choice_stays_with_its_text(field: str):
    said = [text(each, choice={field: {"n": number}}) for number, each in enumerate("abcd")]
    told = through(ROLE, *said, STOP)
    assert told.faults == []
    assert [(each["delta"]["content"], each[field]["n"]) for each in told.choices() if field in each] == [*zip("abcd", range(4), strict=True)]  # fmt: skip


@pytest.mark.parametrize("field", ["stop_reason", "logprobs", "x_choice", "native_finish_reason"])
def test_a_field_of_the_last_choice_is_at_the_finish(field: str):
    told = through(ROLE, SPOKEN, chunk(finish="stop", choice={field: "END"}))
    [last] = [each for each in told.choices() if each["finish_reason"] is not None]
    assert (last["finish_reason"], last[field]) == ("stop", "END")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("annotations", [{"type": "url_citation", "url_citation": {"url": "https://x"}}]),
        ("audio", {"id": "audio_1", "data": "QUJD"}),
        ("reasoning_details", [{"type": "reasoning.encrypted", "data": "E", "index": 0}]),
        ("x_unknown", {"a": None}),
    ],
)
def test_a_field_of_a_delta_survives(field: str, value: Any):
    alone = through(ROLE, SPOKEN, chunk({field: value}), STOP)
    assert alone.faults == []
    assert alone.all(field) == [value]
    beside = through(ROLE, SPOKEN, chunk({"content": "!", field: value}), STOP)
    assert beside.faults == []
    assert (beside.all(field), beside.said("content")) == ([value], "Hello, world!")


def test_thoughts_and_their_details_survive_together():
    said = [
        chunk({"content": "", "reasoning_content": each, "reasoning_details": [{"text": each}]}) for each in ("Hm", ", ", "so")
    ]  # fmt: skip
    told = through(ROLE, *said, SPOKEN, STOP)
    assert told.faults == []
    assert (told.said("reasoning_content"), told.said("content")) == ("Hm, so", "Hello, world")
    assert told.all("reasoning_details") == [[{"text": each}] for each in ("Hm", ", ", "so")]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_keep_the_name_that_their_server_gives_them(field: str):
    told = through(ROLE, *(chunk({field: each}) for each in ("Hm", ", ", "so")), SPOKEN, STOP)
    assert told.faults == []
    assert told.said(field) == "Hm, so"
    assert {name for delta in told.deltas() for name in delta if name in ("reasoning", "reasoning_content")} == {field}


@pytest.mark.parametrize(
    "parts",
    [
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}, "arguments": '{"x":1}'}],
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        [{**started("call_1", "f"), "arguments": '{"x"'}, {"index": 0, "arguments": ":1}"}],
    ],
)
def test_a_call_in_another_shape_leaves_in_ours(parts: list[Json]):
    told = through(ROLE, *(calling(part, x_top=1) for part in parts), CALLED)
    assert told.calls == [("call_1", "f", '{"x":1}')]
    assert told.faults == []
    assert all(set(part) <= {"index", "id", "type", "function"} for delta in told.all("tool_calls") for part in delta)


@pytest.mark.parametrize("choices", [5, {"a": 1}, [7], [{"delta": 7}], [{"index": "x", "delta": {}}], [{"delta": [1]}]])
def test_a_chunk_that_is_none_breaks_no_stream(choices: Any):
    told = through(ROLE, text("a"), frame("", {**THEIRS, "choices": choices}), text("b"), STOP)
    assert (told.said("content"), told.faults) == ("ab", [])


def test_a_field_of_a_call_survives():
    told = through(
        ROLE, calling(started("call_1", "f")), *(calling(growing(each, x_call=1)) for each in ('{"x"', ":1}")), CALLED
    )
    assert told.calls == [("call_1", "f", '{"x":1}')]
    assert [part.get("x_call") for delta in told.all("tool_calls")[1:] for part in delta] == [1, 1]


def test_usage_keeps_what_we_do_not_count():
    told = through(
        ROLE, SPOKEN, STOP, frame("", {**THEIRS, "choices": [], "usage": USAGE}), request=ask("chat", **WITH_USAGE)
    )
    assert told.usage == USAGE


def test_usage_inside_the_last_choice_of_a_server_counts():
    told = through(ROLE, SPOKEN, chunk(finish="stop", usage=USAGE), request=ask("chat", **WITH_USAGE))
    assert told.usage == USAGE


# First chunks


@pytest.mark.parametrize(
    "first",
    [
        chunk({"role": "assistant", "content": "Hel"}),
        chunk({"content": "Hel", "role": "assistant"}),
        chunk({"content": "Hel"}),
        chunk({"role": "assistant", "content": "Hel", "refusal": None, "tool_calls": None}),
    ],
    ids=["role-and-text", "text-and-role", "text", "and-nulls"],
)
def test_text_in_the_first_chunk_comes_behind_the_role(first: bytes):
    told = through(first, text("lo"), STOP)
    assert told.faults == []
    assert told.said("content") == "Hello"


@pytest.mark.parametrize(
    "first",
    [
        chunk({"role": "assistant", "content": ""}, choice={"content_filter_results": {}}),
        chunk({"role": "assistant", "content": "", "x_unknown": 1}),
        chunk({"role": "assistant", "content": "Hi"}, choice={"logprobs": {"content": []}}),
    ],
    ids=["azure", "a-field", "logprobs"],
)
def test_the_role_comes_first_whatever_the_first_chunk_says(first: bytes):
    assert through(first, SPOKEN, STOP).faults == []


def test_filter_results_of_the_prompt_survive():
    """Azure's first chunk has no choices."""
    first = frame("", {**THEIRS, "id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    told = through(first, ROLE, SPOKEN, STOP)
    assert told.faults == []
    assert [{"prompt_index": 0}] in [each.get("prompt_filter_results") for each in told.chunks]


# What servers repeat


def test_a_role_in_every_chunk_leaves_once():
    told = through(*(chunk({"role": "assistant", "content": each}) for each in ("", "Hel", "lo, ", "world")), STOP)
    assert told.faults == []
    assert told.said("content") == "Hello, world"


def test_a_role_behind_the_text_leaves_once():
    told = through(*(chunk({"content": each, "role": "assistant"}) for each in ("", "Hel", "lo, ", "world")), STOP)
    assert told.faults == []


def repeating(arguments: str, **function: Any) -> Json:
    """A fragment that says everything again, in the order of OpenAI's own openings."""
    return {"index": 0, "id": "call_1", "type": "function", "function": {**function, "arguments": arguments}}


@pytest.mark.parametrize("function", [{}, {"name": None}, {"name": ""}], ids=["no-name", "null", "empty"])
def test_ids_and_types_repeated_with_arguments_leave_once(function: Json):
    grown = [calling(repeating(each, **function)) for each in ('{"x"', ":", "1", "}")]
    told = through(ROLE, calling(started("call_1", "f")), *grown, CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}')]


def test_a_name_repeated_with_arguments_leaves_once():
    grown = [calling(repeating(each, name="f")) for each in ('{"x"', ":", "1", "}")]
    told = through(ROLE, calling(started("call_1", "f")), *grown, CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}')]


def test_ids_and_types_behind_the_arguments_leave_once():
    told = through(ROLE, call("call_1", "f", '{"x"', ":", "1", "}", id="call_1", type="function"), CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}')]


def test_a_null_name_behind_the_arguments_leaves_never():
    grown = [calling({"index": 0, "function": {"arguments": each, "name": None}}) for each in ('{"x"', ":1}")]
    assert through(ROLE, calling(started("call_1", "f")), *grown, CALLED).faults == []


# Calls


def test_indexes_are_dense_whatever_the_server_counts():
    told = through(
        ROLE, call("call_1", "f", '{"x"', ":", "1}", index=3), call("call_2", "g", '{"y"', ":", "2}", index=7), CALLED
    )
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}'), ("call_2", "g", '{"y":2}')]


def test_calls_without_an_index_have_one():
    def bare(part: Json) -> bytes:
        return calling({key: value for key, value in part.items() if key != "index"})

    told = through(ROLE, bare(started("call_1", "f")), *(bare(growing(each)) for each in ('{"x"', ":", "1}")), CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}')]


TWICE_ZERO = call("call_1", "f", '{"x"', ":", "1", "}"), call("call_2", "g", '{"y"', ":", "2", "}")


def test_two_calls_under_one_index_stay_two():
    told = through(ROLE, *TWICE_ZERO, CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}'), ("call_2", "g", '{"y":2}')]


def test_whole_calls_under_one_index_stay_two():
    whole = [{**started(f"call_{name}", name), "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    told = through(ROLE, *map(calling, whole), CALLED)
    assert told.faults == []
    assert told.calls == [("call_f", "f", "{}"), ("call_g", "g", "{}")]


def test_two_calls_in_one_chunk_stay_two():
    whole = [
        {**started(f"call_{name}", name, index), "function": {"name": name, "arguments": "{}"}}
        for index, name in enumerate("fg")
    ]
    told = through(ROLE, calling(*whole), CALLED)
    assert told.faults == []
    assert told.calls == [("call_f", "f", "{}"), ("call_g", "g", "{}")]


OPENED = calling(started("call_1", "f")), calling(started("call_2", "g", 1))


def test_calls_that_interleave_are_put_in_a_row():
    parts = [growing('{"x"'), growing('{"y"', 1), growing(":1}"), growing(":2}", 1)]
    told = through(ROLE, *OPENED, *map(calling, parts), CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}'), ("call_2", "g", '{"y":2}')]


def test_fragments_of_two_calls_in_one_chunk_come_once():
    both = calling(growing('{"x"'), growing('{"y"', 1)), calling(growing(":1}"), growing(":2}", 1))
    told = through(ROLE, *OPENED, *both, CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}'), ("call_2", "g", '{"y":2}')]


def test_text_inside_a_call_comes_once():
    inside = chunk({"content": "Hey", "tool_calls": [growing('{"x"')]})
    told = through(ROLE, OPENED[0], inside, calling(growing(":1}")), CALLED)
    assert (told.said("content"), told.calls) == ("Hey", [("call_1", "f", '{"x":1}')])


def test_half_a_call_beside_a_text_comes_once():
    half = chunk(
        {
            "content": "Hey",
            "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"arguments": ""}}],
        }
    )
    rest = calling({"index": 0, "function": {"name": "f", "arguments": "{}"}})
    told = through(ROLE, half, rest, CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", "{}")]


def test_arguments_that_are_no_string_become_one():
    whole = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    told = through(ROLE, calling(whole), CALLED)
    assert told.faults == []
    assert told.calls == [("call_1", "f", '{"x":1}')]


# Usage


@pytest.mark.parametrize(
    "said", [[text(each, usage=None) for each in "abcd"], [text(each, x=1, usage=None) for each in "abcd"]]
)
def test_usage_is_not_told_unless_asked(said: list[bytes]):
    told = through(chunk({"role": "assistant"}, usage=None), *said, chunk(finish="stop", usage=None))
    assert told.faults == []


def test_usage_before_other_fields_is_not_told_unless_asked():
    assert through(ROLE, *(text(each, usage=None, x=1) for each in "abcd"), STOP).faults == []


def test_usage_is_told_when_asked():
    counted = [text(each, usage=None) for each in "abcd"]
    last = frame("", {**THEIRS, "choices": [], "usage": USAGE})
    told = through(ROLE, *counted, STOP, last, request=ask("chat", **WITH_USAGE))
    assert told.faults == []


def test_every_chunk_says_usage_when_asked():
    last = frame("", {**THEIRS, "choices": [], "usage": USAGE})
    assert through(ROLE, SPOKEN, STOP, last, request=ask("chat", **WITH_USAGE)).faults == []


def test_running_totals_of_usage_are_told_once():
    counted = [text(each, usage={**USAGE, "completion_tokens": number}) for number, each in enumerate("abcd")]
    told = through(
        ROLE, *counted, STOP, frame("", {**THEIRS, "choices": [], "usage": USAGE}), request=ask("chat", **WITH_USAGE)
    )
    assert (told.faults, told.usage) == ([], USAGE)


# The finish


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_there_is_one_finish(finish: str):
    assert through(ROLE, SPOKEN, chunk(finish=finish)).finishes == [finish]


def test_a_finish_in_every_chunk_leaves_once():
    told = through(ROLE, *(text(each, finish="stop") for each in "abcd"), STOP)
    assert (told.faults, told.said("content"), told.finishes) == ([], "abcd", ["stop"])


def test_an_empty_finish_is_none():
    said = [text(each, finish="", choice={"logprobs": {"n": number}}) for number, each in enumerate("abc")]
    told = through(ROLE, *said, STOP)
    assert [each["logprobs"]["n"] for each in told.choices() if "logprobs" in each] == [0, 1, 2]


# Several choices


def other(delta: Json, number: int = 1, finish: str | None = None) -> Json:
    return {"index": number, "delta": delta, "finish_reason": finish, "x_choice": number}


def test_other_choices_pass_as_they_came():
    request = ask("chat", n=3)
    others = [
        other({"role": "assistant", "content": ""}),
        *(other({"content": each}) for each in "xyz"),
        other({}, 1, "length"),
    ]
    told = through(
        ROLE,
        text("a"),
        *(frame("", {**THEIRS, "choices": [each]}) for each in others),
        text("b"),
        STOP,
        request=request,
    )
    assert told.faults == []
    assert told.said("content") == "ab"
    assert (told.said("content", 1), told.choices(1)[-1]["finish_reason"]) == ("xyz", "length")
    assert all(each["x_choice"] == 1 for each in told.choices(1))


def test_choices_in_one_chunk_pass_with_each_other():
    request = ask("chat", n=2)
    both = [
        frame("", {**THEIRS, "choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}, other({"content": each.upper()})]})
        for each in "abc"
    ]  # fmt: skip
    told = through(ROLE, *both, STOP, request=request)
    assert (told.said("content"), told.said("content", 1)) == ("abc", "ABC")
    assert told.faults == []


def test_other_choices_of_a_plain_answer_pass_as_they_came():
    others = [
        {
            "index": number,
            "message": {"role": "assistant", "content": "x", "x": 1},
            "finish_reason": "length",
            "logprobs": None,
        }
        for number in (1, 2)
    ]
    assert plain(completion(others=others), ask("chat", n=3, stream=False))["choices"][1:] == others


# Rules


RULED: dict[str, tuple[ToolRules, str, list[str]]] = {
    "one call at most": (ToolRules(max_calls=1), "Hello, worldtail", ["f"]),
    "no text after calls": (ToolRules(suppress_tail=True), "Hello, world", ["f", "g"]),
    "one call and no more": (ToolRules(stop_after=True, stop_after_mode="first"), "Hello, world", ["f"]),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "said", "names"), RULED.values(), ids=[name.replace(" ", "-") for name in RULED])
def test_rules_hold_for_chunks_that_are_forwarded(rules: ToolRules, said: str, names: list[str]):
    calls = call("call_1", "f", '{"x"', ":", "1}"), call("call_2", "g", '{"y"', ":", "2}", index=1)
    told = through(ROLE, SPOKEN, *calls, text("ta"), text("il"), CALLED, rules=rules)
    assert told.faults == []
    assert told.said("content") == said
    assert [name for _, name, _ in told.calls] == names
    assert told.finishes == ["tool_calls"]


def test_calls_are_in_the_text_too_where_that_is_asked_for():
    told = through(
        ROLE, SPOKEN, call("call_1", "f", '{"x"', ":", "1}"), CALLED, rules=ToolRules(output_mode="obsidian-xml")
    )
    assert told.faults == []
    assert (told.calls, told.finishes) == ([("call_1", "f", '{"x":1}')], ["tool_calls"])
    assert told.said("content").startswith("Hello, world")
    assert "<use_tool>" in told.said("content")


def test_a_call_in_the_text_becomes_one():
    said = [text(each) for each in ("Let me. ", "<tool_", 'call>{"name":"f",', '"arguments":{"x":1}}', "</tool_call>")]
    told = through(ROLE, *said, STOP)
    assert told.faults == []
    assert [(name, arguments) for _, name, arguments in told.calls] == [("f", '{"x":1}')]
    assert (told.said("content").strip(), told.finishes) == ("Let me.", ["tool_calls"])


def test_legacy_functions_stay_legacy():
    request = ask("chat", functions=[{"name": "f", "parameters": {}}])
    told = through(ROLE, call("call_1", "f", '{"x"', ":", "1}"), CALLED, request=request)
    parts = told.all("function_call")
    assert "".join(part["arguments"] for part in parts) == '{"x":1}'
    assert [part["name"] for part in parts if "name" in part] == ["f"]
    assert told.finishes == ["function_call"]


# Plain answers


def test_a_plain_answer_keeps_what_we_do_not_know():
    message: Json = {"annotations": [{"a": 1}], "audio": {"id": "x"}, "reasoning_details": [1], "x_message": {"b": [2]}}
    choice: Json = {"logprobs": {"content": []}, "stop_reason": 7, "content_filter_results": {}}
    top: Json = {"system_fingerprint": "fp", "service_tier": "flex", "x_top": [1]}
    answer = plain(completion(message, choice, **top, usage=USAGE))
    assert {key: answer[key] for key in top} == top
    assert {key: answer["choices"][0][key] for key in choice} == choice
    assert {key: answer["choices"][0]["message"][key] for key in message} == message
    assert answer["usage"] == USAGE


def test_a_plain_answer_is_under_our_name():
    answer = plain(completion())
    assert (answer["id"], answer["object"], answer["created"], answer["model"]) == ("id_7", "chat.completion", 7, "m")


def test_rules_hold_for_a_plain_answer_too():
    calls = [{"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    answer = plain(
        completion({"tool_calls": calls, "x": 1}, {"finish_reason": "tool_calls"}), rules=ToolRules(max_calls=1)
    )
    [choice] = answer["choices"]
    assert (choice["message"]["tool_calls"], choice["message"]["x"], choice["finish_reason"]) == (
        calls[:1],
        1,
        "tool_calls",
    )


# Chunks that are written otherwise


@pytest.mark.parametrize("separators", [(", ", ": "), (" , ", " : ")])
def test_white_space_between_fields_means_nothing(separators: tuple[str, str]):
    def loose(block: bytes) -> bytes:
        return b"data: " + json.dumps(json.loads(block[6:]), separators=separators).encode() + b"\n\n"

    said = [text(each, choice={"logprobs": None}, usage=None) for each in ("Hel", "lo, ", "wor", "ld")]
    blocks = (ROLE, *said, *call("call_1", "f", '{"x"', ":", "1}").split(b"\n\n")[:-1], CALLED)
    told = through(*map(loose, blocks))
    assert told.faults == []
    assert (told.said("content"), told.calls) == ("Hello, world", [("call_1", "f", '{"x":1}')])


def test_data_over_several_lines_leaves_on_one():
    said = [
        text(each).replace(b'"choices"', b'\ndata: "choices"').replace(b'"finish', b'\ndata: "finish') for each in "ab"
    ]
    assert through(ROLE, *said, STOP).said("content") == "ab"


def test_choices_inside_another_field_are_not_the_chunk_s():
    said = [
        frame(
            "",
            {
                **THEIRS,
                "x": {"choices": 1},
                "choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}],
            },
        )
        for each in "ab"
    ]
    assert through(ROLE, *said, STOP).said("content") == "ab"


def test_text_that_looks_like_our_own_marks_is_text():
    words = ["@toolwire@", '"@toolwire@"', '"choices":', ',"usage":null}', '"usage":null}', "data: [DONE]"]
    told = through(ROLE, *map(text, words), STOP)
    assert told.faults == []
    assert told.all("content") == words


def test_letters_arrive_as_they_are():
    words = ["é", "😀", '"', "\\", "\n", "\t", "\u2028", "</x>", "\x7f"]
    assert through(ROLE, *map(text, words), STOP, request=ask("chat")).all("content") == words


def test_a_stream_that_fails_says_so_once():
    told = through(ROLE, SPOKEN, frame("", {"error": {"message": "Broken.", "type": "server_error"}}))
    assert [each["error"]["message"] for each in told.chunks if "error" in each] == ["Broken."]
    assert told.finishes == []


# Chunks that are put together when they are read in runs


PUT_TOGETHER: dict[str, tuple[bytes, ...]] = {
    "another choice": tuple(frame("", {**THEIRS, "choices": [other({"content": each})]}) for each in "abcd"),
    "a field we do not know": tuple(chunk({"x": {"content": each}}) for each in "abcd"),
}


@pytest.mark.parametrize("said", PUT_TOGETHER.values(), ids=[name.replace(" ", "-") for name in PUT_TOGETHER])
def test_as_many_chunks_leave_as_came(said: tuple[bytes, ...]):
    data = b"".join((ROLE, *said, STOP, DONE))
    assert len(set(carried_ways(data, ask("chat", n=2), "chat", "chat"))) == 1
