"""Prevents imports from the working directory, which may be a stranger's repository, and finds missing extras."""

import os
import shlex
import sys
from contextlib import suppress
from importlib.util import find_spec

REQUIREMENTS = {"google": "google-auth[requests]>=2.40", "mcp": "mcp>=2.3,<3", "postgres": "asyncpg>=0.30"}
"""The main requirement of each extra in pyproject.toml; it installs the others as dependencies."""
_PURPOSES = {
    "google": ("A login of Google Cloud needs", "google.auth"),
    "mcp": ("MCP servers need", "mcp"),
    "postgres": ("PostgreSQL needs", "asyncpg"),
}


def without_working_directory() -> None:
    """Remove the working directory from `sys.path`, unless PYTHONPATH names it in full."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [each for each in sys.path if each and (each != here or each in named)]


def missing_extra(extra: str) -> str:
    """Return one line that names a missing package and the command to install it, or "" if it is installed."""
    need, module = _PURPOSES[extra]
    package = REQUIREMENTS[extra].partition("[")[0] if "." in module else module
    with suppress(ModuleNotFoundError):  # a package above it is missing, too
        if find_spec(module) is not None:
            return ""
    return f"{need} the package {package}, which is not installed: {install_command(extra)}"


def install_command(extra: str) -> str:
    """The command that adds an extra to this environment, however Toolwire was installed."""
    python = sys.executable or "python3"
    pip = (python, "-m", "pip", "install") if find_spec("pip") else ("uv", "pip", "install", "--python", python)
    return shlex.join((*pip, REQUIREMENTS[extra]))
