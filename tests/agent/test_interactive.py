"""`toolwire run` without a prompt: an interactive session in a real terminal."""

import re
from pathlib import Path

from tests.agent.terminal import PROGRAM, environment
from tests.agent.typed import TypedTerminal
from toolwire.agent.history import user_message
from toolwire.agent.session import Session, list_sessions
from toolwire.agent.terminal.input_line import MIN_ANSWER_SECONDS

ASK = "allow? [y]es / [a]lways for"


def session(folder: Path, *args: str) -> TypedTerminal:
    terminal = TypedTerminal((*PROGRAM, "run", *args), environment(folder), folder)
    terminal.until("/help")
    terminal.until(lambda: any(line.startswith(">") for line in terminal.lines))  # the input line
    return terminal


def answer(terminal: TypedTerminal, line: str) -> None:
    """Answer a question, not too hastily."""
    terminal.until(ASK)
    terminal.look(MIN_ANSWER_SECONDS + 0.2)
    terminal.enter(line)


def prompts(folder: Path) -> list[str]:
    return [each.prompt for each in list_sessions(folder / "state/toolwire/sessions")]


def test_prompts_are_edited_answered_in_markdown_and_the_session_is_resumed(tmp_path: Path) -> None:
    with session(tmp_path, "--tools", "none") as terminal:
        terminal.type("Hello *thre*\x1b[D\x7f\x7f")  # left, and backspace twice
        terminal.type("ere")
        terminal.until("Hello *there*")
        terminal.type("\r")
        terminal.until("You said: Hello there")
        terminal.paste("first line\nsecond line")
        terminal.until("second line")
        assert terminal.text.count("You said") == 1, "pasted lines are not sent"
        terminal.type("\r")
        terminal.until("You said: first line")
        terminal.type("\x04")
        assert terminal.end() == 0
        assert terminal.is_as_before
    assert re.search(r"run --resume \d{8}-\d{6}-[0-9a-f]{6}$", "".join(terminal.lines[-2:]))
    assert prompts(tmp_path) == ["Hello *there*"]
    with session(tmp_path, "--tools", "none", "--continue") as terminal:
        terminal.until("You said: first line")
        terminal.until("in the whole session")
        terminal.type("\x1b[A")  # the arrow key goes through the prompts of earlier sessions
        terminal.until(lambda: terminal.text.count("second line") > 2)
        terminal.type("\x03")
        terminal.enter("/exit")
        assert terminal.end() == 0


def test_approval_for_a_tool_a_queue_and_ctrl_c_that_ends_the_task_alone(tmp_path: Path) -> None:
    with session(tmp_path, "--tools", "bash") as terminal:
        terminal.enter("Run the bash command `echo one > mark`")
        answer(terminal, "no, use another file")
        terminal.until("refused: use another file")
        assert not (tmp_path / "mark").exists()
        terminal.enter("Run the bash command `echo two > mark`")
        answer(terminal, "a")
        terminal.until("✓ Bash echo two > mark")
        terminal.enter("Run the bash command `sleep 300`")
        terminal.until("Bash sleep 300 ")
        terminal.enter("Say something else")
        terminal.until("queued: Say something else")
        terminal.type("\x03")
        terminal.until("stopped: cancelled")
        terminal.until(lambda: terminal.lines[-2] == "> Say something else")  # back in the input line
        terminal.type("\r")
        terminal.until(lambda: "queued" not in terminal.text and terminal.text.count("Say something else") > 1)
        terminal.type("\x04")
        assert terminal.end() == 0
    assert (tmp_path / "mark").read_text() == "two\n"


def test_an_edit_is_shown_as_a_diff_before_it_is_approved(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    with session(tmp_path, "--tools", "write") as terminal:
        terminal.enter("Write the file `a.txt`")
        terminal.until(ASK)
        assert "a.txt (changed)" in terminal.text
        assert terminal.colours_of("-old") == {"red"}
        assert terminal.colours_of("+Write") == {"green"}
        answer(terminal, "y")
        terminal.until("✓ Write a.txt")
    assert (tmp_path / "a.txt").read_text() == "Write the file `a.txt`"


def test_commands_and_files_are_completed(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("remember the milk\n")
    with session(tmp_path, "--tools", "none") as terminal:
        terminal.type("/to")
        terminal.until("show the tools")
        terminal.type("ols\r")
        terminal.until("there are no tools")
        terminal.type("What is in @no")
        terminal.until("notes.md")
        terminal.type("\t")
        terminal.until("in @notes.md")
        terminal.type("\r\r")
        terminal.until("remember the milk")
        terminal.enter("/model demo-slow")
        terminal.until("the model is demo-slow now")
        terminal.enter("/nonsense")
        terminal.until("there is no command /nonsense")
        terminal.enter("/compact")
        terminal.until("the conversation was summarised")
        terminal.enter("/mcp")
        terminal.until("there are no MCP servers")


def test_another_model_gets_the_tools_of_its_family(tmp_path: Path) -> None:
    own = tmp_path / ".config/toolwire/toolwire.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[[backends]]\nname = "up"\nkind = "chat"\nbase_url = "http://127.0.0.1:9/v1"\nmodels = ["gpt-5"]\n')
    with session(tmp_path) as terminal:
        terminal.enter("/tools")
        terminal.until("view_image")
        assert "Grep" in terminal.text
        assert "apply_patch" not in terminal.text
        terminal.enter("/model gpt-5")
        terminal.until("the model is gpt-5 now")
        terminal.enter("/tools")
        terminal.until("update_plan")
        assert terminal.text.count("Grep") == 1


def test_changes_are_shown_and_taken_back_and_the_model_is_told(tmp_path: Path) -> None:
    with session(tmp_path, "--tools", "write", "--approve", "never") as terminal:
        terminal.enter("/undo")
        terminal.until("there is nothing to take back")
        terminal.enter("Write the file `a.txt`")
        terminal.until("✓ Write a.txt")
        terminal.enter("/diff")
        terminal.until("changes by commands are not included")
        assert "  a.txt (new file)" in terminal.lines
        assert terminal.colours_of("+Write the file") == {"green"}
        terminal.enter("/status")
        terminal.until("always allowed")
        rows = [line for line in terminal.lines if line.startswith(("model", "backend", "context", "approval"))]
        assert [" ".join(row.split()) for row in rows][:2] == ["model demo", "backend demo (demo)"]
        assert "tokens" in rows[2]
        assert "no call is asked about" in rows[3]
        terminal.enter("/undo")
        terminal.until("taken back: a.txt")
        assert not (tmp_path / "a.txt").exists()
        terminal.enter("/diff")
        terminal.until("the file tools have changed nothing")
    (path,) = (tmp_path / "state/toolwire/sessions").glob("*.jsonl")
    assert "I have taken back your last changes to these files: a.txt" in path.read_text()


def test_what_is_typed_during_the_start_is_sent_and_a_fast_tab_completes(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("remember the milk\n")
    with TypedTerminal((*PROGRAM, "run", "--tools", "none"), environment(tmp_path), tmp_path) as terminal:
        terminal.type("Hello there\n")  # as the terminal makes it of Enter, until the program reads keys
        terminal.until("You said: Hello there")
        terminal.type("What is in @no\t")  # at once
        terminal.until("in @notes.md")
        terminal.type("and @missing.md?\r\r")
        terminal.until("there is no such file, so this stays a word: @missing.md?")
        terminal.until("remember the milk")
        terminal.type("/")
        terminal.until("begin a new session")
        assert any(line.startswith("demo · ") for line in terminal.screen.display), "the status line is seen"
        assert terminal.lines[-1].startswith("demo · ")


def test_a_session_whose_model_is_unavailable_continues_with_the_current_one(tmp_path: Path) -> None:
    settings = tmp_path / "keyless.toml"
    settings.write_text('[[backends]]\npreset = "xai"\napi_key_env = "NO_SUCH_KEY"\nmodels = ["far"]\n')
    earlier = Session.begin("far", tmp_path, tmp_path / "state/toolwire/sessions")
    earlier.add([user_message("Long ago")])
    earlier.close()
    with session(tmp_path, "--tools", "none", "--config", str(settings)) as terminal:
        terminal.enter("/resume 1")
        terminal.until("Backend `xai` is unavailable: NO_SUCH_KEY is not set")
        terminal.until("The session continues with demo.")
        terminal.enter("Hello there")
        terminal.until("You said: Hello there")
