"""The built-in model: deterministic, and sensible about tools."""

import json

import pytest

from toolwire.backends import demo
from toolwire.core.backend import Break, Refuse
from toolwire.core.collect import collect
from toolwire.core.errors import BadRequest
from toolwire.core.order import TurnOrder
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool, ToolChoice
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.dialects import chat

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}  # fmt: skip
SEND = {
    "type": "function",
    "function": {"name": "sendMail", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}},
}


def asking(text: str, model: str = "demo", **fields) -> Request:
    return chat.decode_request(
        json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **fields}).encode()
    )


def turn(request: Request, seed: str = "S"):
    conversation = demo.Conversation(request, seed)
    line = Pipeline(FrameReader(), conversation, TurnOrder())
    steps = [step for step in conversation.start().steps if isinstance(step, bytes)]
    return collect([event for step in steps for event in line.feed(step)] + list(line.end()))


def arguments(request: Request) -> list[dict]:
    return [json.loads(call.arguments) for call in turn(request).calls]


def test_it_talks_without_tools():
    assert turn(asking("Hello")).text == "This is the demo model. You said: Hello"


def test_it_calls_the_tool_that_fits_and_fills_it_from_the_prompt():
    result = turn(asking("What is the weather in Paris?", tools=[SEND, WEATHER]))
    assert [(call.name, call.arguments) for call in result.calls] == [("get_weather", '{"city":"Paris"}')]
    assert result.reasoning


def test_it_makes_two_calls_when_two_things_are_asked_for():
    question = "Weather in Paris and Rome?"
    assert arguments(asking(question, tools=[WEATHER])) == [{"city": "Paris"}, {"city": "Rome"}]
    assert len(arguments(asking(question, tools=[WEATHER], parallel_tool_calls=False))) == 1


def test_it_obeys_the_tool_choice():
    assert turn(asking("weather", tools=[WEATHER], tool_choice="none")).calls == ()
    forced = {"type": "function", "function": {"name": "sendMail"}}
    assert turn(asking("weather", tools=[WEATHER, SEND], tool_choice=forced)).calls[0].name == "sendMail"


def test_it_answers_from_the_result():
    entries = (
        Message("user", (TextPart("weather?"),)),
        CallEntry("c", "get_weather", "{}"),
        ResultEntry("c", (TextPart("12 degrees"),)),
    )
    assert turn(Request("demo", entries, tools=(Tool("get_weather"),))).text == "According to get_weather: 12 degrees"


@pytest.mark.parametrize("model", ["demo-parallel", "demo-use-tool", "demo-huge"])
def test_a_situation_with_calls_answers_from_their_results_too(model: str):
    entries = (
        Message("user", (TextPart("weather?"),)),
        CallEntry("a", "get_weather", "{}"),
        CallEntry("b", "get_weather", "{}"),
        ResultEntry("a", (TextPart("12 degrees"),)),
        ResultEntry("b", (TextPart("13 degrees"),)),
    )
    result = turn(Request(model, entries, tools=(Tool("get_weather"),)))
    assert (result.text, result.calls) == ("According to get_weather: 12 degrees 13 degrees", ())


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("Read the file /etc/hostname", ["/etc/hostname"]),
        ("Read /etc/hostname and /var/log/x.log.", ["/etc/hostname", "/var/log/x.log"]),
        ("What is in /srv/my-files/?", ["/srv/my-files/"]),
        ("Read the file docs/a.md", ["docs/a.md"]),
        ("Is it and/or?", ["Is it and/or"]),
    ],
)
def test_it_finds_files(prompt: str, found: list[str]):
    read = {
        "type": "function",
        "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}},
    }
    assert arguments(asking(prompt, tools=[read])) == [{"path": path} for path in found]


def test_it_is_deterministic():
    request = asking("Weather in Oslo?", tools=[WEATHER])
    assert turn(request) == turn(request)
    assert turn(request, "A").calls[0].id != turn(request, "B").calls[0].id


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, 42), ({"type": "number"}, 42), ({"type": "boolean"}, True), ({"type": ["null", "string"]}, "about 42"),
        ({"type": "null"}, None), ({"const": "x"}, "x"), ({"enum": ["q", "about"]}, "about"), ({"enum": ["q", "r"]}, "q"),
        ({"anyOf": [{"type": "integer"}]}, 42), ({"type": "array", "items": {"type": "string"}}, ["about 42"]), ({}, "about 42"),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}}, {"a": True}),
    ],
)  # fmt: skip
def test_arguments_fit_the_schema(schema, expected):
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}}
    ]
    assert arguments(asking("about 42", tools=tools)) == [{"x": expected}]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "about 42"), (False, "about 42"), (None, "about 42"), ([], "about 42"), ("string", "about 42"),
        ({"type": 5}, "about 42"), ({"type": [[]]}, "about 42"), ({"type": None}, None), ({"enum": "q"}, "about 42"),
        ({"anyOf": [True]}, "about 42"), ({"anyOf": {}}, "about 42"), ({"type": "array", "items": False}, ["about 42"]),
        ({"type": "object", "properties": [1]}, {}), ({"type": "object", "required": 5}, {}),
        ({"type": "object", "required": [None, "a"], "properties": {"a": None}}, {"a": "about 42"}),
    ],
)  # fmt: skip
def test_a_schema_that_makes_no_sense_is_filled_all_the_same(schema, expected):
    test_arguments_fit_the_schema(schema, expected)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert len(turn(asking("about 42", tools=tools)).calls) == 1


def test_a_number_of_any_length_can_be_asked_about():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert arguments(asking("9" * 5000, tools=tools)) == [{"x": 999999999999999}]


def test_a_tool_without_parameters_gets_an_empty_object():
    assert arguments(asking("go", tools=[{"type": "function", "function": {"name": "f"}}])) == [{}]


def test_every_situation_makes_a_legal_turn_or_an_accident():
    for name in demo.SITUATIONS:
        model = f"demo-{name}" if name else "demo"
        steps = demo.Conversation(asking("go", model, tools=[WEATHER]), "S").start().steps
        first = next(steps)
        if isinstance(first, Refuse):
            assert first.status >= 400
            continue
        assert turn(asking("go", model, tools=[WEATHER])).id == "resp_S"


def test_situations_without_tools_make_up_their_own_call():
    for model, count in (("demo-parallel", 3), ("demo-huge", 1), ("demo-length", 1)):
        assert len(turn(asking("go", model)).calls) == count
    assert "<name>demo_tool</name>" in turn(asking("go", "demo-use-tool")).text


def test_a_cut_breaks_the_connection():
    assert isinstance(list(demo.Conversation(asking("go", "demo-cut"), "S").start().steps)[-1], Break)


def test_an_error_is_understood():
    assert demo.Conversation(asking("go"), "S").refused(503, {}, b'{"error":{"message":"m"}}').message == "m"


def test_a_plain_body_is_understood():
    events = demo.Conversation(asking("go"), "S").feed_plain(b'{"status":"completed","output":[]}')
    assert collect(list(events)).reason == "stop"


def test_forced_choice_of_mode_none_is_no_call():
    request = Request("demo", (), tools=(Tool("f"),), tool_choice=ToolChoice("none"))
    assert turn(request).calls == ()


def test_a_situation_that_there_is_not_is_told_with_those_that_there_are():
    with pytest.raises(BadRequest, match="no situation 'odd'; there are demo, ") as refused:
        demo.Conversation(asking("Hello", "demo-odd"), "S")
    assert refused.value.status == 404


def test_a_custom_tool_gets_the_topic_as_it_is():
    request = asking('Say "good day".', tools=[{"type": "custom", "custom": {"name": "say"}}])
    assert [(call.name, call.kind, call.arguments) for call in turn(request).calls] == [("say", "custom", "good day")]


def test_a_schema_without_an_end_is_filled_so_far():
    deep: dict = {"type": "object", "properties": {}}
    for _ in range(10):
        deep = {"type": "object", "properties": {"in": deep}}
    tool = {"type": "function", "function": {"name": "dig", "parameters": deep}}
    assert arguments(asking("Dig.", tools=[tool])) == [{"in": {"in": {"in": {"in": {}}}}}]
