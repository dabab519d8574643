"""The changes of the file tools: shown and taken back."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toolwire.agent import changes as module
from toolwire.agent.changes import Changes
from toolwire.agent.tools import files, patch
from toolwire.turns.tools.call import CustomPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context


class Work:
    """The file tools in a folder, and the record of what they change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = Changes()
        self.context = Context(folder, changed=self.changes.record)

    def write(self, name: str, content: str) -> None:
        asyncio.run(files.write(name, content, context=self.context))

    def edit(self, name: str, old: str, new: str) -> None:
        asyncio.run(files.edit(name, old, new, context=self.context))

    def patch(self, *lines: str) -> None:
        text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
        asyncio.run(patch.apply_patch.run(ToolCall("apply_patch", "c1", CustomPayload(text)), self.context))

    def undo(self) -> list[str]:
        return self.changes.undo(Context(self.folder))

    @property
    def shown(self) -> list[tuple[str, bytes | None, bytes | None]]:
        return [(each.name, each.before, each.after) for each in self.changes.list_all()]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_changes_of_several_prompts_are_shown_as_one_and_taken_back_one_by_one(work: Work) -> None:
    (work.folder / "a.txt").write_text("one\n")
    (work.folder / "gone.sh").write_text("echo\n")
    (work.folder / "gone.sh").chmod(0o754)
    before = files_in(work.folder)
    work.edit("a.txt", "one", "two")
    work.write("sub/new.txt", "new\n")
    work.changes.begin()
    work.patch("*** Delete File: gone.sh", "*** Update File: a.txt", "*** Move to: b.txt", "@@", "-two", "+three")
    work.edit("b.txt", "three", "four")
    assert sorted(work.shown) == [
        ("a.txt", b"one\n", None),
        ("b.txt", None, b"four\n"),
        ("gone.sh", b"echo\n", None),
        ("sub/new.txt", None, b"new\n"),
    ]
    work.changes.begin()
    work.changes.begin()  # prompts without changes
    assert sorted(work.undo()) == ["a.txt", "b.txt", "gone.sh"]
    assert (work.folder / "gone.sh").stat().st_mode & 0o777 == 0o754
    assert sorted(work.shown) == [("a.txt", b"one\n", b"two\n"), ("sub/new.txt", None, b"new\n")]
    assert sorted(work.undo()) == ["a.txt", "sub/new.txt"]
    assert files_in(work.folder) == before
    assert work.shown == []
    with pytest.raises(ToolError, match="there is nothing to take back"):
        work.undo()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("mine\n"),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to("b.txt")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["edited", "deleted", "linked", "a folder"],
)
def test_nothing_is_taken_back_if_one_file_was_changed_since(work: Work, change: Callable[[Path], object]) -> None:
    work.write("b.txt", "other\n")
    work.write("a.txt", "new\n")
    change(work.folder / "a.txt")
    with pytest.raises(ToolError, match=r"a\.txt"):
        work.undo()
    assert (work.folder / "b.txt").read_text() == "other\n"
    with pytest.raises(ToolError, match=r"a\.txt"):
        work.undo()


def test_nothing_is_taken_back_through_a_link_to_another_folder(
    work: Work, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.txt").write_text("new\n")
    work.write("sub/a.txt", "new\n")
    (work.folder / "sub").rename(work.folder / "other")
    (work.folder / "sub").symlink_to(elsewhere)
    with pytest.raises(ToolError, match="outside"):
        work.undo()
    assert (elsewhere / "a.txt").exists()


def test_a_failed_call_is_no_change(work: Work) -> None:
    (work.folder / "a.txt").write_text("one\n")
    with pytest.raises(ToolError):
        work.edit("a.txt", "two", "three")
    with pytest.raises(ToolError):
        work.patch("*** Add File: b.txt", "+b", "*** Update File: a.txt", "@@", "-two", "+three")
    assert work.shown == []
    with pytest.raises(ToolError, match="nothing to take back"):
        work.undo()


def test_a_link_that_was_deleted_cannot_be_taken_back(work: Work) -> None:
    (work.folder / "a.txt").write_text("one\n")
    os.symlink("a.txt", work.folder / "link")
    work.patch("*** Delete File: link")
    with pytest.raises(ToolError, match="not known what was there before: link"):
        work.undo()


def test_the_oldest_changes_are_forgotten_when_they_are_too_large(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 100)
    work.write("a.txt", "a" * 60)
    work.changes.begin()
    work.write("b.txt", "b" * 60)
    assert work.changes.are_forgotten
    assert [name for name, *_ in work.shown] == ["b.txt"]
    assert work.undo() == ["b.txt"]
    (work.folder / "c.txt").write_text("c" * 200)
    work.write("c.txt", "c")
    work.write("d.txt", "d")
    with pytest.raises(ToolError, match=r"not known what was there before: c\.txt"):
        work.undo()
