"""Temporary directories of a process that was killed are removed by the next one; those of living ones stay."""

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from toolwire.memory import owned_folders
from toolwire.memory.owned_folders import LOCK, PREFIX, OwnedFolder, remove_orphans
from toolwire.upstream.codex import app_server
from toolwire.upstream.codex.app_server import AppServer, AppServerSpec
from toolwire.upstream.reply import Broken

fcntl = pytest.importorskip("fcntl", reason="another platform: has no locks of this kind")


def old(path: Path) -> Path:
    before = time.time() - 2 * owned_folders.STALE
    os.utime(path, (before, before), follow_symlinks=False)
    return path


def test_a_directory_stays_while_its_process_lives_and_goes_when_that_was_killed(tmp_path: Path):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, os.fsencode(OwnedFolder(PREFIX, str(tmp_path)).path))
        signal.pause()
    path = Path(os.fsdecode(os.read(reading, 4096)))
    old(path)
    remove_orphans(str(tmp_path))
    assert (path / LOCK).exists()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    remove_orphans(str(tmp_path))
    assert not path.exists()
    os.close(reading)
    os.close(writing)


def test_a_process_that_was_forked_keeps_the_directory(tmp_path: Path):
    folder = OwnedFolder(PREFIX, str(tmp_path))
    old(folder.path)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    folder.release()
    remove_orphans(str(tmp_path))
    assert folder.path.exists()
    os.close(writing)
    os.waitpid(pid, 0)
    remove_orphans(str(tmp_path))
    assert not folder.path.exists()


def test_a_directory_whose_owner_is_about_to_lock_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process starts between the moments in which the lock file is made and locked."""
    lock, other = fcntl.flock, []

    def meanwhile(descriptor: int, how: int) -> None:
        if not other:
            other.append(descriptor)
            remove_orphans(str(tmp_path))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    folder = OwnedFolder(PREFIX, str(tmp_path))
    assert other
    assert (folder.path / LOCK).exists()
    old(folder.path)
    remove_orphans(str(tmp_path))
    assert folder.path.exists(), "its owner has the lock"
    folder.release()
    remove_orphans(str(tmp_path))
    assert not folder.path.exists()


def test_a_codex_worker_clears_up_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads: list[threading.Thread] = []
    monkeypatch.setattr(app_server, "remove_orphans", lambda base: threads.append(threading.current_thread()))
    spec = AppServerSpec(("/no/such/program",), dict, lambda home, models: {}, {}, "1")

    async def start() -> None:
        with pytest.raises(Broken):
            await AppServer(spec, frozenset(), lambda gone: None).start()

    asyncio.run(start())
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_what_is_removed_is_gone(tmp_path: Path):
    folder = OwnedFolder(PREFIX, str(tmp_path))
    (folder.path / "w.sock").touch()
    folder.remove()
    assert not [*tmp_path.iterdir()]


def test_a_directory_of_an_earlier_version_is_judged_by_what_is_in_it(tmp_path: Path):
    left, listening, other, young = (tmp_path / f"{PREFIX}{name}" for name in ("left", "listens", "other", "young"))
    for each in (left, listening, other, young):
        each.mkdir()
        (each / "stderr.lock").touch()
    (other / "notes.txt").touch()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left / "w.sock"))
        dead.close()
        server.bind(str(listening / "w.sock"))
        server.listen()
        for each in (left, listening, other):
            old(each)
        remove_orphans(str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(each.name for each in (listening, other, young))


def test_a_home_of_an_earlier_version_goes_with_its_process(tmp_path: Path):
    alive, gone = (tmp_path / f"{PREFIX}codex-{pid}-x" for pid in (os.getpid(), 2**22 + 1))
    for each in (alive, gone):
        each.mkdir()
        old(each)
    remove_orphans(str(tmp_path))
    assert [*tmp_path.iterdir()] == [alive]


def test_links_files_and_what_belongs_to_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "target"
    target.mkdir()
    (target / LOCK).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    (tmp_path / f"{PREFIX}file").touch()
    for each in tmp_path.iterdir():
        old(each)
    remove_orphans(str(tmp_path), "", "relative")
    assert len([*tmp_path.iterdir()]) == 3
    folder = tmp_path / f"{PREFIX}others"
    folder.mkdir()
    (folder / LOCK).touch()
    old(folder)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12345)
        remove_orphans(str(tmp_path))
        assert folder.exists()
    remove_orphans(str(tmp_path))
    assert not folder.exists()
