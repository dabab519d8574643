"""apply_patch: the patches that Codex takes, with the same outcome, and all or nothing.

The cases say what must come out. Where the Codex CLI is installed, it is asked too, and must agree.
"""

import asyncio
import os
import stat
import tempfile
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.agent.test_files import names, ordinary_user, own_folder, small_disk
from toolwire.agent.tools.patch import PatchPlan, apply_patch
from toolwire.agent.tools.patch_format import GRAMMAR, parse
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, Payload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context

__all__ = ["own_folder"]

ABCD = "a\nb\nc\nd\n"
Files = dict[str, str]


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def update(*lines: str) -> str:
    return patch("*** Update File: f", *lines)


def put(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def got(folder: Path) -> Files:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in found}


def run(folder: Path, text: str, *, writable: bool = True) -> str:
    return run_payload(folder, CustomPayload(text), writable=writable)


def run_payload(folder: Path, payload: Payload, *, writable: bool = True) -> str:
    context = Context(folder, lambda text: None, writable=writable)
    return asyncio.run(apply_patch.run(ToolCall("apply_patch", "call_1", payload), context)).text


def refusal(folder: Path, text: str, **options: Any) -> str:
    with pytest.raises(ToolError) as caught:
        run(folder, text, **options)
    return str(caught.value)


# What the model is told of the tool


def test_the_tool_is_free_text_with_a_grammar():
    assert (apply_patch.name, apply_patch.kind, apply_patch.parameters) == ("apply_patch", "custom", None)
    assert apply_patch.format is not None
    assert msgspec.json.decode(apply_patch.format) == {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}
    assert len(GRAMMAR) == 578  # what a recorded Codex sends


def test_the_tool_runs_alone_and_writes():
    assert (apply_patch.parallel, apply_patch.writes) == (False, True)


# What becomes of patches. The third is what the file `f` holds afterwards, or all files.

DONE: dict[str, tuple[str | Files, str, str | Files]] = {
    "a line is replaced": (ABCD, update("@@", "-b", "+x"), "a\nx\nc\nd\n"),
    "a chunk needs no mark": (ABCD, update(" a", "-b", "+x", " c"), "a\nx\nc\nd\n"),
    "lines are added between others": (ABCD, update("@@", " b", "+x", "+y", " c"), "a\nb\nx\ny\nc\nd\n"),
    "lines are only removed": (ABCD, update("@@", "-b", "-c"), "a\nd\n"),
    "all lines are removed": (ABCD, update("@@", "-a", "-b", "-c", "-d"), ""),
    "a line names the place": ("a\nx\nb\nx\n", update("@@ b", "-x", "+y"), "a\nx\nb\ny\n"),
    "places follow each other": ("x\nx\nx\n", update("@@", "-x", "+1", "@@", "-x", "+2"), "1\n2\nx\n"),
    "an addition goes to the end": (ABCD, update("@@ b", "+x"), "a\nb\nc\nd\nx\n"),
    "additions keep their order": (ABCD, update("@@", "+x", "@@", "-a", "@@", "+y"), "b\nc\nd\nx\ny\n"),
    "an addition to nothing": ("", update("@@", "+x"), "x\n"),
    "the end of the file is the end": ("a\nb\na\nb\n", update("@@", "-b", "+x", "*** End of File"), "a\nb\na\nx\n"),
    "the end needs no line break": ("a\nb", update("@@", "-b", "+x", "*** End of File"), "a\nx\n"),
    "a line break is added at the end": ("a\nb", update("@@", "-a", "+x"), "x\nb\n"),
    "an empty line is a kept one": ("a\n\nb\n", update("@@", " a", "", "-b", "+x"), "a\n\nx\n"),
    "an empty line too much at the end": (ABCD, update("@@", "-d", "+x", ""), "a\nb\nc\nx\n"),
    "an empty line too much that is removed": (ABCD, update("@@", "-d", "-", "+x"), "a\nb\nc\nx\n"),
    "an empty line too much before a mark": (ABCD, update("@@", "-a", "+x", "", "@@", "-d", "+y"), "x\nb\nc\ny\n"),
    "an empty line too much before additions": (ABCD, update("@@", " d", " ", "+x"), "a\nb\nc\nd\n\nx\n"),
    "white space at the ends of lines": ("a \nb\t\n", update("@@", " a", "-b", "+x"), "a \nx\n"),
    "white space around lines": ("  a\n\tb\n", update("@@", " a", "-b", "+x"), "  a\nx\n"),
    "dashes": ("a\u2010\u2011\u2012\u2013\u2014\u2015\u2212\n", update("@@", "-a-------", "+x"), "x\n"),
    "quotes": ("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\n", update("@@", "-''''\"\"\"\"", "+x"), "x\n"),
    "spaces": ("a\u00a0\u2003\u3000b\n", update("@@", "-a   b", "+x"), "x\n"),
    "typography is kept where it stands": ("“a”\nb\n", update("@@", ' "a"', "-b", "+x"), "“a”\nx\n"),
    "an exact line comes before a similar one": (" a\na\n", update("@@", "-a", "+x"), " a\nx\n"),
    "a place by typography": ("x\nf—g\nx\n", update("@@ f-g", "-x", "+y"), "x\nf—g\ny\n"),
    "windows line endings": ("a\r\nb\r\n", update("@@", " a", "-b", "+x", "+y"), "a\r\nx\r\ny\r\n"),
    "old mac line endings": ("a\rb\r", update("@@", "-b", "+x"), "a\rx\r"),
    "mixed line endings": ("a\nb\r\nc\r\n", update("@@", " b", "-c", "+x"), "a\nb\r\nx\n"),
    "a patch with windows line endings": (ABCD, update("@@", "-b", "+x").replace("\n", "\r\n"), "a\nx\nc\nd\n"),
    "lines that look like marks": ("@@\n*** End Patch\n", update("@@", " @@", "-*** End Patch", "+-x"), "@@\n-x\n"),
    "marks with white space behind": (ABCD, update("@@ ", "-d", "+x", "*** End of File \t"), "a\nb\nc\nx\n"),
    "an end of file before all": (ABCD, update("*** End of File", "@@", "-a"), "b\nc\nd\n"),
    "empty lines behind the end of the file": (ABCD, update("-d", "*** End of File", "", "\t"), "a\nb\nc\n"),
    "two ends": (ABCD, update("@@", "-a", "*** End Patch"), "b\nc\nd\n"),
    "white space around the patch": (ABCD, f"\n \n {update('@@', '-a')} \n\n", "b\nc\nd\n"),
    "a here-document": (ABCD, f"<<'EOF'\n{update('@@', '-a')}\nEOF\n", "b\nc\nd\n"),
    "a file is added": ({}, patch("*** Add File: x/y", "+a", "+", "++b"), {"x/y": "a\n\n+b\n"}),
    "an empty file is added": ({}, patch("*** Add File: x"), {"x": ""}),
    "a file is added over another": ({"x": "old"}, patch("*** Add File: x", "+new"), {"x": "new\n"}),
    "a file is deleted": ({"x": "1", "y": "2"}, patch("*** Delete File: x"), {"y": "2"}),
    "a file is moved": (
        {"f": ABCD},
        update("*** Move to: x/g", "@@", "-a", "+1"),
        {"x/g": "1\nb\nc\nd\n"},
    ),
    "a file is moved over another": ({"f": "a\n", "g": "b\n"}, update("*** Move to: g", " a"), {"g": "a\n"}),
    "hunks see what others did": (
        {"f": "a\n", "d": "d\n"},
        patch(
            "*** Update File: f",
            "-a",
            "+b",
            "*** Update File: f",
            "*** Move to: g",
            "-b",
            "+c",
            "*** Update File: g",
            "-c",
            "+e",
            "*** Delete File: d",
            "*** Add File: d",
            "+new",
            "*** Add File: n",
            "+1",
            "*** Delete File: n",
        ),
        {"g": "e\n", "d": "new\n"},
    ),
    "headers with white space around": (
        {"x": "1"},
        patch("  *** Add File: y ", "+2", "\t*** Delete File: x"),
        {"y": "2\n"},
    ),
    "names of all languages": ({"f": "a\n"}, update("*** Move to: é/文 件", "-a", "+b"), {"é/文 件": "b\n"}),
}

REFUSED: dict[str, tuple[str, str]] = {
    "no beginning": ("*** Delete File: f\n*** End Patch", "the first line of a patch must be '*** Begin Patch'"),
    "no end": ("*** Begin Patch\n*** Delete File: f", "the last line of a patch must be '*** End Patch'"),
    "words around": (f"Here:\n{patch('*** Delete File: f')}", "the first line of a patch must be"),
    "words behind": (f"{patch('*** Delete File: f')}\nDone.", "the last line of a patch must be"),
    "no hunks": (patch(), "the patch changes no files"),
    "an unknown header": (patch("*** Rename File: f"), "at line 2, found '*** Rename File: f'"),
    "a header without its space": (patch("*** Add File:x", "+a"), "at line 2, found '*** Add File:x'"),
    "an empty line between files": (patch("*** Add File: x", "+a", "", "*** Delete File: f"), "at line 4, found ''"),
    "a line of a new file without a plus": (patch("*** Add File: x", "+a", "b"), "at line 4, found 'b'"),
    "an update of nothing": (update(), "nothing is changed under '*** Update File: f'"),
    "a move without a change": (update("*** Move to: g"), "nothing is changed under '*** Update File: f'"),
    "a mark without lines": (update("@@"), "expected a line that starts with ' ', '-' or '+' at line 4, found the end"),
    "marks one after the other": (update("@@ a", "@@ b", "-c"), "at line 4, found '@@ b'"),
    "a line without a mark": (update("@@", "-a", "b"), "expected '@@' or the next file at line 5, found 'b'"),
    "lines behind the end of the file": (update("-d", "*** End of File", "-e"), "at line 5, found '-e'"),
    "a move behind a change": (update("-a", "*** Move to: g"), "at line 4, found '*** Move to: g'"),
    "a file behind the end": (patch("*** Delete File: f", "*** End Patch", "*** Add File: x"), "at line 3"),
    "lines that are not there": (update("@@", " a", "-x", "+y"), "these lines were not found in f:\na\nx"),
    "lines that are not at the end": (
        update("-a", "*** End of File"),
        "these lines were not found at the end of f:\na",
    ),
    "a place that is not there": (update("@@ def x():", "-a"), "there is no line 'def x():' in f"),
    "places in the wrong order": (update("@@", "-b", "@@", "-a"), "these lines were not found in f:\na"),
    "lines that are changed twice": (update("@@", "-a", "-b", "@@", "-b"), "these lines were not found in f:\nb"),
    "a missing file": (patch("*** Update File: ff", "-a"), "there is no ff; similar: f"),
    "a missing file to delete": (patch("*** Delete File: ff"), "there is no ff; similar: f"),
    "a file that is gone by then": (
        patch("*** Delete File: f", "*** Update File: f", "-a"),
        "there is no f any more: the patch has deleted or moved it",
    ),
    "a file deleted twice": (patch("*** Delete File: f", "*** Delete File: f"), "there is no f any more"),
    "a folder to delete": (patch("*** Delete File: folder"), "folder is a directory"),
    "a folder to update": (patch("*** Update File: folder", "-a"), "folder is a directory"),
    "a folder to add": (patch("*** Add File: folder", "+a"), "folder is a directory"),
    "a folder to move to": (update("*** Move to: folder", "-a"), "folder is a directory"),
    "a file as a folder": (patch("*** Add File: f/x", "+a"), "a part of the path f/x is a file, not a directory"),
}


def files_of(before: str | Files) -> Files:
    return {"f": before} if isinstance(before, str) else before


@pytest.mark.parametrize("case", DONE)
def test_what_a_patch_does(tmp_path: Path, case: str):
    before, text, after = DONE[case]
    put(tmp_path, files_of(before))
    assert run(tmp_path, text).startswith("Success. Updated the following files:\n")
    assert got(tmp_path) == files_of(after)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(tmp_path: Path, case: str):
    text, told = REFUSED[case]
    before = {"f": ABCD, "folder/x": "x"}
    put(tmp_path, before)
    assert told in refusal(tmp_path, text)
    assert got(tmp_path) == before


# How it is told


def test_files_are_listed_as_codex_lists_them(tmp_path: Path):
    put(tmp_path, {"f": "a\n", "g": "b\n", "h": "c\n"})
    text = patch(
        "*** Delete File: h",
        "*** Update File: f",
        "-a",
        "*** Update File: g",
        "*** Move to: i",
        "-b",
        "*** Add File: x",
    )
    assert run(tmp_path, text) == "Success. Updated the following files:\nA x\nM f\nM i\nD h"


@pytest.mark.parametrize("key", ["input", "patch"])
def test_a_call_of_a_function_carries_a_patch_too(tmp_path: Path, key: str):
    text = patch("*** Add File: x", '+"é"\t')
    run_payload(tmp_path, FunctionPayload(msgspec.json.encode({key: text}).decode()))
    assert got(tmp_path) == {"x": '"é"\t\n'}


@pytest.mark.parametrize("arguments", ["{}", "", "[1]", '{"input": 3}'])
def test_a_call_of_a_function_without_a_patch_is_refused(tmp_path: Path, arguments: str):
    with pytest.raises(ToolError, match="the first line of a patch must be"):
        run_payload(tmp_path, FunctionPayload(arguments))


def test_nothing_is_patched_in_read_only_mode(tmp_path: Path):
    told = refusal(tmp_path, patch("*** Add File: x", "+a"), writable=False)
    assert told == "read-only mode: apply_patch may not change files"
    assert got(tmp_path) == {}


# Where Codex is not followed


def test_a_move_onto_itself_keeps_the_file(tmp_path: Path):
    put(tmp_path, {"f": "a\n"})
    run(tmp_path, update("*** Move to: ./f", "-a", "+b"))
    assert got(tmp_path) == {"f": "b\n"}


def test_bytes_that_are_no_text_are_kept(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"caf\xe9\na\n")
    run(tmp_path, update("@@", "-a", "+b"))
    assert (tmp_path / "f").read_bytes() == b"caf\xe9\nb\n"


def test_a_file_that_fails_late_leaves_all_others_alone(tmp_path: Path):
    before = {"f": "a\n", "g": "b\n", "h": "c\n"}
    put(tmp_path, before)
    steps = ("*** Add File: new/deep/x", "+x", "*** Update File: f", "-a", "+1", "*** Delete File: g")
    assert "not found in h" in refusal(tmp_path, patch(*steps, "*** Update File: h", "-nope"))
    assert got(tmp_path) == before
    assert names(tmp_path) == ["f", "g", "h"]


# The file system


@pytest.mark.parametrize("path", ["../x", "/etc/x", "out/x", "link"])
def test_no_hunk_leads_out_of_the_roots(tmp_path: Path, path: str):
    work = tmp_path / "work"
    put(tmp_path, {"work/f": "a\n", "outside/x": "x\n", "x": "x\n"})
    (work / "out").symlink_to(tmp_path / "outside")
    (work / "link").symlink_to(tmp_path / "x")
    before = got(tmp_path)
    for hunk in (
        (f"*** Add File: {path}", "+y"),
        (f"*** Update File: {path}", "-x"),
        ("*** Update File: f", f"*** Move to: {path}", " a"),
    ):
        assert "is outside the folders" in refusal(work, patch("*** Add File: first", "+1", *hunk))
    assert got(tmp_path) == before


@pytest.mark.parametrize("path", ["../x", "out/x"])
def test_nothing_outside_is_deleted(tmp_path: Path, path: str):
    put(tmp_path, {"outside/x": "x\n", "x": "x\n"})
    (tmp_path / "work").mkdir()
    (tmp_path / "work/out").symlink_to(tmp_path / "outside")
    assert "is outside the folders" in refusal(tmp_path / "work", patch(f"*** Delete File: {path}"))
    assert got(tmp_path) == {"outside/x": "x\n", "x": "x\n"}


def test_a_link_is_deleted_and_not_what_it_points_to(tmp_path: Path):
    put(tmp_path, {"real": "a\n"})
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    run(tmp_path, patch("*** Delete File: link", "*** Delete File: dangling"))
    assert names(tmp_path) == ["real"]


def test_a_link_that_is_deleted_and_added_is_a_file_of_its_own(tmp_path: Path):
    put(tmp_path, {"real": "a\n"})
    (tmp_path / "link").symlink_to("real")
    run(tmp_path, patch("*** Delete File: link", "*** Add File: link", "+b"))
    assert not (tmp_path / "link").is_symlink()
    assert got(tmp_path) == {"link": "b\n", "real": "a\n"}


def test_a_link_is_updated_where_it_points_to(tmp_path: Path):
    put(tmp_path, {"real": "a\n"})
    (tmp_path / "link").symlink_to("real")
    run(tmp_path, patch("*** Update File: link", "-a", "+b"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "b\n"


def test_modes_are_kept_also_where_a_file_is_moved(tmp_path: Path):
    put(tmp_path, {"f": "a\n", "g": "a\n"})
    (tmp_path / "f").chmod(0o750)
    (tmp_path / "g").chmod(0o751)
    run(tmp_path, patch("*** Update File: f", "-a", "*** Update File: g", "*** Move to: h", "-a"))
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "h").stat().st_mode) == 0o751


def test_nothing_is_left_lying_around(tmp_path: Path):
    put(tmp_path, {"f": "a\n", "g": "b\n"})
    run(tmp_path, patch("*** Update File: f", "-a", "*** Delete File: g", "*** Add File: x", "+1"))
    assert names(tmp_path) == ["f", "x"]


def test_what_cannot_be_written_undoes_the_rest(own_folder: Path):
    with ordinary_user():
        before = {"f": "a\n", "g": "b\n", "shut/x": "x\n"}
        put(own_folder, before)
        (own_folder / "shut").chmod(0o500)
        steps = ("*** Add File: new/y", "+y", "*** Update File: f", "-a", "+1", "*** Delete File: g")
        told = refusal(own_folder, patch(*steps, "*** Delete File: shut/x"))
        assert told == "no permission for shut/x"
        told = refusal(own_folder, patch(*steps, "*** Add File: shut/z", "+z"))
        assert told == "no permission for shut/z"
        assert got(own_folder) == before
        assert names(own_folder) == ["f", "g", "shut"]


def test_a_full_disk_leaves_all_files_alone(tmp_path: Path):
    before = {"f": "a\n", "g": "b\n"}
    put(tmp_path, before)
    steps = ("*** Update File: f", "-a", "+1", "*** Delete File: g", "*** Add File: new/x", "+" + "x" * 5000)
    with small_disk(1000):
        told = refusal(tmp_path, patch(*steps))
    assert told == "new/x: File too large"
    assert got(tmp_path) == before
    assert names(tmp_path) == ["f", "g"]


def test_half_a_letter_is_refused(tmp_path: Path):
    assert "lone surrogate" in refusal(tmp_path, patch("*** Add File: x", "+\ud800"))
    assert "not a usable path" in refusal(tmp_path, patch("*** Add File: \ud800", "+x"))


def planned(folder: Path, text: str) -> PatchPlan:
    plan = PatchPlan(Context(folder, lambda text: None))
    for hunk in parse(text):
        plan.add(hunk)
    return plan


def test_a_folder_that_appears_at_the_last_moment_undoes_the_rest(tmp_path: Path):
    put(tmp_path, {"d": "d\n", "f": "a\n"})
    (tmp_path / "f").chmod(0o750)
    steps = ("*** Delete File: d", "*** Update File: f", "-a", "+1", "*** Add File: e/y", "+y", "*** Add File: g", "+g")
    plan = planned(tmp_path, patch(*steps))
    put(tmp_path, {"g/x": "x\n"})
    with pytest.raises(ToolError, match=r"^g: Is a directory$"):
        plan.carry_out()
    assert got(tmp_path) == {"d": "d\n", "f": "a\n", "g/x": "x\n"}
    assert names(tmp_path) == ["d", "f", "g"]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o750


@pytest.mark.parametrize("change", ["changed", "vanished"])
def test_a_file_that_somebody_else_changes_meanwhile_stops_the_patch(tmp_path: Path, change: str):
    put(tmp_path, {"f": "a\n", "g": "b\n"})
    plan = planned(tmp_path, patch("*** Delete File: g", "*** Update File: f", "-a", "+1"))
    (tmp_path / "f").unlink()
    if change == "changed":
        put(tmp_path, {"f": "other\n"})
    before = got(tmp_path)
    with pytest.raises(ToolError, match=r"^f was changed by another process meanwhile; read it again$"):
        plan.carry_out()
    assert got(tmp_path) == before


def test_a_file_to_delete_that_is_gone_already_is_deleted(tmp_path: Path):
    put(tmp_path, {"f": "a\n"})
    plan = planned(tmp_path, patch("*** Delete File: f"))
    (tmp_path / "f").unlink()
    plan.carry_out()
    assert got(tmp_path) == {}


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path, {"f": "a\n", "g": "b\n"})
    run(tmp_path, patch("*** Delete File: g", "*** Update File: f", "-a", "+1"))
    assert got(tmp_path) == {"f": "1\n"}


def test_what_is_write_protected_is_refused(own_folder: Path):
    with ordinary_user():
        put(own_folder, {"f": "a\n"})
        (own_folder / "f").chmod(0o444)
        assert refusal(own_folder, update("-a", "+b")) == "f is write-protected"
        assert refusal(own_folder, patch("*** Add File: f", "+b")) == "f is write-protected"
        assert got(own_folder) == {"f": "a\n"}


# Any edit

LINES = st.lists(st.text(st.sampled_from(" -+@*ab\té“\x0b\u2028"), max_size=4), max_size=8)


def chunks(old: list[str], new: list[str], context: int) -> list[str]:
    """What difflib sees as the difference, as the lines of an update."""
    said: list[str] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        said.append("@@")
        for kind, left, right, start, end in group:
            if kind == "equal":
                said += [f" {line}" for line in old[left:right]]
            else:
                said += [f"-{line}" for line in old[left:right]] + [f"+{line}" for line in new[start:end]]
    return said


def patched(old: str, lines: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f")
        path.write_bytes(old.encode())
        run(Path(folder), update(*lines))
        return path.read_bytes().decode()


@given(LINES, LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_patch_of_a_whole_file_makes_the_new_one(old: list[str], new: list[str], ending: str, is_ended: bool):
    assume(old != new)
    text = "".join(line + ending for line in old)
    if not is_ended and text.count(ending) > 1 and old[-1]:
        text = text.removesuffix(ending)
    ends = ending if old else "\n"
    assert patched(text, chunks(old, new, len(old) + 1)) == "".join(line + ends for line in new)


@given(LINES, LINES, st.integers(1, 3))
def test_a_patch_with_some_lines_around_makes_the_new_file(old: list[str], new: list[str], context: int):
    # Without line numbers only lines that differ say where a change belongs.
    old = [f"{number}:{line}" for number, line in enumerate(old)]
    new = [*old[: len(new) // 2], *new, *old[len(new) // 2 + 1 :]]
    assume(old and old != new)
    text = "".join(line + "\n" for line in old)
    assert patched(text, chunks(old, new, context)) == "".join(line + "\n" for line in new)


@given(
    st.lists(st.sampled_from([" a", "-a", "+b", "@@", "@@ a", "", "*** End of File", "*** Add File: x", "x", "+", "-"]))
)
def test_any_lines_are_taken_whole_or_refused(lines: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), {"f": "a\na\n"})
        try:
            run(Path(folder), update(*lines))
        except ToolError:
            assert got(Path(folder)) == {"f": "a\na\n"}
        assert not [name for name in names(Path(folder)) if name not in ("f", "x")]
