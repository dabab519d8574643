"""The process server of the tests behaves as `subprocess` does."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import warm_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: elsewhere this is subprocess")

both = pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@both
def test_streams_arguments_environment_and_exit_code_are_the_program_s_own(tmp_path: Path, fresh: bool):
    program = """if True:
        import os, sys
        print(sys.argv[1:], os.getcwd(), os.environ["NAME"], sys.stdin.read(), __name__)
        print("é", file=sys.stderr)
        sys.exit(7)
    """
    done = processes.run(
        [sys.executable, "-c", program, "a b", "ü"],
        cwd=tmp_path,
        env={"NAME": "value", "LANG": "C.UTF-8"},
        input="in",
        capture_output=True,
        text=True,
        fresh=fresh,
    )
    assert (done.returncode, done.stderr) == (7, "é\n")
    assert done.stdout == f"['a b', 'ü'] {tmp_path} value in __main__\n"


@both
def test_a_signal_is_the_exit_code(fresh: bool):
    with processes.Popen([sys.executable, "-c", "import time; time.sleep(600)"], fresh=fresh) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM


def test_a_module_a_script_and_a_path_are_found_as_the_interpreter_finds_them(tmp_path: Path):
    (tmp_path / "helper.py").write_text("WORD = 'found'\n")
    (tmp_path / "script.py").write_text("import helper; print(helper.WORD)\n")
    found = processes.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True)
    given = {"PYTHONPATH": str(tmp_path)}
    by_path = processes.run([sys.executable, "-m", "script"], env=given, capture_output=True, text=True)
    assert (found.stdout, by_path.stdout) == ("found\n", "found\n")


def test_one_that_stands_for_a_program_ends_with_it_and_ends_it():
    command = warm_command("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stand_in:
        assert stand_in.stdout is not None
        pid = int(stand_in.stdout.readline())
        stand_in.kill()
        until(lambda: not lives(pid), "the program outlives its stand-in")
    command = warm_command("-c", "raise SystemExit(5)")
    assert subprocess.run(command, check=False).returncode == 5
