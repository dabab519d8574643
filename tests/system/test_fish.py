"""What `toolwire env --shell fish` prints, as fish reads it."""

import subprocess

from tests.commands.desk import Desk, desk
from tests.conftest import needs

__all__ = ["desk"]


def test_fish_understands_the_lines(desk: Desk):
    needs("fish")
    lines = desk.good("env", "codex", "--shell", "fish")
    command = ["fish", "-c", f"{lines}; functions -q codex; and echo $TOOLWIRE_KEY"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == b"unused\n"
