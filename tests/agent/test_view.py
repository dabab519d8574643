"""The view, fed with events and a clock of our own, and read from a screen."""

import asyncio
import io
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.agent.terminal import Screen
from toolwire.agent.approval import DENIED, NO_USER, READ_ONLY
from toolwire.agent.events import (
    AgentEvent,
    ApprovalAsked,
    CallEnded,
    CallStarted,
    Compacted,
    LimitsUpdated,
    Noted,
    RateLimit,
    ReasoningDelta,
    Retrying,
    TaskEnded,
    TaskStarted,
    TextDelta,
    Tokens,
    ToolOutput,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageUpdated,
    Window,
)
from toolwire.agent.terminal.display import rows_of
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.screen import LiveCanvas
from toolwire.agent.terminal.view import SPINNER, View
from toolwire.agent.tools.files import edit
from toolwire.agent.tools.shell import bash
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, ToolCall, ToolError

BASH = '{"command":"sleep 1"}'
DONE = TaskEnded("done", "", Tokens())
NOTHING_USED = "0 tokens in (0 cached), 0 out"
USED_IN_20 = ["0 tokens in (0", "cached), 0 out"]
"""The same in so many columns."""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Watched:
    """A view on a terminal of some size. Its clock stands still unless it is told."""

    def __init__(self, columns: int = 80, rows: int = 24, colours: Literal["standard"] | None = "standard") -> None:
        self.now = 100.0
        self.file = io.StringIO()
        self._screen = Screen(columns, rows)
        self._read = 0
        console = Console(
            file=self.file,
            force_terminal=True,
            force_interactive=True,
            color_system=colours,
            highlight=False,
            width=columns,
            height=rows,
        )
        self.view = View(LiveCanvas(console), lambda: self.now, verbose=True)
        self.view.__enter__()

    def show(self, *events: AgentEvent) -> "Watched":
        for event in events:
            self.view.show(event)
        return self

    def later(self, seconds: float) -> "Watched":
        self.now += seconds
        self.view.refresh()
        return self

    @contextmanager
    def asked(self, call_id: str) -> Generator[None]:
        """A question about a call is open."""
        asking = self.view.asking(call_id)
        with asyncio.Runner() as runner:
            runner.run(asking.__aenter__())
            yield
            runner.run(asking.__aexit__(None, None, None))

    def close(self) -> "Watched":
        self.view.close()
        return self

    @property
    def screen(self) -> Screen:
        self.view.refresh()
        written = self.file.getvalue()
        self._screen.write(written[self._read :].replace("\n", "\r\n"))
        self._read = len(written)
        return self._screen

    @property
    def lines(self) -> list[str]:
        return self.screen.lines


def in_file(*events: AgentEvent) -> str:
    """What stands in a file to which all of it was written."""
    file = io.StringIO()
    with View(LiveCanvas(Console(file=file, highlight=False)), verbose=True) as view:
        for event in events:
            view.show(event)
    return file.getvalue()


def started(id: str = "1", name: str = "Bash", arguments: str = BASH) -> list[AgentEvent]:
    return [CallStarted(id, name, arguments), ToolStarted(id, name)]


def called(
    arguments: str = BASH, result: str = "well done", *, failed: bool = False, name: str = "Bash"
) -> list[AgentEvent]:
    return [*started("1", name, arguments), CallEnded("1", name, result, failed, 1.23)]


# Text


def test_text_is_shown_as_it_comes() -> None:
    watched = Watched()
    assert watched.show(TextDelta("Hel")).lines == ["Hel"]
    assert watched.show(TextDelta("lo,\nwor")).lines == ["Hello,", "wor"]
    assert watched.show(TextDelta("ld.")).lines == ["Hello,", "world."]
    assert watched.show(DONE).close().lines == ["Hello,", "world.", NOTHING_USED]


def test_text_is_wrapped_at_words_and_code_is_left_to_the_terminal() -> None:
    watched = Watched(columns=20)
    text = "the quick brown fox jumps over the lazy dog"
    lines = ["the quick brown fox", "jumps over the lazy", "dog"]
    watched.show(*(TextDelta(f"{word} ") for word in text.split()))
    assert watched.lines == lines, "while it comes"
    watched.show(TextDelta("\n\n    indented, and longer than the terminal"), DONE)
    assert watched.lines == [*lines, "", "    indented, and lo", "nger than the termin", "al", *USED_IN_20]
    assert "    indented, and longer than the terminal" in watched.file.getvalue(), "copied, it is one line"


def test_of_a_line_longer_than_the_screen_the_end_is_shown() -> None:
    watched = Watched(columns=20, rows=5).show(*started())
    text = "".join(f"<{number:08}>" for number in range(40))
    for place in range(0, len(text), 7):
        watched.show(TextDelta(text[place : place + 7]))
        *rows, call = watched.lines
        assert call[2:] == "Bash sleep 1 0.0 s"
        assert text[: place + 7].endswith("".join(rows))
        assert len(rows) == min(4, -(-(place + 7) // 20))
    watched.show(CallEnded("1", "Bash", "ok", False, 1.0), DONE).close()
    whole = [text[place : place + 20] for place in range(0, len(text), 20)]
    assert watched.lines == [*whole, "✓ Bash slee… 1.0 s …", *USED_IN_20]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("日本語のテキストは幅が広い", ["日本語のテキストは幅", "が広い"]),
        ("a\tb\tc", ["a       b       c"]),
        ("    code()\n\n  more", ["    code()", "", "more"]),
        ("nai\u0308ve cafe\u0301", ["nai\u0308ve cafe\u0301"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("exactly twenty cells\nmore", ["exactly twenty cells", "more"]),
    ],
    ids=["long word", "wide letters", "tabs", "indented", "accents", "crlf", "full row"],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_text_of_any_kind_keeps_its_form(text: str, lines: list[str], size: int) -> None:
    watched = Watched(columns=20)
    watched.show(*(TextDelta(text[place : place + size]) for place in range(0, len(text), size)))
    assert watched.lines == lines


def test_blank_lines_are_shown_if_something_follows() -> None:
    watched = Watched()
    assert watched.show(TextDelta("One.\n"), TextDelta("\n"), TextDelta("\n\n")).lines == ["One."]
    assert watched.show(TextDelta("Two.\n\n\n"), *called(), TextDelta("Three.")).close().lines == [
        "One.",
        "",
        "Two.",
        "✓ Bash sleep 1 1.2 s · well done",
        "Three.",
    ]


words = st.text("abcdefghij[]\\:日é", min_size=1, max_size=9)
texts = st.lists(st.lists(words, max_size=12).map(" ".join), max_size=5).map("\n".join)


@given(texts, st.lists(st.integers(0, 200), max_size=20))
def test_any_chunking_gives_the_same_rows(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    whole = Watched(columns=20).show(TextDelta(text), DONE).close().lines
    assert Watched(columns=20).show(*map(TextDelta, pieces), DONE).close().lines == whole


any_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cn", "Co"]), max_size=200)
steering = st.text("\x1b\x9b\x07\r\n\b[]\\;?0127mAJKHhla ", max_size=200)


@given(any_text | steering, st.integers(1, 30))
def test_nothing_that_is_said_steers_the_terminal(text: str, size: int) -> None:
    watched = Watched(columns=20, colours=None)
    before = watched.file.getvalue()
    watched.show(*(TextDelta(text[place : place + size]) for place in range(0, len(text), size)))
    watched.show(*called(text, text), *called(text, text, failed=True), TaskEnded("failed", "", Tokens(), text)).close()
    steered = watched.file.getvalue()[len(before) :]
    for ours in ("\x1b[2K", "\x1b[1A", "\x1b[?25h"):
        steered = steered.replace(ours, "")
    assert not [letter for letter in steered if (letter < " " and letter not in "\n\r") or "\x7f" <= letter <= "\x9f"]


def test_escapes_are_left_out_whole() -> None:
    text = "a \x1b[31mred\x1b[0m \x1b]0;title\x07b \x1b[2J\x1b[5A\x1b7c\x9b31md\x07\b\n"
    assert Watched().show(TextDelta(text)).lines == ["a red b c31md"]


MARKUP = "[bold]x[/bold] [/] [red :smile: \\[x] \\"


def test_markup_is_shown_as_it_is() -> None:
    watched = Watched(columns=120).show(
        TextDelta(MARKUP),
        *called(MARKUP, MARKUP),
        *called(MARKUP, MARKUP, failed=True),
        Retrying(1, 5, 0.2, MARKUP),
        TaskEnded("failed", "", Tokens(), MARKUP),
    )
    watched.close()
    assert watched.lines == [
        MARKUP.replace("\\[", "["),  # as Markdown has it
        f"✓ Bash {MARKUP} 1.2 s · {MARKUP}",
        f"✗ Bash {MARKUP} 1.2 s · {MARKUP}",
        f"· retry 1 of 5 in 0.2 s: {MARKUP}",
        f"failed: {MARKUP}",
        NOTHING_USED,
    ]
    assert rows(MARKUP) == [f"  {MARKUP}"]


# Calls


def test_a_tool_that_runs_has_one_line_with_a_spinner_and_the_time() -> None:
    watched = Watched().show(TextDelta("Let me see."), *started())
    frames = [watched.later(0.1).lines for _ in range(12)]
    assert {frame[0] for frame in frames} == {"Let me see."}
    assert [frame[1:] for frame in frames] == [
        [f"{frame[1][0]} Bash sleep 1 {tenth / 10} s"] for tenth, frame in enumerate(frames, 1)
    ]
    assert {frame[1][0] for frame in frames} == set(SPINNER)


def test_a_call_that_waits_for_another_is_shown_without_a_time() -> None:
    watched = Watched().show(*started(), CallStarted("2", "Write", '{"path":"a"}')).later(1)
    assert watched.lines[1:] == ["· Write a"]
    watched.show(CallEnded("1", "Bash", "ok", False, 1.0), ToolStarted("2", "Write")).later(2)
    assert [line[2:] for line in watched.lines] == ["Bash sleep 1 1.0 s · ok", "Write a 2.0 s"]


def test_the_last_line_that_a_tool_puts_out_is_shown() -> None:
    watched = Watched().show(*started())
    pieces = ("one\ntw", "o\n", "  \n", "10%\r20%", "\r\n\x1b[32mgreen\x1b[0m [b]")
    seen = [watched.show(ToolOutput("1", text)).lines[0].partition(" · ")[2] for text in pieces]
    assert seen == ["tw", "two", "two", "20%", "green [b]"]


def test_a_call_that_went_well_shows_its_last_output_or_else_its_result() -> None:
    quiet = Watched().show(*called(result="line one\n  line two\n"))
    assert quiet.lines == ["✓ Bash sleep 1 1.2 s · line one line two"]
    loud = Watched().show(*started(), ToolOutput("1", "a\nb\n"), CallEnded("1", "Bash", "Output:\na\nb\n", False, 1))
    assert loud.lines == ["✓ Bash sleep 1 1.0 s · b"]
    busy = Watched().show(*started(), ToolOutput("1", "50 %"), CallEnded("1", "Bash", "The result.", False, 1))
    assert busy.lines == ["✓ Bash sleep 1 1.0 s · The result."]


RAN = "Chunk ID: 84809a\nWall time: 0.0012 seconds\n{}\nOriginal token count: 4\nOutput:\n{}"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (RAN.format("Process exited with code 0", "hi\nho\n"), " · hi ho"),
        (RAN.format("Process exited with code 0", ""), ""),
        (RAN.format("Process exited with code 3", "hi\n"), " · Process exited with code 3 hi"),
        (RAN.format("Process running with session ID 27299", "hi\n"), " · hi"),
        (RAN.format("Process running with session ID 27299", ""), " · Process running with session ID 27299"),
        ("Wall time: 0.1 seconds\nOutput:\nhi\n", " · hi"),
        ("Wall time: 0.1 seconds\nOutput:\n", ""),
        ("Wall time: 0.1 seconds\nnothing else", " · Wall time: 0.1 seconds nothing else"),
    ],
)
def test_of_a_command_the_output_is_shown(result: str, shown: str) -> None:
    assert Watched().show(*called(result=result)).lines == [f"✓ Bash sleep 1 1.2 s{shown}"]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("Exit code: 1\nWall time: 0.1 seconds\nOutput:\nhi\n", "Exit code: 1 hi"),
        (
            "Timed out and was stopped after 0.1 seconds\nWall time: 0.1 seconds\nOutput:\n",
            "Timed out and was stopped after 0.1 seconds",
        ),
        ("Wall time: 0.1 seconds\naborted by user", "Wall time: 0.1 seconds aborted by user"),
    ],
)
def test_of_a_command_that_failed_it_is_shown_how(result: str, shown: str) -> None:
    assert Watched().show(*called(result=result, failed=True)).lines == [f"✗ Bash sleep 1 1.2 s · {shown}"]


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (DENIED, "refused"),
        (NO_USER, "refused: no user is present to allow it"),
        (READ_ONLY.format("Bash"), "refused: read-only"),
    ],
)
def test_a_call_that_was_refused_has_no_time_and_no_words_for_the_model(why: str, shown: str) -> None:
    assert Watched().show(*called(result=why, failed=True)).lines == [f"✗ Bash sleep 1 · {shown}"]


def test_what_runs_on_after_ctrl_c_is_being_cancelled() -> None:
    watched = Watched().show(*started(), ToolOutput("1", "busy\n"), CallStarted("2", "Write", '{"path":"a"}')).later(1)
    watched.view.show_cancelling()
    assert [line[2:] for line in watched.lines] == ["Bash sleep 1 1.0 s · cancelling", "Write a"]


def test_without_a_tool_that_runs_it_is_said_at_once_too() -> None:
    watched = Watched().show(TurnStarted(1)).later(3)
    watched.view.show_cancelling()
    watched.show(ReasoningDelta("Hm."), TurnEnded(1, 0))
    assert watched.later(0.2).lines[0][2:] == "cancelling 0.2 s"
    assert watched.show(TextDelta("So")).lines[1][2:] == "cancelling 0.2 s"
    assert watched.show(TaskEnded("cancelled", "", Tokens())).close().lines == [
        "So",
        "stopped: cancelled",
        NOTHING_USED,
    ]


def test_a_call_that_failed_shows_why_on_as_many_rows_as_it_takes() -> None:
    why = "there is no such file, and no folder either, where it could have been"
    assert Watched(columns=40).show(*called(result=why, failed=True)).lines == [
        "✗ Bash sleep 1 1.2 s · there is no such",
        "file, and no folder either, where it",
        "could have been",
    ]


LONG = " ".join(f"word{number}" for number in range(100))


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("text", [LONG, "日本語" * 100, "x" * 500], ids=["words", "wide", "one word"])
def test_a_call_takes_one_row_and_its_time_is_always_seen(columns: int, text: str) -> None:
    watched = Watched(columns).show(*started(arguments=text), ToolOutput("1", text)).later(1)
    (row,) = watched.lines
    assert " 1.0 s" in row
    assert cell_len(row) <= columns
    (row,) = watched.show(CallEnded("1", "Bash", text, False, 1.0)).close().lines
    assert " 1.0 s" in row
    assert row.endswith("…")


def test_what_is_short_leaves_its_room_to_what_is_long() -> None:
    assert Watched(40).show(*called(LONG, "ok")).lines == ["✓ Bash word0 word1 word2 wor… 1.2 s · ok"]
    assert Watched(40).show(*called("ls", LONG)).lines == ["✓ Bash ls 1.2 s · word0 word1 word2 wor…"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path":"README.md"}', "README.md"),
        ('{"pattern":"a b","limit":3,"all":true}', "a b limit=3 all=true"),
        ('{"lines":["a","b"]}', '["a","b"]'),
        ('{"content":"one\\n\\ttwo"}', "one two"),
        ("{}", ""),
        ("", ""),
        ("*** Begin Patch\n*** End Patch", "*** Begin Patch *** End Patch"),
        ('{"cut', '{"cut'),
        ("[1]", "[1]"),
        ("[" * 5000, "[" * 61 + "…"),
    ],
)
def test_arguments_are_shown_as_one_reads_them(arguments: str, shown: str) -> None:
    (row,) = Watched().show(*called(arguments, "ok")).lines
    assert row == " ".join(f"✓ Bash {shown} 1.2 s · ok".split())


def test_calls_that_nobody_announced_do_no_harm() -> None:
    watched = Watched().show(
        ToolOutput("9", "lost"),
        CallEnded("8", "Read", "ok", False, 0),
        ToolStarted("7", "Grep"),
        ToolOutput("8", "late"),
    )
    assert [line[2:] for line in watched.lines] == ["Read 0.0 s · ok", "Grep 0.0 s"]


def test_nothing_that_changes_is_left_in_the_end() -> None:
    events = [event for number in range(30) for event in started(str(number))]
    watched = Watched(rows=10).show(TextDelta("Many calls."), *events)
    assert len(watched.lines) == 11, "the text, and as many as there is room for"
    for number in range(30):
        watched.later(0.1).show(CallEnded(str(number), "Bash", "ok", False, 1.0))
    assert watched.show(DONE).close().lines == ["Many calls.", *["✓ Bash sleep 1 1.0 s · ok"] * 30, NOTHING_USED]
    assert watched.screen.has_cursor


def test_nothing_that_changes_is_left_when_it_is_closed_in_the_middle() -> None:
    events = [event for number in range(30) for event in started(str(number))]
    watched = Watched(rows=10).show(TextDelta("Many calls.\n"), *events).later(1).close().later(1)
    assert watched.lines == ["Many calls."]
    assert watched.screen.has_cursor


# What else happens


def test_what_is_waited_for_is_said_after_a_moment() -> None:
    watched = Watched().show(TaskStarted("s", "gpt-5", "hi"), TurnStarted(1))
    assert watched.later(0.4).lines == []
    assert watched.later(0.8).lines[0][2:] == "waiting for gpt-5 1.2 s"
    watched.show(ReasoningDelta("First I look.\nThen I"), ReasoningDelta(" think."))
    assert watched.lines[0][2:] == "thinking 1.2 s · Then I think."
    assert watched.show(TextDelta("Hi")).later(0.3).lines == ["Hi"]
    assert watched.show(TextDelta(" there.\n")).lines == ["Hi there."]
    assert watched.later(0.7).lines[1][2:] == "waiting for gpt-5 0.7 s"
    assert watched.show(*started()).later(1).lines[1][2:] == "Bash sleep 1 1.0 s"
    assert watched.show(CallEnded("1", "Bash", "ok", False, 1.0)).lines[2:] == []
    assert watched.later(1).show(TurnEnded(1, 1)).later(2).lines[2][2:] == "waiting for gpt-5 2.0 s"
    assert watched.show(DONE).later(2).lines[2:] == [NOTHING_USED]


def test_a_part_of_the_reasoning_begins_a_line() -> None:
    watched = Watched()
    watched.show(TurnStarted(1))
    watched.later(1.2)
    watched.show(ReasoningDelta("**One**", "rs_1", "summary", 0), ReasoningDelta("**Two**", "rs_1", "summary", 1))
    assert watched.lines[0].endswith(" · **Two**")


def test_a_call_that_never_ran_has_no_time() -> None:
    watched = Watched()
    watched.show(CallStarted("1", "nope", "{}"), CallEnded("1", "nope", "unsupported call: nope", True, None))
    assert watched.lines[0] == "✗ nope · unsupported call: nope"


def test_the_reason_of_an_end_is_explained() -> None:
    watched = Watched()
    watched.show(TaskEnded("repeated_calls", "", Tokens(), "nope failed"))
    assert watched.lines[0] == "stopped: repeated_calls: nope failed"


def test_what_is_no_part_of_the_answer_stands_on_lines_of_its_own() -> None:
    watched = Watched().show(
        TextDelta("Half a"),
        Retrying(2, 5, 0.44, "The server is overloaded."),
        TextDelta("A whole answer."),
        Compacted(12, 3),
        Noted("call_incomplete", "call_1"),
        Noted("call_incomplete", "call_2"),
        Noted("tokens_estimated"),
    )
    assert watched.close().lines == [
        "Half a",
        "· retry 2 of 5 in 0.4 s: The server is overloaded.",
        "A whole answer.",
        "· the conversation was summarised: 12 items became 3",
        "· note: call_incomplete call_1",
        "· note: tokens_estimated",
    ]


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (TaskEnded("cancelled", "", Tokens()), "stopped: cancelled"),
        (TaskEnded("max_turns", "", Tokens()), "stopped: max_turns"),
        (TaskEnded("length", "", Tokens()), "stopped: length"),
        (TaskEnded("failed", "", Tokens(), "No such model."), "failed: No such model."),
        (TaskEnded("failed", "", Tokens()), "failed: for an unknown reason"),
    ],
)
def test_an_end_that_is_not_the_usual_one_is_said(ended: TaskEnded, line: str) -> None:
    watched = Watched().show(TextDelta("So"), *started(), ended).close()
    assert watched.lines == ["So", line, NOTHING_USED]


def test_the_sums_are_those_of_the_session_with_the_limits() -> None:
    limits = (
        RateLimit("codex", Window(42.0, 300.0), Window(7.5, 10080.0)),
        RateLimit("other", Window(1.0, 45.0)),
        RateLimit("bare", None, Window(99.0)),
    )
    watched = Watched(columns=120).show(
        TextDelta("Hi."),
        UsageUpdated(Tokens(10, 5), Tokens(10, 5)),
        UsageUpdated(Tokens(1, 1), Tokens(1234567, 890, cached=1000)),
        LimitsUpdated(limits),
        DONE,
    )
    assert watched.lines == [
        "Hi.",
        "1,234,567 tokens in (1,000 cached), 890 out"
        " · codex 5 h: 42% · codex 7 d: 7.5% · other 45 min: 1% · bare limit: 99%",
    ]


def test_the_sums_of_a_session_that_goes_on_say_so_even_if_nothing_is_added() -> None:
    watched = Watched()
    watched.view.resume(Tokens(1234, 56))
    watched.show(TaskEnded("failed", "", Tokens(), "no"))
    assert watched.lines[1] == "1,234 tokens in (0 cached), 56 out in the whole session"


@pytest.mark.parametrize("said", ["", "\n\n"])
def test_an_empty_answer_is_said(said: str) -> None:
    events = (TurnStarted(1), TextDelta("I look."), *called(), TurnStarted(2), TextDelta(said), DONE)
    assert Watched().show(*events).close().lines[2:] == ["(no answer)", NOTHING_USED]
    assert in_file(TurnStarted(1), DONE) == f"(no answer)\n{NOTHING_USED}\n"


# Questions


def test_nothing_moves_while_a_question_is_asked() -> None:
    watched = Watched().show(TextDelta("May I?"), *started("0", "Read", '{"path":"a"}'), *started())
    with watched.asked("1"):
        asked = watched.lines
        assert asked == ["May I?"]
        assert watched.screen.has_cursor
        watched.later(5).view.console.print("allow?", end="")
        assert watched.lines == ["May I?", "allow?"]
        watched.view.console.print(" y")
    watched.later(0.5)
    assert [line[2:] for line in watched.lines[2:]] == ["Read a 5.5 s", "Bash sleep 1 0.5 s"]
    assert not watched.screen.has_cursor


def test_a_call_that_waits_for_an_answer_has_a_mark_until_it_comes() -> None:
    watched = Watched().show(*started(), ApprovalAsked("1", "Bash", BASH)).later(1)
    assert watched.lines == ["? Bash sleep 1"]
    with watched.asked("1"):
        pass
    assert watched.later(1).lines[0][2:] == "Bash sleep 1 1.0 s"


def test_a_question_of_which_one_hears_after_its_answer_is_answered() -> None:
    watched = Watched()
    with watched.asked("1"):
        watched.now += 10
    assert watched.show(*started(), ApprovalAsked("1", "Bash", BASH)).later(1).lines[0][2:] == "Bash sleep 1 1.0 s"


def test_a_view_that_was_closed_while_it_asked_stays_closed() -> None:
    watched = Watched().show(*started())
    with watched.asked("1"):
        watched.close()
    assert watched.later(1).lines == []
    assert watched.screen.has_cursor


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (BASH, ["  command: sleep 1"]),
        ('{"path":"a.py","content":"if x:\\n\\ty\\n"}', ["  path: a.py", "  content:", "    if x:", "          y"]),
        ("*** Begin Patch\n+x", ["  *** Begin Patch", "  +x"]),
        ("{}", ["  "]),
        ('{"command":"rm x\\u001b[8m\\u202e"}', ["  command: rm x\\u001b[8m\\u202e"]),
        ("ls\r\x1b[2K\x9bA\u200b", ["  ls\\u000d\\u001b[2K\\u009bA\\u200b"]),
    ],
    ids=["one field", "several lines", "free text", "nothing", "escaped", "steering"],
)
def test_a_question_shows_all_of_the_call(arguments: str, lines: list[str]) -> None:
    assert rows(arguments) == lines


def rows(arguments: str, width: int = 80) -> list[str]:
    return [*rows_of(ToolCall("Bash", "1", FunctionPayload(arguments)), width)]


def command(text: str) -> str:
    return msgspec.json.encode({"command": text}).decode()


DISGUISES = {
    "letters as escapes": ('{"command":["\\u0072\\u006d","-rf"]}', '  command: ["rm","-rf"]'),
    "spaces in JSON": (f'{{"command":[{" " * 5000}"rm"]}}', '  command: ["rm"]'),
    "spaces": (command(f"ls{' ' * 5000}; rm x"), "  command: ls⟨5,000 spaces⟩; rm x"),
    "tabs": (command("ls" + "\t" * 500 + "; rm x"), "  command: ls⟨3,997 spaces⟩; rm x"),
    "wide spaces": (command("ls\u3000\u00a0; rm"), "  command: ls\\u3000\\u00a0; rm"),
    "empty lines": (command("rm x\n" + "\n" * 900 + "ls"), "  ⟨the same line 897 more times⟩"),
    "equal lines": (command("rm x\n" + "#\n" * 900 + "ls"), "  ⟨the same line 897 more times⟩"),
    "tags": (command("ls\U000e0072"), "  command: ls\\udb40\\udc72"),
    "a turned text": (command("ls \u2067x\u2069 \u202exr"), "  command: ls \\u2067x\\u2069 \\u202exr"),
    "a return": (command("rm x\rls  "), "  command: rm x\\u000dls  "),
    "a key of two lines": ('{"a\\ncommand: ls\\nb": "rm"}', '  "a\\ncommand: ls\\nb": rm'),
}


@pytest.mark.parametrize(("arguments", "row"), DISGUISES.values(), ids=DISGUISES)
def test_no_disguise_keeps_a_call_from_being_read(arguments: str, row: str) -> None:
    shown = rows(arguments)
    assert row in shown
    assert len(shown) < 10


@pytest.mark.parametrize("letter", ["x", "日", "e\u0301"])
def test_no_row_of_a_call_begins_where_a_question_does(letter: str) -> None:
    """Nothing in a call can pass for the end of its question, and the beginning of a harmless one."""
    fake = "allow? [y/N] n\nRead wants to run:\n  path: a"
    shown = rows(command(letter * 1000 + fake), 40)
    assert all(row.startswith("  ") and cell_len(row) <= 40 for row in shown)
    assert "".join(row.strip() for row in shown).count(letter) == 1000


def test_free_text_that_looks_like_arguments_is_shown_as_it_is() -> None:
    text = '{"a": "x", "a":   "y"}'
    assert [*rows_of(ToolCall("apply_patch", "1", CustomPayload(text)), 80)] == [f"  {text}"]


# Files


def test_a_file_gets_the_answer_without_what_steers_a_terminal() -> None:
    text = f"{LONG}\n\ttab \x1b[31mred\x1b[0m [bold] 日本語 \u202e\u2066\x9b\x07 می‌خواهم 👩‍💻\r\n"
    kept = f"{LONG}\n\ttab red [bold] 日本語  می‌خواهم 👩‍💻\n"
    assert in_file(TextDelta(text), DONE) == f"{kept}{NOTHING_USED}\n"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", in_file(*map(TextDelta, text), DONE))


def test_a_file_gets_a_line_for_every_call_and_nothing_that_moves() -> None:
    written = in_file(
        TaskStarted("s", "demo", "hi"),
        TurnStarted(1),
        TextDelta("I look."),
        *started(arguments=LONG),
        ToolOutput("1", f"{LONG}\n"),
        CallEnded("1", "Bash", LONG, True, 1.0),
        TextDelta("Done."),
        Noted("call_incomplete"),
        DONE,
    )
    first, call, *rest = written.splitlines()
    assert first == "I look."
    assert call.startswith("✗ Bash word0 word1")
    assert len(call) < 450
    assert rest == ["Done.", "· note: call_incomplete", NOTHING_USED]
    assert "\x1b" not in written


def test_a_terminal_that_cannot_move_its_cursor_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = io.StringIO()
    with View(LiveCanvas(Console(file=file, force_terminal=True, highlight=False))) as view:
        for event in (TextDelta("a\x1b[2Jb"), *called(), DONE):
            view.show(event)
    assert file.getvalue() == f"ab\n✓ Bash sleep 1 1.2 s · well done\n{NOTHING_USED}\n"


def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    events = (TextDelta("Hi."), *called(), *called(failed=True), Compacted(2, 1), DONE)
    assert Watched().show(*started()).later(1).show(*events).close().screen.colours == {"31", "32", "33", "36"}
    monkeypatch.setenv("NO_COLOR", "1")
    watched = Watched().show(*events).close()
    assert watched.screen.colours == set()
    assert watched.lines[1] == "✓ Bash sleep 1 1.2 s · well done"


# Questions


class Answers:
    """Somebody who answers questions, and is counted."""

    def __init__(self, *answers: str) -> None:
        self._answers = [*answers]
        self.asked = 0

    async def __call__(self, question: str) -> str:
        self.asked += 1
        return self._answers.pop(0)


def test_a_tool_that_is_always_allowed_is_asked_about_where_it_wants_more(tmp_path: Path) -> None:
    answers = Answers("a", "n")
    canvas = LiveCanvas(Console(file=io.StringIO()))
    canvas.ask = answers
    questions = Questions(View(canvas), lambda: tmp_path, lambda: None)

    async def ask(**arguments: str) -> bool | str:
        given = json.dumps({"command": "pwd", **arguments})
        return await questions.ask(bash, ToolCall("Bash", "c1", FunctionPayload(given)))

    async def main() -> list[bool | str]:
        return [await ask(), await ask(), await ask(cwd="."), await ask(cwd="/"), await ask(cwd=str(tmp_path))]

    assert asyncio.run(main()) == [True, True, True, "", True]
    assert answers.asked == 2


def test_an_edit_that_does_not_fit_the_file_fails_without_a_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    answers = Answers()
    canvas = LiveCanvas(Console(file=io.StringIO()))
    canvas.ask = answers
    questions = Questions(View(canvas), lambda: tmp_path, lambda: None)
    given = json.dumps({"path": "a.txt", "old": "two", "new": "three"})
    with pytest.raises(ToolError, match=r"old was not found in a\.txt"):
        asyncio.run(questions.ask(edit, ToolCall("Edit", "c1", FunctionPayload(given))))
    assert not answers.asked
