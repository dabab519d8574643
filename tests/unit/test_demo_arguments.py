"""The arguments of the demo model's calls: which value of the prompt goes where."""

from typing import Any

import pytest

from tests.support.demo import Json, arguments, asking, function
from toolwire.core.request import Message, Request, TextPart
from toolwire.dialects import chat

TEXT = {"type": "string"}


def filled(prompt: str, required: str | None = None, /, **properties: Any) -> list[Json]:
    """The arguments of a tool that must be called."""
    tools = [function("look", "", required, **properties)]
    return arguments(asking(prompt, tools=tools, tool_choice="required"))


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("Read the file /etc/hostname", ["/etc/hostname"]),
        ("Read /etc/hostname and /var/log/x.log.", ["/etc/hostname", "/var/log/x.log"]),
        ("What is in /srv/my-files/?", ["/srv/my-files/"]),
        ("Read the file docs/a.md", ["docs/a.md"]),
        ("Read ./a.tar.gz, ~/b and ../c.", ["./a.tar.gz", "~/b"]),
        ("Read (a.txt), e.g. now", ["a.txt"]),
        ("Read .gitignore!", [".gitignore"]),
        (r"Read C:\Users\me\a.txt", [r"C:\Users\me\a.txt"]),
        ('Read "with space.txt"', ["with space.txt"]),
        ("Is it and/or?", ["Is it and/or"]),
    ],
)
def test_it_finds_files(prompt: str, found: list[str]):
    read = function("read", "", "", path=TEXT)
    request = asking(prompt, tools=[read], tool_choice="required")
    assert arguments(request) == [{"path": path} for path in found if path != "Is it and/or"] or [{}]
    assert filled(prompt, path=TEXT) == [{"path": path} for path in found]


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("The weather in Paris", ["Paris"]), ("The weather in New York?", ["New York"]), ("The weather in Paris and Rome", ["Paris", "Rome"]),
        ("The weather in Paris, France", ["Paris, France"]), ("The weather in Paris, Rome and Oslo", ["Paris", "Rome"]), ("I am in Łódź", ["Łódź"]),
        ('In "Paris" and `Rome`?', ["Rome"]), ('In "Paris" and "Rome"?', ["Paris", "Rome"]), ("Say 'hi there' now", ["hi there"]), ("“Zürich”", ["Zürich"]),
        ("about it", ["about it"]), ("order 1234", ["1234"]), ("```sh\nls -la\n```", ["ls -la"]), ("Don't go", ["Don't go"]), ("", ["demo"]),
    ],
)  # fmt: skip
def test_it_finds_what_the_prompt_is_about(prompt: str, found: list[str]):
    assert filled(prompt, x=TEXT) == [{"x": text} for text in found]


def test_optional_properties_are_left_out():
    optional = {
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer"},
        "deep": {"type": "boolean"},
        "note": TEXT,
    }
    assert filled("The weather in Paris", "city", city=TEXT, **optional) == [{"city": "Paris"}]
    assert filled("Look", "", city=TEXT, **optional) == [{}]


def test_optional_properties_are_given_where_the_prompt_gives_their_value():
    optional = {
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer"},
        "deep": {"type": "boolean"},
        "path": TEXT,
    }
    for prompt, more in (
        ("The weather in Paris in Kelvin", {"unit": "kelvin"}),
        ("The weather in Paris, days=3", {"days": 3}),
        ("The weather in Paris, deep=true", {"deep": True}),
        ('Search "Paris" in src/', {"path": "src/"}),
        ("The weather in Paris days: 4 path=`a b`", {"days": 4, "path": "a b"}),
    ):
        assert filled(prompt, "city", city=TEXT, **optional) == [{"city": "Paris", **more}]


def test_without_a_required_property_the_prompt_fills_the_first_that_fits():
    assert filled("The weather in Paris?", "", limit={"type": "integer"}, city=TEXT) == [{"city": "Paris"}]
    assert filled("Look at a.txt", "", query=TEXT, path=TEXT) == [{"query": "a.txt"}]
    assert filled("Look up cats", "", query=TEXT) == [{"query": "cats"}]
    assert filled("hi", "", query=TEXT) == [{}]


def test_several_required_texts_share_the_values_of_one_call():
    places = {"old": TEXT, "file_path": TEXT, "new": TEXT}
    assert filled('Change "a" to "b" in x.py', **places) == [{"old": "a", "file_path": "x.py", "new": "b"}]
    assert filled("See https://example.com/a?b=c for Bob", url=TEXT, who=TEXT) == [
        {"url": "https://example.com/a?b=c", "who": "Bob"}
    ]


def test_an_array_takes_all_values():
    paths = {"type": "array", "items": TEXT}
    assert filled("Read a.txt, b.txt and c.txt", paths=paths) == [{"paths": ["a.txt", "b.txt", "c.txt"]}]
    assert filled("Look", words=paths) == [{"words": ["Look"]}]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, 42), ({"type": "number"}, 42), ({"type": "boolean"}, False), ({"type": ["null", "string"]}, "42"), ({"type": "null"}, None),
        ({"const": "x"}, "x"), ({"enum": ["q", "about"]}, "about"), ({"enum": ["q", "r"]}, "q"), ({"anyOf": [{"type": "integer"}]}, 42), ({}, "42"),
        ({"type": "array", "items": TEXT}, ["42"]), ({"type": "object", "properties": {"a": {"type": "boolean"}}}, {}), (True, "42"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 42}), ({"type": "integer", "maximum": 9}, 1),
        ({"type": "string", "format": "date"}, "2026-01-31"), ({"type": "string", "default": "d"}, "42"),
    ],
)  # fmt: skip
def test_a_value_has_the_type_that_is_declared(schema: Any, expected: Any):
    assert filled("about 42", x=schema) == [{"x": expected}]


def test_numbers_go_where_they_are_named_or_in_order():
    whole = {"type": "integer"}
    assert filled("Add 3 and 4", a=whole, b=whole) == [{"a": 3, "b": 4}]
    assert filled("5 things, limit=7, days: 5", limit=whole, days=whole) == [{"limit": 7, "days": 5}]
    assert filled("as 2.5 and -3", a={"type": "number"}, b=whole) == [{"a": 2.5, "b": -3}]
    assert filled("9" * 5000, x=whole) == [{"x": 999999999999999}]


@pytest.mark.parametrize(
    ("format", "word"),
    [
        ("date", "2026-05-01"), ("date-time", "2026-05-01T10:00:00Z"), ("time", "10:00:00Z"), ("email", "ann@example.com"), ("uri", "https://a.example/b"),
        ("ipv4", "10.0.0.1"), ("uuid", "123e4567-e89b-12d3-a456-426614174000"), ("hostname", "a.example"),
    ],
)  # fmt: skip
def test_what_has_the_format_is_taken_from_the_prompt(format: str, word: str):
    schema = {"type": "string", "format": format}
    assert filled(f"Take ({word}), please.", x=schema) == [{"x": word}]
    [made] = filled("Take 2026 or nothing.", x=schema)
    assert made["x"] not in ("2026", "nothing", "Take 2026 or nothing")


def test_a_remark_and_a_message_say_what_the_prompt_says():
    prompt = "Look at `a.txt`\nand tell me " + "more " * 30
    [made] = filled(prompt, description=TEXT, prompt=TEXT, path=TEXT)
    assert made["path"] == "a.txt"
    assert made["description"] == " ".join(prompt.split())[:80]
    assert made["prompt"] == prompt.strip()


def told(message: str, prompt: str, path: Json) -> list[Json]:
    """The arguments after a message in which the client tells the working directory."""
    asked = asking(prompt, tools=[function("Read", "Read a file.", file_path=path)])
    entries = (Message("developer", (TextPart(message),)), *asked.entries)
    return arguments(Request("demo", entries, tools=asked.tools))


def test_a_path_is_absolute_where_that_is_wanted_and_the_directory_is_known():
    absolute = {"type": "string", "description": "The absolute path to the file"}
    for message in (
        " - Primary working directory: /home/me\n - x",
        "<env>\nWorking directory: /home/me\n</env>",
        "<cwd>/home/me</cwd>",
        "I'm currently working in the directory: /home/me",
    ):
        assert told(message, "Read a/../b.txt", absolute) == [{"file_path": "/home/me/b.txt"}]
        assert told(message, "Read /etc/x.txt", absolute) == [{"file_path": "/etc/x.txt"}]
        assert told(message, "Read b.txt", TEXT) == [{"file_path": "b.txt"}]
    assert told("working directory: elsewhere", "Read b.txt", absolute) == [{"file_path": "b.txt"}]


def test_a_shell_runs_a_command_and_never_the_prompt():
    shell = function("shell", "Runs a shell command.", command={"type": "array", "items": TEXT})
    assert arguments(asking("Run `a b` and `c`", tools=[shell])) == [
        {"command": ["bash", "-lc", "a b"]},
        {"command": ["bash", "-lc", "c"]},
    ]
    several = function("run_commands", "Runs shell commands.", commands={"type": "array", "items": TEXT})
    assert arguments(asking("Run `a b`", tools=[several])) == [{"commands": ["a b"]}]
    tool = function("bash", "Runs a command.", command=TEXT, description=TEXT)
    for prompt in ("use bash", "use bash for 'rm x'", "use bash on x.py", "Call the tool bash with care; rm -rf x"):
        assert [each["command"] for each in arguments(asking(prompt, tools=[tool]))] == ["ls"]


def test_files_in_commands_are_quoted():
    shell = function("bash", "Runs a command.", command=TEXT)
    for name, quoted in (
        ("`-rf.txt`", "./-rf.txt"),
        ('"a;rm x.txt"', "'a;rm x.txt'"),
        ('"$(x).txt"', "'$(x).txt'"),
        ("~/a.txt", "~/a.txt"),
    ):
        assert arguments(asking(f"Read the file {name}", tools=[shell])) == [{"command": f"cat {quoted}"}]


def test_legacy_functions_are_filled_too():
    body = b'{"model":"demo","messages":[{"role":"user","content":"weather in Rome?"}],"functions":[{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]}'
    assert arguments(chat.decode_request(body)) == [{"city": "Rome"}]
