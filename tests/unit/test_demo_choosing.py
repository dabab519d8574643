"""Which tool the demo model calls: one that is named, one that really fits, or none."""

import json
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.demo import Json, asking, calls, function, turn

TEXT = {"type": "string"}
ABSOLUTE = {"type": "string", "description": "The absolute path to the file"}
NUMBER = {"type": "integer", "minimum": 0}

CLAUDE_CODE = [
    function("Agent", "Launch a new agent to handle complex, multi-step tasks. Agents read files.", "description prompt", description=TEXT, prompt=TEXT, model={"enum": ["opus", "haiku"]}),
    function("AskUserQuestion", "Use this tool only when you are blocked on a decision.", questions={"type": "array", "items": {"type": "object", "properties": {"question": TEXT, "options": {"type": "array", "minItems": 2, "items": TEXT}}, "required": ["question", "options"]}, "minItems": 1}),
    function("Bash", "Executes a bash command and returns its output.\n\n- Never read files with it.", "command", command=TEXT, timeout=NUMBER, description=TEXT, run_in_background={"type": "boolean"}),
    function("Edit", "Performs exact string replacement in a file.", "file_path old_string new_string", file_path=ABSOLUTE, old_string=TEXT, new_string=TEXT, replace_all={"type": "boolean"}),
    function("ListAgents", "Lists agents you can SendMessage to.", "", q=TEXT),
    function("Read", "Reads a file from the local filesystem.\n\n- Reads up to 2000 lines.", "file_path", file_path=ABSOLUTE, offset=NUMBER, limit=NUMBER, pages=TEXT),
    function("ReportFindings", "Report code-review findings as a typed list so the host can show them.", findings={"type": "array"}),
    function("Skill", "Invoke a skill.", "skill", skill=TEXT, args=TEXT),
    function("Workflow", "Execute a workflow script that orchestrates multiple subagents. Find files, run commands, read and list everything.", "", script=TEXT, name=TEXT, args={}),
    function("Write", "Writes a file to the local filesystem, overwriting if one exists.", file_path=ABSOLUTE, content=TEXT),
]  # fmt: skip
CODEX = [
    function("exec_command", "Runs a command in a PTY, returning output or a session ID for ongoing interaction.", "cmd", cmd=TEXT, workdir=TEXT, login={"type": "boolean"}, sandbox_permissions={"enum": ["use_default", "require_escalated"]}),
    function("write_stdin", "Writes characters to an existing unified exec session and returns recent output.", "session_id", session_id={"type": "number"}, chars=TEXT),
    function("view_image", "View a local image file from the filesystem when visual inspection is needed.", path=TEXT),
    function("spawn_agent", "Spawn a sub-agent for a well-scoped task. Returns the agent id.", "", message=TEXT, items={"type": "array"}),
    function("close_agent", "Close an agent and any open descendants.", target=TEXT),
    function("get_goal", "Get the current goal for this thread, including status."),
    function("create_goal", "Create a goal only when explicitly requested.", objective=TEXT),
]  # fmt: skip
AGENT = [
    function("Glob", "Find files by name, newest first.", "pattern", pattern=TEXT, path=TEXT),
    function("Grep", "Search the contents of files for a regular expression. Gives path:line:text.", "pattern", pattern=TEXT, path=TEXT),
    function("Read", "Read a text file. Gives numbered lines.", "path", path=TEXT, offset=NUMBER),
    function("Write", "Write a file: a new one, or all of an existing one anew.", path=TEXT, content=TEXT),
    function("Bash", "Run a shell command to its end, and return its output and errors.", "command", command=TEXT),
]  # fmt: skip
WEATHER = [
    function("get_weather", "", "", city=TEXT),
    function("get_time", "Get the local time in a city.", city=TEXT),
    function("delete_city", "Delete a city.", city=TEXT),
    function("sendMail", "", to=TEXT),
]


def called(prompt: str, tools: list[Json], **fields: Any) -> list[tuple[str, Json]]:
    """The calls; their arguments fit."""
    made = calls(asking(prompt, tools=tools, **fields))
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, arguments in made:
        Draft202012Validator(schemas[name]).validate(arguments)
    return made


GREETINGS = ["hi", "Hello there", "thanks", "ok", "What can you do?", "Who are you?", "help", "Tell me a joke.", "Go.", "👋", "…", "?"]  # fmt: skip


@pytest.mark.parametrize("prompt", GREETINGS)
def test_a_prompt_that_asks_for_nothing_calls_nothing(prompt: str):
    for tools in (CLAUDE_CODE, CODEX, AGENT, WEATHER):
        assert called(prompt, tools) == []


READS = [("Read", {"file_path": "hello.txt"})]


@pytest.mark.parametrize(
    ("prompt", "claude", "codex", "agent"),
    [
        ("Read hello.txt", READS, "cat hello.txt", ("Read", {"path": "hello.txt"})),
        ("Show me what is in hello.txt, please.", READS, "cat hello.txt", ("Read", {"path": "hello.txt"})),
        ("Which bird is in hello.txt?", READS, "cat hello.txt", ("Read", {"path": "hello.txt"})),
        ('Read the file "my notes"', [("Read", {"file_path": "my notes"})], "cat 'my notes'", ("Read", {"path": "my notes"})),
        ("run `ls -la`", [("Bash", {"command": "ls -la"})], "ls -la", ("Bash", {"command": "ls -la"})),
        ("Please run the command `date`.", [("Bash", {"command": "date"})], "date", ("Bash", {"command": "date"})),
        ("run git status", [("Bash", {"command": "git status"})], "git status", ("Bash", {"command": "git status"})),
        ("list the files", [("Bash", {"command": "ls"})], "ls", ("Glob", {"pattern": "*"})),
        ("What files are in src/?", [("Bash", {"command": "ls src/"})], "ls src/", ("Glob", {"pattern": "*", "path": "src/"})),
        ("Find the files *.py", [("Bash", {"command": "ls *.py"})], "ls *.py", ("Glob", {"pattern": "*.py"})),
        ('Search for "it\'s"', [("Bash", {"command": "grep -rnF -- 'it'\"'\"'s' ."})], "grep -rnF -- 'it'\"'\"'s' .", ("Grep", {"pattern": "it's"})),
        ('Search "foo" in src/', [("Bash", {"command": "grep -rnF -- foo ."})], "grep -rnF -- foo .", ("Grep", {"pattern": "foo", "path": "src/"})),
        ("use Bash to list the files", [("Bash", {"command": "ls"})], "ls", ("Bash", {"command": "ls"})),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_done_with_the_tools_of_real_programs(
    prompt: str, claude: list[Any], codex: str, agent: tuple[str, Json]
):
    assert called(prompt, CLAUDE_CODE) == claude
    assert called(prompt, CODEX) == [("exec_command", {"cmd": codex})]
    assert called(prompt, AGENT) == [agent]


@pytest.mark.parametrize(
    "prompt",
    [
        "Write a test for hello.txt", "Write me a poem", "Delete hello.txt", "Fix the bug in main.py", "run the tests", "Explain how to run `rm -rf x`",
        "Don't run `rm x`", "How do I delete a file?", "`rm -rf x`", "rm -rf x", "echo hi", "Do not run `ls`", "What does the report say?", "commit my changes",
        "My goal is to learn Rust", "find the bug in my code", "I want to run", "Read me a story", "open the door", "Edit hello.txt", "Is it and/or?",
        "Do NOT use Read, Bash, Write or any other tool. Answer in words about hello.txt.", "Which agents exist, in theory, I wonder",
    ],
)  # fmt: skip
def test_nothing_is_written_deleted_or_executed_unless_that_is_asked_for(prompt: str):
    for tools in (CLAUDE_CODE, CODEX):
        assert [name for name, _ in called(prompt, tools) if name != "ListAgents"] == []


@pytest.mark.parametrize(
    ("prompt", "tools", "expected"),
    [
        ('Write "hi" to a.txt', CLAUDE_CODE, ("Write", {"file_path": "a.txt", "content": "hi"})),
        ("Write the file `a.txt`", AGENT, ("Write", {"path": "a.txt", "content": "Write the file `a.txt`"})),
        ("Spawn an agent", CODEX, ("spawn_agent", {})),
        ("Create a goal: learn Rust", CODEX, ("create_goal", {"objective": "Create a goal: learn Rust"})),
        ("Delete the city Rome", WEATHER, ("delete_city", {"city": "Rome"})),
        ("Send a mail to Bob", WEATHER, ("sendMail", {"to": "Bob"})),
    ],
)  # fmt: skip
def test_a_tool_that_changes_something_is_called_for_its_verb_and_object(prompt: str, tools: list[Json], expected: Any):
    assert called(prompt, tools) == [expected]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Call delete_city for Rome", ("delete_city", {"city": "Rome"})),
        ("Use `get_time` about Rome", ("get_time", {"city": "Rome"})),
        ("What about get_time?", ("get_time", {"city": "What about get_time"})),
        ("What is the weather, by get_time, in Oslo?", ("get_time", {"city": "Oslo"})),
        ('Call the tool "SENDMAIL".', ("sendMail", {"to": 'Call the tool "SENDMAIL"'})),
    ],
)
def test_a_tool_that_the_prompt_names_wins(prompt: str, expected: Any):
    assert called(prompt, WEATHER) == [expected]
    assert turn(asking(prompt, tools=WEATHER)).reasoning == f"The prompt names the tool {expected[0]}."


def test_an_ordinary_word_is_a_name_only_where_it_is_meant_as_one():
    tools = [function("ping"), function("bash", "Runs bash commands.", command=TEXT), function("mcp__files__look")]
    for prompt in ("Call ping", 'Use the tool "ping".', "ping", "Try the function ping", "the `ping` tool"):
        assert called(prompt, tools) == [("ping", {})]
    for prompt in ("I like ping pong", "bash is a shell", "Never use ping", "Don't call ping"):
        assert called(prompt, tools) == []
    assert called("Use bash.", tools) == [("bash", {"command": "ls"})]
    assert called("Call mcp__files__look", tools) == called("Use look", tools) == [("mcp__files__look", {})]


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("What is the weather in Paris?", "get_weather"), ("weather in Paris", "get_weather"), ("Show me the forecast for Paris", "get_weather"),
        ("Tell me what time it is in Paris", "get_time"), ("How is the weather?", "get_weather"),
    ],
)  # fmt: skip
def test_a_question_about_its_object_fits_a_tool_that_only_looks(prompt: str, name: str):
    assert [called for called, _ in called(prompt, WEATHER)] == [name]


def test_a_tool_is_harmless_only_if_neither_its_name_nor_its_description_has_a_verb_that_changes_something():
    tools = [
        function("get_weather", "Get the weather in a city. Also deletes files.", city=TEXT),
        function("list_orders", "Lists the orders of a customer.", customer=TEXT),
        function("find_accounts", "Looks up and deletes accounts.", account=TEXT),
    ]
    assert called("What is the weather in Rome?", tools) == [("get_weather", {"city": "Rome"})]
    assert called("List the orders of Bob", tools) == [("list_orders", {"customer": "Bob"})]
    assert called("What accounts are there?", tools) == []


def test_the_tool_that_fits_best_wins():
    tools = [
        function("read_media_file", "Read an image or audio file.", path=TEXT),
        function("read_file", "Read a file.", path=TEXT),
        function("list_directory", "List a directory.", path=TEXT),
        function("search_files", "Search files by name.", pattern=TEXT),
        function("search_web", "Search the web.", query=TEXT),
    ]
    assert called("Read a.txt", tools) == [("read_file", {"path": "a.txt"})]
    assert called("List the directory `docs`", tools) == [("list_directory", {"path": "docs"})]
    assert called("list the files", tools) == [("list_directory", {"path": "."})]
    assert called("Search the web for cute cats", tools) == [("search_web", {"query": "cute cats"})]


def test_long_descriptions_do_not_matter():
    noise = "Does things.\n" + "Read, list, find, run, search and weather files in Paris. " * 200
    assert called("Read hello.txt", [function("Noise", noise, x=TEXT), *AGENT]) == [("Read", {"path": "hello.txt"})]
    assert called("hello", [function("Noise", noise, x=TEXT)]) == []


@pytest.mark.parametrize(
    "prompt",
    [
        "a.b " * 50_000,
        "<x-y>" * 50_000,
        '"' * 100_000,
        "Read " + "and, " * 30_000,
        "`a" * 50_000,
        "x=" * 50_000,
        "Run " * 50_000 + "`x`",
        "Write " * 10_000 + "a.txt",
        "_" * 200_000,
    ],
)
def test_no_prompt_takes_long(prompt: str):
    request = asking(prompt, tools=CLAUDE_CODE * 3)
    start = time.process_time()
    turn(request)
    assert time.process_time() - start < 3
    assert json.dumps(calls(request)) == json.dumps(calls(request))
