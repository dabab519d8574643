"""What holds people's words is for its owner alone, whatever the umask says."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolwire.agent.history import user_message
from toolwire.agent.session import Session
from toolwire.core.recording import Head
from toolwire.core.sse import Frame
from toolwire.memory.private_files import make_folders, open_private
from toolwire.upstream.record import Recorder


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    earlier = os.umask(0)
    yield
    os.umask(earlier)


def modes(folder: Path) -> set[tuple[bool, int]]:
    return {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in folder.rglob("*")}


PRIVATE = {(True, 0o700), (False, 0o600)}


def test_a_recording(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "a/b"), "turn", Head(1, "responses", "m"))
    recorder.start(0.0, 200, "text/event-stream")
    recorder.record_frame(0.1, Frame(b"x", b"{}"))
    recorder.close()
    assert modes(tmp_path) == PRIVATE


def test_a_session(tmp_path: Path) -> None:
    session = Session.begin("demo", tmp_path, tmp_path / "toolwire/sessions")
    session.add([user_message("hello", ())])
    assert modes(tmp_path) == PRIVATE


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text("earlier")
    path.chmod(0o644)
    with open_private(path, "a") as file:
        file.write(b" and later")
    assert (path.read_text(), modes(tmp_path)) == ("earlier and later", {(False, 0o600)})


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """It may be a shared one, such as /tmp."""
    tmp_path.chmod(0o1777)
    make_folders(tmp_path / "ours")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        open_private(tmp_path / "link", "w")
    assert not (tmp_path / "elsewhere").exists()
