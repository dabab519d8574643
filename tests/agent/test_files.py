"""Read, Write and Edit on real trees, and what they refuse."""

import asyncio
import os
import resource
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolwire.agent.tools import file_access, files
from toolwire.agent.tools.files import edit, read, write
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, ToolCall, ToolError
from toolwire.turns.tools.concurrency import run_to_completion
from toolwire.turns.tools.registry import Context, Tool

NOBODY = 65534


def within(folder: Path, *roots: Path, writable: bool = True) -> Context:
    return Context(folder, lambda text: None, writable=writable, roots=roots)


def run(tool: Tool, context: Context, **arguments: Any) -> str:
    payload = FunctionPayload(msgspec.json.encode(arguments).decode())
    return asyncio.run(tool.run(ToolCall(tool.name, "call_1", payload), context)).text


def refusal(tool: Tool, context: Context, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        run(tool, context, **arguments)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may do anything, so the tests of permissions are somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder that belongs to the ordinary user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
        for each in folder.rglob("*"):
            each.chmod(0o700)


# What the model is told of the tools


def test_reading_may_run_beside_others_and_writing_may_not():
    assert (read.parallel, read.writes) == (True, False)
    assert (write.parallel, write.writes, edit.parallel, edit.writes) == (False, True, False, True)


def test_every_argument_is_described():
    for tool in (read, write, edit):
        assert tool.parameters is not None
        schema = msgspec.json.decode(tool.parameters)
        assert all("description" in each for each in schema["properties"].values())
        assert schema["additionalProperties"] is False


def test_an_unknown_argument_is_named(tmp_path: Path):
    assert "file_path" in refusal(read, within(tmp_path), file_path="a")


def test_free_text_is_no_call_of_a_function(tmp_path: Path):
    with pytest.raises(ToolError, match="Read takes arguments"):
        asyncio.run(read.run(ToolCall("Read", "call_1", CustomPayload("a.txt")), within(tmp_path)))


# Where files may be


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "in/../../secret", "missing/../../secret", ".."])
def test_a_path_out_of_the_roots_is_refused_by_name(tmp_path: Path, path: str):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "work" / "in").mkdir(parents=True)
    context = within(tmp_path / "work")
    for tool, rest in ((read, {}), (write, {"content": "x"}), (edit, {"old": "s", "new": "x"})):
        assert refusal(tool, context, path=path, **rest).startswith(f"{path} is outside the folders that may be used")
    assert (tmp_path / "secret").read_text() == "s"


@pytest.mark.parametrize("path", ["link", "folder/secret", "folder/new", "dangling", "folder/new/deep"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, path: str):
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    (outside / "secret").write_text("s")
    (work / "link").symlink_to(outside / "secret")
    (work / "folder").symlink_to(outside)
    (work / "dangling").symlink_to(outside / "not-yet")
    assert "is outside" in refusal(write, within(work), path=path, content="x")
    assert "is outside" in refusal(read, within(work), path=path)
    assert names(outside) == ["secret"]
    assert (outside / "secret").read_text() == "s"


def test_a_link_within_the_roots_is_followed_and_stays(tmp_path: Path):
    (tmp_path / "real").write_text("one\n")
    (tmp_path / "link").symlink_to("real")
    run(edit, within(tmp_path), path="link", old="one", new="two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "two\n"


def test_a_working_directory_behind_a_link_is_no_escape(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run(write, within(tmp_path / "link"), path="a", content="x")
    assert (tmp_path / "real" / "a").read_text() == "x"


def test_roots_replace_the_working_directory(tmp_path: Path):
    for name in ("work", "one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    context = within(tmp_path / "work", tmp_path / "one", tmp_path / "two")
    assert run(read, context, path="../two/a") == "     1\ttwo"
    assert run(read, context, path=str(tmp_path / "one" / "a")) == "     1\tone"
    assert "is outside" in refusal(read, context, path="a")


def test_a_name_that_begins_like_a_root_is_not_inside(tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work-secret").write_text("s")
    assert "is outside" in refusal(read, within(tmp_path / "work"), path="../work-secret")


@pytest.mark.parametrize(("path", "message"), [("", "empty"), ("a\0b", "not a usable path"), ("x" * 300, "too long")])
def test_a_path_that_cannot_be_is_explained(tmp_path: Path, path: str, message: str):
    assert message in refusal(read, within(tmp_path), path=path)


def test_links_in_a_circle_are_explained(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "a" in refusal(read, within(tmp_path), path="a")


def test_a_link_put_in_the_place_of_a_file_is_not_followed(tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "work/a").write_text("x")
    context = within(tmp_path / "work")
    target = file_access.confine("a", context)
    (tmp_path / "work/a").unlink()
    (tmp_path / "work/a").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolError, match="a is a link that cannot be followed"):
        file_access.open_target(target, context)


def test_a_file_that_vanishes_is_missing(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    target = file_access.confine("a", within(tmp_path))
    target.path.unlink()
    with pytest.raises(ToolError, match="there is no a"):
        file_access.read_target(target, within(tmp_path))


# Read


def test_lines_are_numbered_like_cat(tmp_path: Path):
    (tmp_path / "a").write_text("one\n\ntwo\n")
    assert run(read, within(tmp_path), path="a") == "     1\tone\n     2\t\n     3\ttwo"


@pytest.mark.parametrize("text", ["one", "one\n"])
def test_a_last_line_needs_no_end(tmp_path: Path, text: str):
    (tmp_path / "a").write_text(text)
    assert run(read, within(tmp_path), path="a") == "     1\tone"


def test_line_endings_are_kept(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"one\r\ntwo\x0bthree\rfour\xe2\x80\xa8five\n")
    assert run(read, within(tmp_path), path="a") == "     1\tone\r\n     2\ttwo\x0bthree\rfour\u2028five"


def test_an_empty_file_says_so(tmp_path: Path):
    (tmp_path / "a").write_text("")
    assert run(read, within(tmp_path), path="a") == "(the file is empty)"


def test_a_part_of_a_file_says_where_it_goes_on(tmp_path: Path):
    (tmp_path / "a").write_text("".join(f"{number}\n" for number in range(1, 11)))
    shown = run(read, within(tmp_path), path="a", offset=3, limit=2)
    assert shown == "     3\t3\n     4\t4\n[lines 5 to 10 left out; continue with offset=5]"
    assert run(read, within(tmp_path), path="a", offset=5).endswith("    10\t10")


@pytest.mark.parametrize("text", ["1\n2\n", "1\n2"])
def test_a_part_behind_the_end_says_how_long_the_file_is(tmp_path: Path, text: str):
    (tmp_path / "a").write_text(text)
    assert run(read, within(tmp_path), path="a", offset=2) == "     2\t2"
    assert refusal(read, within(tmp_path), path="a", offset=3) == "a has only 2 lines"
    assert refusal(read, within(tmp_path), path="a", offset=99) == "a has only 2 lines"


@pytest.mark.parametrize("arguments", [{"offset": 0}, {"limit": 0}, {"offset": -3}])
def test_lines_are_counted_from_one(tmp_path: Path, arguments: dict[str, int]):
    (tmp_path / "a").write_text("x")
    assert "invalid arguments for Read" in refusal(read, within(tmp_path), path="a", **arguments)


def test_a_long_file_is_cut_at_2000_lines(tmp_path: Path):
    (tmp_path / "a").write_text("x\n" * 5001)
    shown = run(read, within(tmp_path), path="a")
    assert shown.count("\tx\n") == 2000
    assert shown.endswith("[lines 2001 to 5001 left out; continue with offset=2001]")


def test_a_wide_file_is_cut_before_the_line_that_does_not_fit(tmp_path: Path):
    (tmp_path / "a").write_text(("x" * 99_999 + "\n") * 5)
    shown = run(read, within(tmp_path), path="a")
    assert shown.endswith("x\n[lines 3 to 5 left out; continue with offset=3]")
    assert len(shown) < files.MAX_READ_BYTES


def test_a_line_that_never_fits_is_cut_between_letters(tmp_path: Path):
    (tmp_path / "a").write_text("x" + "é" * files.MAX_READ_BYTES)
    shown = run(read, within(tmp_path), path="a")
    assert "\ufffd" not in shown
    assert f"[line 1 is too long: cut here, {files.MAX_READ_BYTES + 2} bytes of the file left out" in shown


def read_bytes() -> int:
    """How many bytes this process has read so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path):
    with (tmp_path / "a").open("wb") as file:
        file.write(b"first\n" * 3000)
        file.seek(8 * 1024**3)
        file.write(b"\n")
    before = read_bytes()
    shown = run(read, within(tmp_path), path="a", limit=1)
    assert shown == f"     1\tfirst\n[{8 * 1024**3 + 1 - 6} bytes left out; continue with offset=2]"
    assert read_bytes() < before + 64 * 1024**2


def test_a_binary_file_is_not_shown(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"\x7fELF\0\0")
    assert refusal(read, within(tmp_path), path="a") == "a is a binary file (6 bytes)"


def test_bytes_that_are_no_text_are_shown_and_told(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"caf\xe9\n")
    assert (
        run(read, within(tmp_path), path="a") == "     1\tcaf\ufffd\n[some bytes are not UTF-8 and are shown as \ufffd]"
    )


def test_a_missing_file_names_similar_ones(tmp_path: Path):
    (tmp_path / "src").mkdir()
    for name in ("main.py", "Maine.py", "other.txt"):
        (tmp_path / "src" / name).write_text("")
    message = refusal(read, within(tmp_path), path="src/mian.py")
    assert message.startswith("there is no src/mian.py; similar: ")
    assert "src/main.py" in message
    assert "other" not in message


def test_a_missing_folder_names_similar_ones(tmp_path: Path):
    (tmp_path / "source").mkdir()
    assert refusal(read, within(tmp_path), path="sauce/a/b") == "there is no sauce/a/b; similar: source"


def test_nothing_similar_is_nothing_said(tmp_path: Path):
    assert refusal(read, within(tmp_path), path="a") == "there is no a"
    assert refusal(read, within(tmp_path / "gone"), path="b/c") == "there is no b/c"


def test_a_folder_is_no_file(tmp_path: Path):
    (tmp_path / "src").mkdir()
    assert refusal(read, within(tmp_path), path="src") == "src is a directory"
    assert refusal(write, within(tmp_path), path="src", content="") == "src is a directory"
    assert refusal(edit, within(tmp_path), path="src", old="a", new="b") == "src is a directory"


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    message = "a part of the path a/b is a file, not a directory"
    assert refusal(read, within(tmp_path), path="a/b") == message
    assert refusal(write, within(tmp_path), path="a/b", content="") == message


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(read, within(tmp_path), path="pipe") == "pipe is not a regular file"
    assert refusal(write, within(tmp_path), path="pipe", content="") == "pipe is not a regular file"


def test_names_of_all_languages_work(tmp_path: Path):
    name = "données/文件 – \U0001f642.txt"
    run(write, within(tmp_path), path=name, content="grüße\n")
    assert run(read, within(tmp_path), path=name) == "     1\tgrüße"
    assert "similar: données/文件" in refusal(read, within(tmp_path), path=name.replace(".txt", ".text"))


def test_what_may_not_be_read_is_told(own_folder: Path):
    with ordinary_user():
        (own_folder / "a").write_text("x")
        (own_folder / "a").chmod(0)
        assert refusal(read, within(own_folder), path="a") == "no permission for a"


# Write


def test_a_new_file_is_written_with_its_folders(tmp_path: Path):
    message = run(write, within(tmp_path), path="new/deep/a.txt", content="one\ntwo")
    assert message == "Wrote new/deep/a.txt (2 lines, 7 bytes)."
    assert (tmp_path / "new/deep/a.txt").read_bytes() == b"one\ntwo"
    assert names(tmp_path / "new/deep") == ["a.txt"]


@pytest.mark.parametrize(
    ("content", "message"), [("", "0 lines, 0 bytes"), ("é", "1 line, 2 bytes"), ("a\r\n", "1 line, 3 bytes")]
)
def test_content_is_written_as_it_is(tmp_path: Path, content: str, message: str):
    assert message in run(write, within(tmp_path), path="a", content=content)
    assert (tmp_path / "a").read_bytes() == content.encode()


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o751)
    assert run(write, within(tmp_path), path="a", content="new\n") == "Replaced a (1 line, 4 bytes)."
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o751


def test_a_new_file_has_the_usual_mode(tmp_path: Path):
    (tmp_path / "usual").touch()
    run(write, within(tmp_path), path="a", content="")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path):
    path = tmp_path / "a"
    contents = ["a" * 300_000, "b" * 300_000]
    path.write_text(contents[0])
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(path.read_text())

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(30):
        run(write, within(tmp_path), path="a", content=contents[number % 2])
    over.set()
    watcher.join()
    assert seen <= set(contents)


@pytest.mark.parametrize("tool", [write, edit])
def test_nothing_is_written_in_read_only_mode(tmp_path: Path, tool: Tool):
    (tmp_path / "a").write_text("old")
    arguments = {"content": "new"} if tool is write else {"old": "old", "new": "new"}
    context = within(tmp_path, writable=False)
    assert refusal(tool, context, path="a", **arguments) == f"read-only mode: {tool.name} may not change files"
    assert (tmp_path / "a").read_text() == "old"
    assert run(read, context, path="a") == "     1\told"


def test_what_may_not_be_written_is_left_alone(own_folder: Path):
    with ordinary_user():
        (own_folder / "a").write_text("old")
        (own_folder / "a").chmod(0o444)
        (own_folder / "shut").mkdir(mode=0o500)
        context = within(own_folder)
        assert refusal(write, context, path="a", content="new") == "a is write-protected"
        assert refusal(edit, context, path="a", old="old", new="new") == "a is write-protected"
        assert refusal(write, context, path="shut/b", content="") == "no permission for shut/b"
        assert refusal(write, context, path="shut/deep/b", content="") == "no permission for shut/deep/b"
        assert (own_folder / "a").read_text() == "old"
        assert names(own_folder) == ["a", "shut"]


def test_work_that_changes_files_ends_before_its_call_is_cancelled():
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go_on.wait(60)
        done.set()
        return "done"

    async def cancelled() -> str:
        task = asyncio.create_task(run_to_completion(work))
        await asyncio.to_thread(begun.wait, 60)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        return await task

    assert asyncio.run(cancelled()) == "done"
    assert done.is_set()


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Files cannot grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    (tmp_path / "a").write_text("old")
    with small_disk(1000):
        message = refusal(write, within(tmp_path), path="a", content="x" * 5000)
    assert message == "a: File too large"
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


# Edit


def test_the_one_passage_is_replaced(tmp_path: Path):
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    assert run(edit, within(tmp_path), path="a", old="two\nth", new="2\nTH") == "Edited a (1 replacement, at line 2)."
    assert (tmp_path / "a").read_text() == "one\n2\nTHree\n"


def test_several_matches_are_counted_and_nothing_is_done(tmp_path: Path):
    (tmp_path / "a").write_text("x\nx\nx\n")
    message = refusal(edit, within(tmp_path), path="a", old="x", new="y")
    assert message == "old occurs 3 times in a; include more of the text around it, or set all to true"
    assert (tmp_path / "a").read_text() == "x\nx\nx\n"


def test_matches_that_overlap_are_two(tmp_path: Path):
    (tmp_path / "a").write_text("ababa")
    assert "old occurs 2 times" in refusal(edit, within(tmp_path), path="a", old="aba", new="x")


def test_all_matches_are_replaced_if_asked(tmp_path: Path):
    (tmp_path / "a").write_text("x\ny\nx\n")
    message = run(edit, within(tmp_path), path="a", old="x", new="zz", all=True)
    assert message == "Edited a (2 replacements, first at line 1)."
    assert (tmp_path / "a").read_text() == "zz\ny\nzz\n"


def test_a_passage_that_is_not_there_is_refused(tmp_path: Path):
    (tmp_path / "a").write_text("one\n")
    assert refusal(edit, within(tmp_path), path="a", old="two", new="x") == "old was not found in a"


def test_other_white_space_is_pointed_at(tmp_path: Path):
    (tmp_path / "a").write_text("x\n\tif a:\n\t\tb\n")
    message = refusal(edit, within(tmp_path), path="a", old="if a:\n    b", new="x")
    assert message == "old was not found in a; at line 2 it occurs with other white space"
    assert refusal(edit, within(tmp_path), path="a", old="   ", new="x") == "old was not found in a"


def test_nothing_is_nowhere(tmp_path: Path):
    (tmp_path / "a").write_text("")
    assert refusal(edit, within(tmp_path), path="a", old="", new="x") == "old is empty; Write replaces a whole file"
    assert refusal(edit, within(tmp_path), path="a", old="x", new="x") == "old and new are the same"
    assert refusal(edit, within(tmp_path), path="a", old="x", new="y") == "old was not found in a"


def test_an_edit_of_a_missing_file_names_similar_ones(tmp_path: Path):
    (tmp_path / "main.py").write_text("")
    assert refusal(edit, within(tmp_path), path="main.pi", old="a", new="b") == "there is no main.pi; similar: main.py"


def test_a_binary_file_is_not_edited(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"a\0b")
    assert refusal(edit, within(tmp_path), path="a", old="a", new="x") == "a is a binary file"


def test_a_file_too_large_for_an_edit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_access, "MAX_FILE_BYTES", 10)
    (tmp_path / "a").write_text("x" * 11)
    assert refusal(edit, within(tmp_path), path="a", old="x", new="y") == "a is too large (11 bytes; at most 10)"


def test_bytes_that_are_no_text_survive_an_edit(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"caf\xe9 \xff one\n")
    run(edit, within(tmp_path), path="a", old="one", new="zwei é")
    assert (tmp_path / "a").read_bytes() == b"caf\xe9 \xff zwei \xc3\xa9\n"


def test_an_edited_file_keeps_its_mode(tmp_path: Path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "a").chmod(0o755)
    run(edit, within(tmp_path), path="a", old="one", new="two")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert names(tmp_path) == ["a"]


def test_a_file_that_somebody_else_changes_meanwhile_is_left_to_them(tmp_path: Path):
    target = file_access.confine("a", within(tmp_path))
    target.path.write_text("one")
    whole = file_access.read_target(target, within(tmp_path))
    whole.check_unchanged(target)
    target.path.write_text("longer")
    with pytest.raises(ToolError, match="a was changed by another process"):
        whole.check_unchanged(target)
    target.path.unlink()
    with pytest.raises(ToolError, match="a was changed by another process"):
        whole.check_unchanged(target)


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n"),
        ("a\r\nb\r\n", "b", "x\ny", "a\r\nx\r\ny\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "x\ny", "x\r\ny\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a\nb\r\nc\r\n", "b\nc", "x\ny", "a\nx\r\ny\r\n"),
        ("a\nb\nc\r\n", "a\nb", "x\ny", "x\ny\nc\r\n"),
        ("a\nb\n", "b", "x\r\ny", "a\nx\r\ny\n"),
    ],
)
def test_line_endings_are_those_of_the_file(tmp_path: Path, text: str, old: str, new: str, result: str):
    (tmp_path / "a").write_bytes(text.encode())
    run(edit, within(tmp_path), path="a", old=old, new=new)
    assert (tmp_path / "a").read_bytes() == result.encode()


SOME_TEXT = st.text(st.sampled_from("ab \né"), max_size=12)


@given(before=SOME_TEXT, old=SOME_TEXT, new=SOME_TEXT, after=SOME_TEXT, ending=st.sampled_from(["\n", "\r\n"]))
def test_an_edit_changes_the_passage_and_nothing_else(before: str, old: str, new: str, after: str, ending: str):
    text = before + old + after
    assume(old and old != new and text.find(old) == text.rfind(old))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(text.replace("\n", ending).encode())
        run(edit, within(Path(folder)), path="a", old=old, new=new)
        # A file without a line break does not say how it would end lines.
        ends = ending if "\n" in text else "\n"
        assert path.read_bytes() == (before + new + after).replace("\n", ends).encode()


@given(text=st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])), data=st.data())
def test_an_edit_can_be_taken_back(text: str, data: st.DataObject):
    assume(text)
    start = data.draw(st.integers(0, len(text) - 1))
    old = text[start : data.draw(st.integers(start + 1, len(text)))]
    new = data.draw(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), min_size=1))
    assume(old != new and text.find(old) == text.rfind(old))
    after = text.replace(old, new)
    assume(after.find(new) == after.rfind(new))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(text.encode())
        run(edit, within(Path(folder)), path="a", old=old, new=new)
        assert path.read_bytes() == after.encode()
        run(edit, within(Path(folder)), path="a", old=new, new=old)
        assert path.read_bytes() == text.encode()


@given(st.lists(st.text(st.sampled_from("ab\r é"), max_size=5), max_size=12), st.integers(1, 5), st.booleans())
def test_parts_of_a_file_give_the_whole(lines: list[str], limit: int, is_ended: bool):
    text = "\n".join(lines) + ("\n" if is_ended and lines else "")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_bytes(text.encode())
        seen: list[str] = []
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        for offset in range(1, count + 1, limit):
            shown = run(read, within(Path(folder)), path="a", offset=offset, limit=limit).split("\n[lines ")[0]
            seen += [line.partition("\t")[2] for line in shown.split("\n")]
    assert "\n".join(seen) == text.removesuffix("\n")
