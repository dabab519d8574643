"""Commands that the user always allows by their prefix, such as `git status`.

A prefix allows every command that begins with its words, whatever follows. A line with several commands is allowed if
each of them is. A line with anything else in it, such as a substitution, a redirection, an assignment, or a command
in the background, is never allowed by prefixes. No prefix is offered for a program that runs its arguments.

Prefixes for a folder are kept in the user's state directory, one JSON object per line:

{"folder":"/home/ada/project","prefix":["git","status"]}
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import msgspec

from toolwire.memory.private_files import find_state_folder, make_folders, open_file, open_private
from toolwire.turns.tools.call import LOCAL_SHELL, ToolCall

Words: TypeAlias = tuple[str, ...]

MAX_FILE_BYTES = 1024 * 1024
MAX_OFFERED = 3
"""Prefixes that one question offers at most."""

_LINES = {"Bash": "command", "exec_command": "cmd"}
"""For each tool with a line of shell, the argument with the line."""
_SHELLS = ("bash", "sh", "zsh")
_SEPARATOR = re.compile(r"&&|\|\||[;|\n]")
_SPACES = re.compile(r"[ \t]+")
_PIECE = re.compile(
    r"""(?P<plain>[^\s'"\\$`<>()&;|\x00-\x1f\x7f]+)|\\(?P<escaped>[^\x00-\x1f])"""
    r"""|'(?P<single>[^'\x00]*)'|"(?P<double>(?:[^"\\$`\x00]|\\[^\n\x00])*)\""""
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[.*\])?\+?=", re.DOTALL)
_PLAIN = re.compile(r"[\w.,:@%+/-]+", re.ASCII)
_SHELL_WORDS = frozenset(
    """. : [ [[ { } ! alias bg bind break builtin caller case cd command compgen complete compopt continue coproc
    declare dirs disown do done elif else enable esac eval exec exit export fc fg fi for function getopts hash help
    history if in jobs let local logout mapfile popd printf pushd read readarray readonly return select set shift
    shopt source suspend test then time times trap type typeset ulimit umask unalias unset until wait while""".split()  # noqa: SIM905
)
"""Words of the shell that change what follows, or evaluate their arguments. They have no prefix."""
_RUNNERS = frozenset(
    """ash awk bash busybox bunx chroot chrt crontab csh dash doas ed emacs entr env expect fd fdfind find fish gawk
    gdb ionice ksh less ltrace mawk more nice nohup npx nsenter nvim osascript parallel perf pkexec pwsh runuser
    screen script sed setsid sh ssh stdbuf strace su sudo systemd-run taskset tclsh timeout tmux toybox uvx unbuffer
    unshare valgrind vi vim watch xargs zsh""".split()  # noqa: SIM905
)
"""Programs that run what their arguments say. They have no prefix."""
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|php|lua|node)[\d.]*|Rscript|java|julia")
"""A program whose prefix contains its script, or `-m` and a module."""
_WITH_SUBCOMMANDS = frozenset(
    """apt apt-get aws az brew bun cargo conda deno docker dotnet gcloud gh git glab go gradle hatch helm hg just
    kubectl make mvn npm pdm pip pip3 pipx pnpm podman poetry rustup svn systemctl terraform uv yarn""".split()  # noqa: SIM905
)
"""Programs whose prefix contains the subcommand."""
_RUNNING = ("compose", "dlx", "exec", "run", "tool", "x")
"""Subcommands that run the word after them, which is part of the prefix."""


def split_line(line: str) -> list[Words] | None:
    """The words of each command in a line of shell; None if there is anything else in it."""
    commands: list[list[str]] = [[]]
    at = 0
    while at < len(line):
        if found := _SEPARATOR.match(line, at):
            commands.append([])
        elif not (found := _SPACES.match(line, at)):
            if line[at] == "#":  # a comment
                return None
            word = ""
            end = at
            while found := _PIECE.match(line, end):
                text: str = found[found.lastgroup or 0]
                word += re.sub(r'\\(["\\$`])', r"\1", text) if found.lastgroup == "double" else text
                end = found.end()
            if end == at:
                return None
            commands[-1].append(word)
            at = end
            continue
        at = found.end()
    return [tuple(words) for words in commands if words]


def commands_of(call: ToolCall) -> list[Words]:
    """The commands that a call runs; empty if it runs anything else."""
    arguments: dict[str, Any] = call.arguments
    line: str | None = arguments.get(_LINES.get(call.name, ""))
    if call.name == LOCAL_SHELL and not arguments.get("env"):
        words = tuple(arguments.get("command", ()))
        if len(words) != 3 or PurePosixPath(words[0]).name not in _SHELLS or words[1] not in ("-c", "-lc"):
            return [words]
        line = words[2]
    commands = split_line(line) if line is not None else None
    return commands if commands and not any(_ASSIGNMENT.match(words[0]) for words in commands) else []


def prefix_of(words: Words) -> Words | None:
    """The prefix by which a command can be allowed; None if there is none."""
    name = PurePosixPath(words[0]).name if words else ""
    length = 1
    if _INTERPRETER.fullmatch(name):
        length = 3 if words[1:2] == ("-m",) else 2
    elif name in _WITH_SUBCOMMANDS:
        length = 3 if words[1:2] and words[1] in _RUNNING else 2
    prefix = words[:length]
    options = [word for word in prefix[1:] if word.startswith("-") and (word != "-m" or length < 3)]
    if len(prefix) < length or options or not all(map(_PLAIN.fullmatch, prefix)):
        return None
    run = PurePosixPath(prefix[-1]).name if length > 1 else ""
    is_runner = name in _SHELL_WORDS or {name, run} & _RUNNERS or _INTERPRETER.fullmatch(run)
    return None if is_runner else prefix


class _Line(msgspec.Struct):
    folder: str
    prefix: Words


class AllowedCommands:
    """The prefixes that are allowed in this program, and in the folder that `cwd` returns.

    If the state directory is in that folder, where a tool could change it, nothing is kept for the folder.
    """

    def __init__(self, cwd: Callable[[], Path], path: Path | None = None) -> None:
        self._cwd = cwd
        self._path = path or find_state_folder() / "allowed-commands.jsonl"
        self._session: set[Words] = set()

    @property
    def can_keep(self) -> bool:
        """Whether prefixes can be kept for the folder."""
        return not self._path.resolve().is_relative_to(self._cwd().resolve())

    def __iter__(self) -> Iterator[Words]:
        return iter(sorted(self._session | self._kept()))

    def allows(self, call: ToolCall) -> bool:
        """Whether all commands of a call are allowed."""
        commands = commands_of(call)
        return bool(commands) and not self._missing(commands)

    def offers(self, call: ToolCall) -> list[Words]:
        """The prefixes that would allow a call; empty if none can."""
        missing = self._missing(commands_of(call))
        prefixes = list(dict.fromkeys(prefix_of(words) for words in missing))
        found = [prefix for prefix in prefixes if prefix is not None]
        return found if found == prefixes and len(found) <= MAX_OFFERED else []

    def add(self, prefixes: Iterable[Words], *, in_folder: bool) -> None:
        """Allow prefixes in this program, or for the folder, also in later ones. Raises `OSError`."""
        self._session |= {*prefixes}
        if in_folder:
            make_folders(self._path.parent)
            with open_private(self._path, "a") as file:
                for prefix in prefixes:
                    file.write(msgspec.json.encode(_Line(str(self._cwd()), prefix)) + b"\n")

    def _missing(self, commands: Iterable[Words]) -> list[Words]:
        known = self._session | self._kept()
        return [words for words in commands if not any(words[: len(prefix)] == prefix for prefix in known)]

    def _kept(self) -> set[Words]:
        kept: set[Words] = set()
        lines: list[bytes] = []
        with suppress(OSError):
            if self.can_keep:
                with open_file(self._path) as file:
                    lines = file.read(MAX_FILE_BYTES).splitlines()
        for line in lines:
            with suppress(msgspec.DecodeError):
                read = msgspec.json.decode(line, type=_Line)
                if read.folder == str(self._cwd()) and prefix_of(read.prefix) == read.prefix:
                    kept.add(read.prefix)
        return kept
