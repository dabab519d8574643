"""Sessions on disk: what is written, what is read back, and what is left of one whose process was killed."""

import asyncio
import os
import stat
from pathlib import Path

import msgspec
import pytest

from tests.agent.stage import (
    Far,
    Held,
    Watcher,
    agent_on,
    assert_paired,
    assert_whole,
    echo,
    end_of,
    ended,
    play,
    runner_on,
    settle,
    streams,
    turn,
    types_of,
    which,
    worked,
)
from tests.agent.test_files import ordinary_user
from tests.support.frames import created
from tests.support.frames import text as said
from tests.support.scripts import Calls, Says, Thinks
from tests.support.upstream import Hold
from toolwire.agent import AgentConfig, Session, SessionError, Tokens
from toolwire.agent.events import TextDelta, ToolStarted, UsageUpdated
from toolwire.agent.history import History, MessageItem, OutputItem, ToolCallItem, read_item, read_items, user_message
from toolwire.agent.session import folder, new_id

HERE = Path("/somewhere")


def begun(kept_in: Path) -> Session:
    return Session.begin("up/m", HERE, kept_in)


def path_of(session: Session, kept_in: Path) -> Path:
    return kept_in / f"{session.id}.jsonl"


def lines_of(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def call_raw(id: str) -> bytes:
    return b'{"type":"function_call","call_id":"%b","name":"look","arguments":"{}"}' % id.encode()


def output_raw(id: str) -> bytes:
    return b'{"type":"function_call_output","call_id":"%b","output":"saw"}' % id.encode()


# What is written


def test_a_session_begins_with_a_line_that_says_what_it_is(tmp_path: Path) -> None:
    session = begun(tmp_path)
    [head] = lines_of(path_of(session, tmp_path))
    assert (head["toolwire_session"], head["id"], head["model"], head["cwd"]) == (1, session.id, "up/m", str(HERE))


def test_every_id_is_its_own_and_can_be_a_file(tmp_path: Path) -> None:
    ids = {new_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(each.replace("-", "").isalnum() for each in ids)


def test_a_session_is_readable_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        session = begun(tmp_path / "deep" / "sessions")
        session.add([user_message("hi")])
    finally:
        os.umask(before)
    path = path_of(session, tmp_path / "deep" / "sessions")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_session_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = Session.begin("m", tmp_path, None)
    session.add([user_message("hi")])
    session.spend(Tokens(1, 1))
    assert list(tmp_path.iterdir()) == []


def test_nothing_added_is_nothing_written(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.add([])
    assert len(lines_of(path_of(session, tmp_path))) == 1


def test_where_sessions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folder() == tmp_path / "toolwire" / "sessions"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / ".local" / "state" / "toolwire" / "sessions"


# What is read back


def test_a_session_comes_back_as_it_was(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.add([user_message("look", ("data:image/png;base64,AA==",))])
    session.add(read_items([call_raw("c1"), output_raw("c1")]))
    session.spend(Tokens(5, 3, cached=1))
    session.spend(Tokens(1, 1))
    again = Session.resume(session.id, tmp_path)
    assert again.history.items == session.history.items
    assert (again.id, again.model, again.usage) == (session.id, "up/m", Tokens(6, 4, cached=1))


def test_items_come_back_byte_for_byte(tmp_path: Path) -> None:
    raw = '{"type":"later", "Zahl": 1.10, "text":"é\\u00e9 \\n", "deep":[{"a" :null}]}'.encode()
    session = begun(tmp_path)
    session.add([read_item(raw)])
    [item] = Session.resume(session.id, tmp_path).history.items
    assert bytes(item.raw) == raw


def test_a_history_in_place_of_another_counts(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.add([user_message("one"), user_message("two")])
    session.replace([user_message("short")])
    session.add([user_message("three")])
    again = Session.resume(session.id, tmp_path)
    assert [item.text for item in again.history.items if isinstance(item, MessageItem)] == ["short", "three"]


def test_a_session_is_resumed_more_than_once(tmp_path: Path) -> None:
    id = begun(tmp_path).id
    for number in range(3):
        Session.resume(id, tmp_path).add([user_message(str(number))])
    assert len(Session.resume(id, tmp_path).history) == 3


@pytest.mark.parametrize("id", ["", "nothing", "../x", "/etc/passwd", "a/b", "x" * 65, "a.b", "\x00"], ids=repr)
def test_an_id_that_is_not_there_is_an_error(id: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x.jsonl").write_text('{"toolwire_session":1,"id":"x"}\n')
    with pytest.raises(SessionError):
        Session.resume(id, tmp_path / "in")


@pytest.mark.parametrize("content", [b"", b"\n", b"not json\n", b"[]\n", b'{"id":"x"}\n', b"\xff\xfe\n"], ids=repr)
def test_a_file_that_is_no_session_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(SessionError):
        Session.resume("x", tmp_path)


def test_a_session_in_a_newer_format_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    newer = HEAD.replace(b":1,", b":2,") + HI
    (tmp_path / "x.jsonl").write_bytes(newer)
    with pytest.raises(SessionError, match="the session 'x' has the format 2, and this version of Toolwire reads only"):
        Session.resume("x", tmp_path)
    assert (tmp_path / "x.jsonl").read_bytes() == newer


HEAD = b'{"toolwire_session":1,"id":"x","model":"up/m"}\n'
HI = b'{"items":[{"type":"message","role":"user","content":"hi"}]}\n'
ODD_LINES: dict[str, bytes] = {
    "an empty line": b"\n",
    "no json": b"what?\n",
    "bytes that are no text": b'{"items":[\xff]}\n',
    "fields of a later version": b'{"later":1}\n',
    "no items": b'{"items":[]}\n',
    "items that are none": b'{"items":7}\n',
}


@pytest.mark.parametrize("line", ODD_LINES.values(), ids=ODD_LINES)
def test_a_line_that_is_not_understood_is_left_out(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(HEAD + HI + line + HI)
    assert len(Session.resume("x", tmp_path).history) == 2


@pytest.mark.parametrize("item", [b'"x"', b"7", b"null", b'{"type":7}', b"[]"], ids=repr)
def test_an_item_that_is_none_does_not_lose_the_session(item: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(HEAD + HI + b'{"items":[%b]}\n' % item + HI)
    session = Session.resume("x", tmp_path)
    assert sum(isinstance(each, MessageItem) for each in session.history.items) == 2


# What a killed process leaves


CUTS = range(1, len(HI))


def test_a_last_line_that_was_cut_anywhere_is_left_out(tmp_path: Path) -> None:
    for cut in CUTS:
        (tmp_path / "x.jsonl").write_bytes(HEAD + HI + HI[:cut])
        there = len(Session.resume("x", tmp_path).history)
        assert there == (2 if cut == len(HI) - 1 else 1), cut


def test_what_is_added_behind_a_line_that_was_cut_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(HEAD + HI + HI[:20])
    Session.resume("x", tmp_path).add([user_message("more")])
    items = Session.resume("x", tmp_path).history.items
    assert [item.text for item in items if isinstance(item, MessageItem)] == ["hi", "more"]


def test_calls_that_are_closed_behind_a_line_that_was_cut_stay_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(HEAD + b'{"items":[%b]}\n' % call_raw("c1") + HI[:20])
    Session.resume("x", tmp_path)
    size = path.stat().st_size
    assert_whole(Session.resume("x", tmp_path).history)
    assert path.stat().st_size == size, "it is written once"


def closed(*raw: bytes) -> list[str]:
    """A history with every call closed, in short: calls and outputs by id, messages by role."""
    history = History(read_items(raw))
    history.close_calls()
    assert_closed(history)
    return [
        f"={item.call_id}"
        if isinstance(item, OutputItem)
        else item.call.call_id
        if isinstance(item, ToolCallItem)
        else getattr(item, "role", "?")
        for item in history.items
    ]


def assert_closed(history: History) -> None:
    assert history.close_calls() == []


USER = b'{"type":"message","role":"user","content":"hi"}'
SAYS = b'{"type":"message","role":"assistant","content":[]}'
CUSTOM = b'{"type":"custom_tool_call","call_id":"p1","name":"apply_patch","input":"x"}'
SHELL = b'{"type":"local_shell_call","id":"ls_1","call_id":"s1","status":"completed","action":{"type":"exec","command":["ls"]}}'
CLOSED: dict[str, tuple[list[bytes], list[str]]] = {
    "nothing open": ([USER, call_raw("a"), output_raw("a"), SAYS], ["user", "a", "=a", "assistant"]),
    "one open": ([USER, call_raw("a")], ["user", "a", "=a"]),
    "two open": ([call_raw("a"), call_raw("b")], ["a", "b", "=a", "=b"]),
    "one of two open": ([call_raw("a"), call_raw("b"), output_raw("a")], ["a", "b", "=a", "=b"]),
    "open before a message": ([call_raw("a"), USER, SAYS], ["a", "=a", "user", "assistant"]),
    "a custom call": ([CUSTOM, USER], ["p1", "=p1", "user"]),
    "a shell call": ([SHELL, USER], ["s1", "=s1", "user"]),
    "nothing at all": ([], []),
}


@pytest.mark.parametrize(("raw", "expected"), CLOSED.values(), ids=CLOSED)
def test_calls_without_a_result_get_one_behind_their_batch(raw: list[bytes], expected: list[str]) -> None:
    assert closed(*raw) == expected


def test_an_id_that_is_used_again_is_open_again() -> None:
    history = History(read_items([call_raw("a"), output_raw("a"), USER, call_raw("a")]))
    assert [each.call_id for each in history.close_calls()] == ["a"]


def test_the_second_call_with_an_id_gets_its_own_result() -> None:
    assert closed(call_raw("a"), output_raw("a"), USER, call_raw("a")) == ["a", "=a", "user", "a", "=a"]


def test_a_call_that_is_closed_is_aborted_in_the_form_of_its_kind() -> None:
    history = History(read_items([call_raw("a"), CUSTOM, SHELL]))
    made = [msgspec.json.decode(item.raw) for item in history.close_calls()]
    assert [each["type"] for each in made] == [
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
    ]
    assert {each["output"] for each in made} == {"aborted"}


def test_calls_that_nobody_ended_are_aborted_when_a_session_is_resumed_and_stay_so(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(HEAD + b'{"items":[%b,%b]}\n' % (USER, call_raw("a")))
    for _ in range(2):
        session = Session.resume("x", tmp_path)
        assert_whole(session.history)
        assert session.history.items[-1] == read_item(session.history.items[-1].raw)
        session.close()
    assert len(lines_of(tmp_path / "x.jsonl")) == 3, "it is written once"


def test_the_tail_begins_with_the_last_message_of_the_user() -> None:
    history = History(read_items([USER, SAYS, USER, call_raw("a"), output_raw("a")]))
    assert len(history.tail()) == 3
    assert History(read_items([SAYS])).tail() == []


# With an agent


def test_a_resumed_session_goes_on_where_it_ended(tmp_path: Path) -> None:
    async def main() -> None:
        replies = [turn(Thinks("hm", "SEAL"), Calls("c1", "look")), turn(Says("seen")), turn(Says("again"))]
        async with Far(*replies) as far:
            session = begun(tmp_path)
            await worked(agent_on(far, echo(), session=session), "first")
            resumed = Session.resume(session.id, tmp_path)
            agent = agent_on(far, echo(), session=resumed)
            events = await worked(agent, "second")
            assert ended(events).text == "again"
            assert agent.session.usage == Tokens(30, 18)
            sent = far.inputs[2]
            assert types_of(sent) == [
                "message",
                "reasoning",
                "function_call",
                "function_call_output",
                "message",
                "message",
            ]
            assert sent[:4] == far.inputs[1]
            assert sent[1]["encrypted_content"] == "SEAL"
            assert sent[-1]["content"][0]["text"] == "second"
            assert Session.resume(session.id, tmp_path).history.items == agent.session.history.items

    play(main())


def kill(session: Session, kept_in: Path, to: Path) -> Session:
    """What there is when the process is killed here: the file as it is now."""
    to.mkdir()
    (to / f"{session.id}.jsonl").write_bytes(path_of(session, kept_in).read_bytes())
    return Session.resume(session.id, to)


@pytest.mark.parametrize("streaming", [True, False], ids=["while it streams", "after the stream"])
def test_a_process_killed_while_tools_run_remembers_the_calls(streaming: bool, tmp_path: Path) -> None:
    async def main() -> None:
        held = Held(parallel=True)
        calls = (Calls("c1", "work", which("a")), Calls("c2", "work", which("b")))
        end = [Hold()] if streaming else []
        reply = turn(Says("I look"), *calls, end="cut") if streaming else turn(Says("I look"), *calls)
        async with Far(streams(*reply.steps, *end), turn(Says("ok"))) as far:
            session = begun(tmp_path / "kept")
            async with agent_on(far, held.tool, session=session) as agent, Watcher(agent) as watcher:
                for name in "ab":
                    await held.began(name).wait()
                if not streaming:
                    await watcher.sees(UsageUpdated)
                    await settle()
                left = kill(session, tmp_path / "kept", tmp_path / "killed")
                agent.cancel()
                await watcher.end()
            assert_whole(left.history)
            assert [item.text for item in left.history.items if isinstance(item, OutputItem)] == ["aborted", "aborted"]

    play(main())


def test_a_process_killed_in_the_middle_of_a_text_has_the_prompt(tmp_path: Path) -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hal"), Hold()), turn(Says("whole"))) as far:
            session = begun(tmp_path / "kept")
            async with agent_on(far, session=session) as agent, Watcher(agent) as watcher:
                await watcher.sees(TextDelta)
                left = kill(session, tmp_path / "kept", tmp_path / "killed")
                agent.cancel()
                await watcher.end()
            assert ended(await worked(agent_on(far, session=left), "go on")).text == "whole"
            assert types_of(far.inputs[1]) == ["message", "message"]

    play(main())


def test_a_cancelled_task_leaves_a_session_that_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        held = Held()
        hanging = streams(*turn(Calls("c1", "work"), end="cut").steps, Hold())
        async with Far(hanging, turn(Says("ok"))) as far:
            session = begun(tmp_path)
            async with agent_on(far, held.tool, session=session) as agent, Watcher(agent) as watcher:
                await held.began().wait()
                agent.cancel()
                await watcher.end()
            resumed = Session.resume(session.id, tmp_path)
            assert_whole(resumed.history)
            assert ended(await worked(agent_on(far, session=resumed), "go on")).text == "ok"
            assert_paired(far.inputs[1])

    play(main())


def test_a_compaction_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        replies = [turn(Calls("c1", "look")), turn(Says("All that was.")), turn(Says("done"))]
        async with Far(*replies) as far:
            session = begun(tmp_path)
            await worked(agent_on(far, echo(), session=session, config=AgentConfig(context_window=16)))
            again = Session.resume(session.id, tmp_path)
            assert [getattr(item, "type", type(item).__name__) for item in again.history.items] == [
                getattr(item, "type", type(item).__name__) for item in session.history.items
            ]
            assert again.history.raw == session.history.raw
            assert again.history.raw[0] == session.history.raw[0]
            assert "compaction" in types_of([msgspec.json.decode(raw) for raw in again.history.raw])

    play(main())


# What cannot be written


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match="the session cannot be stored in"):
        Session.begin("m", HERE, tmp_path / "file" / "sessions")
    with pytest.raises(SessionError):
        Session.resume("x", tmp_path / "file")


def test_a_folder_that_may_not_be_written_is_an_error(own_folder: Path) -> None:
    with ordinary_user():
        session = begun(own_folder)
        path_of(session, own_folder).chmod(0o400)
        with pytest.raises(SessionError):
            session.add([user_message("hi")])
        own_folder.chmod(0o500)
        try:
            with pytest.raises(SessionError):
                begun(own_folder)
        finally:
            own_folder.chmod(0o700)


def spoil(session: Session, kept_in: Path) -> None:
    """From here on the session cannot be written."""
    path_of(session, kept_in).unlink()
    path_of(session, kept_in).mkdir()


def test_a_prompt_that_cannot_be_kept_is_an_error_and_no_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with Far(turn(Says("hi"))) as far:
            session = begun(tmp_path)
            async with agent_on(far, session=session) as agent:
                spoil(session, tmp_path)
                with pytest.raises(SessionError):
                    await end_of(agent, "go")
            assert far.asked == []

    play(main())


def test_a_session_that_can_no_longer_be_written_ends_its_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hi"), *turn(Says("ho")).steps)) as far:
            session = begun(tmp_path)
            async with agent_on(far, session=session) as agent:
                spoiled = False
                events = []
                async for event in agent.stream("go"):
                    if not spoiled:
                        spoil(session, tmp_path)
                        spoiled = True
                    events.append(event)
            assert ended(events).reason == "failed"
            assert "the session cannot be stored" in ended(events).error

    play(main())


def test_a_session_that_can_no_longer_be_written_leaves_no_tool_running(tmp_path: Path) -> None:
    async def main() -> None:
        held, go = Held(), asyncio.Event()
        first, last = turn(Calls("c1", "work"), end="cut").steps, turn(Says("ho")).steps
        async with Far(streams(*first, go, *last)) as far:
            session = begun(tmp_path)
            async with agent_on(far, held.tool, session=session) as agent, Watcher(agent) as watcher:
                await watcher.sees(ToolStarted)
                spoil(session, tmp_path)
                go.set()
                assert (await watcher.end()).reason == "failed"
                await settle()
                assert held.log == ["begin ", "stop "]

    play(main())


def test_an_agent_without_a_session_of_its_own_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def main() -> None:
        async with Far(turn(Says("hi"))) as far:
            await worked(agent_on(far))

    play(main())
    assert list(tmp_path.iterdir()) == []


def test_a_session_in_use_is_not_resumed_by_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with Far(turn(Says("hi"))) as far:
            session = begun(tmp_path)
            async with agent_on(far, session=session) as agent:
                before = path_of(session, tmp_path).read_bytes()
                with pytest.raises(SessionError, match="is in use"):
                    Session.resume(session.id, tmp_path)
                assert path_of(session, tmp_path).read_bytes() == before
                await end_of(agent, "go")
            resumed = Session.resume(session.id, tmp_path)
            with pytest.raises(SessionError, match="is in use"):
                Session.resume(session.id, tmp_path)
            resumed.close()
            Session.resume(session.id, tmp_path)

    play(main())


def test_a_session_says_which_model_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with runner_on("demo", settings=Far().settings, session=Session.begin("demo", HERE, tmp_path)) as agent:
            await end_of(agent, "Hello")
        assert Session.resume(agent.session.id, tmp_path).model == "demo"

    play(main())
