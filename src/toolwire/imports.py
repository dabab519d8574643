"""Where modules are imported from: never from the working directory, which may be a stranger's repository."""

import os
import sys


def without_working_directory() -> None:
    """Leave the working directory out of `sys.path`, unless PYTHONPATH names it in full."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [each for each in sys.path if each and (each != here or each in named)]
