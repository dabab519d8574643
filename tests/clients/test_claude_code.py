"""The real Claude Code on servers of every kind: it reads files, runs commands, thinks, and answers from what it found."""

import json
import struct
import zlib
from pathlib import Path

import pytest

from tests.clients.claude import Claude, Said, needs_claude
from tests.clients.histories import calls, history, parts, results, thoughts
from tests.clients.servers import KINDS, Breakdown, Json, Refusal, Thought, Turn, Use, Words
from tests.clients.stage import Stage
from tests.support.upstream import Asked

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
PROMPT = "Which bird is in note.txt?"
ANSWER = "It is the heron."
FOREIGN = {"field_dropped": 2, "value_changed": 1}
NOTES: dict[str, dict[str, int]] = {"responses": FOREIGN, "chat": FOREIGN, "messages": {}}
"""What must be noted of every turn: `context_management` and `cache_control` have a meaning for Messages servers only,
and the name of the user is shortened for the others."""


@pytest.fixture(scope="module", autouse=True)
def claude_is_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    needs_claude(tmp_path_factory.mktemp("home"))


class Run:
    """One run of the CLI, seen from both ends."""

    def __init__(
        self, stage: Stage, folder: Path, kind: str, name: str, *turns: Turn, options: tuple[str, ...] = ()
    ) -> None:
        self.kind, self.name = kind, f"{name}-{kind}"
        self.model = f"{kind}/{self.name}"
        stage.script(self.name, *turns)
        claude = Claude(folder, stage.gateway.url)
        (claude.folder / "note.txt").write_text("heron\n")
        (claude.folder / "dot.png").write_bytes(red_dot())
        self.said: Said = claude.run(self.model, PROMPT, *options)
        self.asked: list[Asked] = stage.upstream.of(self.name)
        self.notes = stage.notes(self.model, len(self.asked))


def red_dot() -> bytes:
    def chunk(type: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + type + data + struct.pack(">I", zlib.crc32(type + data))

    head, dot = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0), zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", dot) + chunk(b"IEND", b"")


def use(id: str, name: str, **arguments: str) -> Use:
    return Use(id, name, json.dumps(arguments))


READ = use("toolu_read", "Read", file_path="note.txt")
SHELL = use("toolu_shell", "Bash", command="cat note.txt", description="Shows the note")
FOUND = {"toolu_read": "1\theron\n2\t", "toolu_shell": "heron"}
"""What its tools make of the note."""


# A file is read


@pytest.fixture(scope="module", params=KINDS)
def reading(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Run:
    turns = [Words("Let me see."), READ], [Words(ANSWER)]
    return Run(stage, tmp_path_factory.mktemp("claude"), request.param, "reading", *turns)


def test_the_answer_comes_from_what_the_tool_found(reading: Run):
    assert (reading.said.answer, reading.said.code) == (ANSWER, 0)
    assert [block["text"] for block in reading.said.blocks("text")] == ["Let me see.", ANSWER]


def test_the_result_belongs_to_the_call(reading: Run):
    first, second = reading.asked
    assert (calls(first), results(first)) == ([], [])
    assert calls(second) == [("toolu_read", "Read", {"file_path": "note.txt"})]
    assert results(second) == [("toolu_read", FOUND["toolu_read"])]


def test_the_model_that_was_asked_for_is_asked_and_answers(reading: Run):
    assert {asked.body["model"] for asked in reading.asked} == {reading.name}
    assert {message["model"] for message in reading.said.messages("assistant")} == {reading.model}


def test_the_history_grows_at_its_end(reading: Run):
    first, second = (without_marks(asked) for asked in reading.asked)
    assert second[: len(first)] == first


def test_nothing_unexpected_is_noted(reading: Run):
    assert reading.notes == [NOTES[reading.kind]] * 2


def test_usage_arrives(reading: Run):
    usage = reading.said.end["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (24, 16, 10)


def without_marks(asked: Asked) -> list[Json]:
    """The history without the marks for the cache, which Claude Code moves along with the end."""
    return [unmarked(message) for message in history(asked)]


def unmarked(message: Json) -> Json:
    content = [{**part, "cache_control": None} for part in parts(message.get("content"))]
    if not content and "content" in message:
        content = [{"type": "text", "text": message["content"], "cache_control": None}]
    return {**message, "content": content}


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_the_user_is_named_as_shortly_as_openai_wants_it(stage: Stage, tmp_path: Path, kind: str):
    run = Run(stage, tmp_path, kind, "user", [Words(ANSWER)])
    assert 0 < len(run.asked[0].body["user"]) <= 64  # it has 150 letters


@EVERY_KIND
def test_the_effort_of_a_turn_reaches_every_server(stage: Stage, tmp_path: Path, kind: str):
    """A change of the effort is a system message without content behind what the user says."""
    name = f"claude-opus-5-5-effort-{kind}"
    stage.script(name, [Words("One.")], [Words("Two.")])
    claude = Claude(tmp_path, stage.gateway.url)
    for prompt, *options in (("Say one.", "--effort", "high"), ("Say two.", "--continue", "--effort", "low")):
        assert claude.run(f"{kind}/{name}", prompt, *options).code == 0
    first, second = stage.upstream.of(name)
    control = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    if kind == "messages":
        assert control in history(second)
        return
    efforts = [asked.body.get("reasoning_effort") or asked.body["reasoning"]["effort"] for asked in (first, second)]
    assert efforts == ["high", "low"]
    assert [message for message in history(second) if not message["content"]] == []
    assert {note for notes in stage.notes(f"{kind}/{name}", 2) for note in notes} <= {*FOREIGN}


def test_what_a_beta_allows_arrives_with_the_name_of_the_beta(stage: Stage, tmp_path: Path):
    [asked] = Run(stage, tmp_path, "messages", "beta", [Words(ANSWER)]).asked
    assert "context_management" in asked.body
    assert "context-management-2025-06-27" in asked.headers["anthropic-beta"]


# Other calls


@EVERY_KIND
def test_parallel_calls_are_run_and_answered_in_order(stage: Stage, tmp_path: Path, kind: str):
    run = Run(stage, tmp_path, kind, "parallel", [Words("Both."), READ, SHELL], [Words(ANSWER)])
    assert run.said.answer == ANSWER
    assert [id for id, _, _ in calls(run.asked[1])] == ["toolu_read", "toolu_shell"]
    assert results(run.asked[1]) == list(FOUND.items())
    assert run.notes == [NOTES[kind]] * 2


@EVERY_KIND
def test_a_failed_call_is_told_as_such(stage: Stage, tmp_path: Path, kind: str):
    run = Run(stage, tmp_path, kind, "failure", [use("toolu_1", "Read", file_path="no.txt")], [Words("There is none.")])
    [(id, text)] = results(run.asked[1])
    assert id == "toolu_1"
    assert "File does not exist" in text
    assert run.said.answer == "There is none."


@EVERY_KIND
def test_an_image_that_was_read_is_shown(stage: Stage, tmp_path: Path, kind: str):
    run = Run(stage, tmp_path, kind, "image", [use("toolu_1", "Read", file_path="dot.png")], [Words("It is red.")])
    after = history(run.asked[1])[len(history(run.asked[0])) :]
    assert "image/png" in str(after)
    assert run.notes == [NOTES[kind]] * 2


@EVERY_KIND
def test_a_tool_that_was_looked_up_is_named_and_can_be_called(stage: Stage, tmp_path: Path, kind: str):
    turns = [use("toolu_1", "ToolSearch", query="select:WebFetch")], [Words("There.")]
    first, second = Run(stage, tmp_path, kind, "lookup", *turns).asked
    [(id, content)] = results(second)
    assert id == "toolu_1"
    assert "WebFetch" not in str(first.body["tools"])
    assert "WebFetch" in str(second.body["tools"])
    assert "WebFetch" in str(content)
    assert kind == "messages" or isinstance(content, str) or content[0]["type"] == "input_text"


@EVERY_KIND
def test_an_answer_in_a_given_form_arrives(stage: Stage, tmp_path: Path, kind: str):
    form = {"type": "object", "properties": {"bird": {"type": "string"}}, "required": ["bird"]}
    turns = [use("toolu_1", "StructuredOutput", bird="heron")], [Words("Done.")]
    run = Run(stage, tmp_path, kind, "form", *turns, options=("--json-schema", json.dumps(form)))
    assert run.said.end["structured_output"] == {"bird": "heron"}


# ReasoningCache


def thinking(*thought: Thought) -> tuple[Turn, ...]:
    return [*thought, READ], [Words(ANSWER)]


@EVERY_KIND
def test_thoughts_are_shown(stage: Stage, tmp_path: Path, kind: str):
    said = Run(stage, tmp_path, kind, "thoughts", *thinking(Thought("I should look.", "signed=="))).said
    assert [block["thinking"] for block in said.blocks("thinking")] == ["I should look."]
    assert said.answer == ANSWER


def test_a_thought_comes_back_to_a_messages_server_as_it_was(stage: Stage, tmp_path: Path):
    turns = thinking(Thought("I should\n\nlook.", "signed=="), Thought("", "locked=="))
    run = Run(stage, tmp_path, "messages", "signed", *turns)
    assert history(run.asked[1])[2] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should\n\nlook.", "signature": "signed=="},
            {"type": "redacted_thinking", "data": "locked=="},
            {"type": "tool_use", "id": "toolu_read", "name": "Read", "input": {"file_path": "note.txt"}},
        ],
    }
    assert run.notes == [{}, {}]


@pytest.mark.parametrize(
    "summary", ["", "I should look.", "I should.\n\nI will."], ids=["no-summary", "one-part", "two-parts"]
)
def test_a_thought_comes_back_to_a_responses_server_as_it_was(stage: Stage, tmp_path: Path, summary: str):
    run = Run(stage, tmp_path, "responses", f"signed-{len(summary)}", *thinking(Thought(summary, "signed==")))
    parts = [{"type": "summary_text", "text": part} for part in summary.split("\n\n") if part]
    signed = {"type": "reasoning", "id": "rs_0", "summary": parts, "encrypted_content": "signed=="}
    assert thoughts(run.asked[1]) == [signed]
    order = ["reasoning", "function_call", "function_call_output"]
    assert [item["type"] for item in history(run.asked[1])[-3:]] == order
    assert run.notes == [NOTES["responses"]] * 2


def test_a_thought_comes_back_to_a_chat_server_that_wants_it(stage: Stage, tmp_path: Path):
    run = Run(stage, tmp_path, "thinker", "wanted", *thinking(Thought("I should look.")))
    assert thoughts(run.asked[1]) == ["I should look."]
    assert run.notes == [NOTES["chat"]] * 2


def test_a_thought_comes_back_to_a_chat_server_that_wrote_it(stage: Stage, tmp_path: Path):
    run = Run(stage, tmp_path, "chat", "its-own", *thinking(Thought("I should look.")))
    assert thoughts(run.asked[1]) == ["I should look."]
    assert run.notes == [NOTES["chat"]] * 2


# Failures


@EVERY_KIND
def test_a_rate_limit_is_waited_for(stage: Stage, tmp_path: Path, kind: str):
    limit = Refusal(429, "rate_limit_error", "Slow down.", {"retry-after": "1"})
    run = Run(stage, tmp_path, kind, "limit", limit, [Words(ANSWER)])
    [retry] = [event for event in run.said.events if event.get("subtype") == "api_retry"]
    assert (retry["error_status"], retry["error"], retry["retry_delay_ms"]) == (429, "rate_limit", 1000)
    assert run.said.answer == ANSWER


@EVERY_KIND
def test_a_turn_that_breaks_is_asked_for_again(stage: Stage, tmp_path: Path, kind: str):
    run = Run(stage, tmp_path, kind, "break", [Words("It is"), Breakdown("It broke.")], [Words(ANSWER)])
    assert (run.said.answer, len(run.asked)) == (ANSWER, 2)


@EVERY_KIND
def test_a_refusal_is_printed_in_the_words_of_the_server(stage: Stage, tmp_path: Path, kind: str):
    said = Run(stage, tmp_path, kind, "refused", Refusal(403, "permission_error", "Not for you.")).said
    assert (said.end["is_error"], said.end["api_error_status"], said.code) == (True, 403, 1)
    assert "Not for you." in said.answer


@EVERY_KIND
def test_the_answer_is_printed(stage: Stage, tmp_path: Path, kind: str):
    stage.script(f"printed-{kind}", [Words(ANSWER)])
    assert Claude(tmp_path, stage.gateway.url).printed(f"{kind}/printed-{kind}", "Which bird?") == f"{ANSWER}\n"
