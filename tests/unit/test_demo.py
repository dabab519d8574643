"""The built-in model: deterministic, and sensible about tools."""

import json

import pytest

from tests.support.demo import arguments, asking, calls, converse, function, turn
from toolwire.backends import demo
from toolwire.core.backend import Break, Refuse
from toolwire.core.collect import collect
from toolwire.core.errors import BadRequest
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool, ToolChoice

TEXT = {"type": "string"}
WEATHER = function("get_weather", "The weather in a city", "city", city=TEXT, unit={"enum": ["celsius", "fahrenheit"]})
SEND = function("sendMail", to=TEXT)
READ = function("read", path=TEXT)
ASKED = Message("user", (TextPart("weather?"),))


def test_it_talks_without_tools():
    text = turn(asking("Hello")).text
    assert text.startswith("This is the demo model. You said: Hello\n\n")
    assert "not a language model" in text
    assert "no tools" in text


def test_it_talks_where_no_tool_fits_and_says_what_to_try():
    for prompt in ("Hello there", "hi", "thanks", "Who are you?", "Tell me a joke.", ""):
        result = turn(asking(prompt, tools=[SEND, READ, WEATHER]))
        assert result.calls == ()
        assert "Try “Read README.md”." in result.text


def test_what_it_says_to_try_leads_to_a_call():
    shell = function("exec_command", cmd=TEXT)
    for tools in ([READ], [shell], [SEND, WEATHER], [function("list_directory", path=TEXT)]):
        hint = turn(asking("hi", tools=tools)).text.partition("Try ")[2]
        examples = [part.partition("”")[0] for part in hint.split("“")[1:]]
        assert examples
        assert all(calls(asking(example, tools=tools)) for example in examples)


def test_it_advises_nothing_that_changes_something():
    assert "Try" not in turn(asking("hi", tools=[SEND])).text


def test_it_calls_the_tool_that_fits_and_fills_it_from_the_prompt():
    result = turn(asking("What is the weather in Paris?", tools=[SEND, WEATHER]))
    assert [(call.name, call.arguments) for call in result.calls] == [("get_weather", '{"city":"Paris"}')]
    assert result.reasoning == "The question fits the tool get_weather."


def test_it_makes_two_calls_when_two_things_are_asked_for():
    question = "Weather in Paris and Rome?"
    assert arguments(asking(question, tools=[WEATHER])) == [{"city": "Paris"}, {"city": "Rome"}]
    assert len(arguments(asking(question, tools=[WEATHER], parallel_tool_calls=False))) == 1


def test_it_obeys_the_tool_choice():
    assert turn(asking("weather", tools=[WEATHER], tool_choice="none")).calls == ()
    forced = {"type": "function", "function": {"name": "sendMail"}}
    assert calls(asking("weather", tools=[WEATHER, SEND], tool_choice=forced)) == [("sendMail", {"to": "weather"})]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [SEND]}}
    assert turn(asking("Weather in Rome?", tools=[WEATHER, SEND], tool_choice=allowed)).calls == ()


def test_it_calls_something_where_it_must_and_rather_something_harmless():
    required = {"tools": [SEND, WEATHER], "tool_choice": "required"}
    assert calls(asking("hi", **required)) == [("get_weather", {"city": "hi"})]
    assert calls(asking("Call no tool.", **required)) == [("get_weather", {"city": "Call no tool"})]
    assert calls(asking("hi", tools=[SEND], tool_choice="required")) == [("sendMail", {"to": "hi"})]


def test_a_shell_that_it_must_call_gets_no_words_as_its_command():
    shell = function("shell", command={"type": "array", "items": TEXT})
    assert arguments(asking("rm -rf is dangerous", tools=[shell], tool_choice="required")) == [
        {"command": ["bash", "-lc", "ls"]}
    ]


@pytest.mark.parametrize("model", ["demo", "demo-parallel", "demo-use-tool", "demo-huge"])
def test_it_answers_from_the_results(model: str):
    entries = (
        ASKED,
        CallEntry("a", "get_weather", "{}"),
        CallEntry("b", "get_weather", "{}"),
        ResultEntry("a", (TextPart("12 degrees"),)),
        ResultEntry("b", (TextPart("13 degrees"),)),
    )
    result = turn(Request(model, entries, tools=(Tool("get_weather"),)))
    assert (result.text, result.calls) == ("According to get_weather: 12 degrees 13 degrees", ())


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("no such city", True), ("Error: no such city", False), ("error: x", False), ("failed to parse function arguments: x", False),
        ("Wall time: 0.1\nProcess exited with code 2\nOutput:\nx", False), ("Exit code 1\nx", False),
    ],
)  # fmt: skip
def test_it_says_that_a_tool_failed(text: str, failed: bool):
    entries = (ASKED, CallEntry("a", "get_weather", "{}"), ResultEntry("a", (TextPart(text),), failed=failed))
    assert turn(Request("demo", entries)).text == f"get_weather failed: {text}"


def test_it_tells_the_results_of_several_tools_apart():
    entries = (
        ASKED,
        *(CallEntry(name, name, "{}") for name in "abc"),
        ResultEntry("a", (TextPart("1"),)),
        ResultEntry("b", (TextPart("2"),), failed=True),
        ResultEntry("c", (TextPart("Process exited with code 0"),)),
    )
    expected = "According to a: 1\nb failed: 2\nAccording to c: Process exited with code 0"
    assert turn(Request("demo", entries)).text == expected


def test_it_is_deterministic():
    request = asking("Weather in Oslo?", tools=[WEATHER])
    assert turn(request) == turn(request)
    assert turn(request, "A").calls[0].id != turn(request, "B").calls[0].id


def test_a_tool_without_parameters_gets_an_empty_object():
    assert arguments(asking("Call f", tools=[{"type": "function", "function": {"name": "f"}}])) == [{}]


def test_every_situation_makes_a_legal_turn_or_an_accident():
    for name in demo.SITUATIONS:
        model = f"demo-{name}" if name else "demo"
        steps = converse(asking("go", model, tools=[WEATHER])).start().steps
        first = next(steps)
        if isinstance(first, Refuse):
            assert first.status >= 400
            continue
        assert turn(asking("go", model, tools=[WEATHER])).id == "resp_S"


def test_situations_without_tools_make_up_their_own_call():
    for model, count in (("demo-parallel", 3), ("demo-huge", 1), ("demo-length", 1)):
        assert len(turn(asking("go", model)).calls) == count
    assert "<name>demo_tool</name>" in turn(asking("go", "demo-use-tool")).text


def test_a_situation_calls_the_tool_that_fits_or_a_harmless_one():
    for model in ("demo-parallel", "demo-length", "demo-huge"):
        for prompt, name in (("go", "get_weather"), ("Call sendMail", "sendMail")):
            assert turn(asking(prompt, model, tools=[SEND, WEATHER])).calls[0].name == name
    assert {name for name, _ in calls(asking("go", "demo-parallel", tools=[SEND, WEATHER, READ]))} == {
        "get_weather",
        "read",
    }


def test_parallel_calls_have_different_arguments():
    made = arguments(asking('The weather in "Paris"', "demo-parallel", tools=[WEATHER]))
    assert made[0] == {"city": "Paris"}
    assert len({json.dumps(each) for each in made}) == 3


def test_a_cut_breaks_the_connection():
    assert isinstance(list(converse(asking("go", "demo-cut")).start().steps)[-1], Break)


def test_an_error_is_understood():
    assert converse(asking("go")).read_error(503, {}, b'{"error":{"message":"m"}}').message == "m"


def test_a_plain_body_is_understood():
    events = converse(asking("go")).feed_plain(b'{"status":"completed","output":[]}')
    assert collect(list(events)).reason == "stop"


def test_forced_choice_of_mode_none_is_no_call():
    request = Request("demo", (), tools=(Tool("f"),), tool_choice=ToolChoice("none"))
    assert turn(request).calls == ()


def test_a_situation_that_there_is_not_is_told_with_those_that_there_are():
    with pytest.raises(BadRequest, match="no situation 'odd'; there are demo, ") as refused:
        converse(asking("Hello", "demo-odd"))
    assert refused.value.status == 404


def test_a_custom_tool_gets_what_the_prompt_is_about():
    tools = [{"type": "custom", "custom": {"name": "say"}}, {"type": "custom", "custom": {"name": "apply_patch"}}]
    for prompt, name, text in (
        ('Say "good day".', "say", "good day"),
        ("Apply the patch for Rome", "apply_patch", "Rome"),
        ("Say good day", "say", "good day"),
    ):
        made = [(call.name, call.kind, call.arguments) for call in turn(asking(prompt, tools=tools)).calls]
        assert made == [(name, "custom", text)]
