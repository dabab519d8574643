"""Walks a directory tree as ripgrep does, and matches glob patterns and `.gitignore` rules.

Unlike in ripgrep and git, `?` matches a character, not a byte.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from toolwire.core.cache import Cache
from toolwire.turns.tools.call import ToolError

GIT = ".git"
MAX_WAYS = 1000
"""How many patterns one pattern may stand for."""

Parts: TypeAlias = tuple[str, ...]
Names: TypeAlias = Callable[[Parts], bool]
"""Whether a file is wanted, by the parts of its path from the folder that is searched."""
_Part: TypeAlias = "re.Pattern[str] | None"
"""What one part of a path must look like; None is `**`, any number of parts."""


def wanted(pattern: str) -> tuple[str, Names]:
    """The directory that a pattern is fixed to, and a predicate for the files in it."""
    is_negated = pattern.startswith("!")
    parts = pattern[is_negated:].split("/")
    fixed = 0
    while not is_negated and fixed < len(parts) - 1 and not re.search(r"[*?\[{\\]", parts[fixed]):
        fixed += 1
    folder = "/".join(parts[:fixed]) or "/" * fixed
    rest = [part for part in parts[fixed:] if part != "."] if len(parts) > 1 else ["**", *parts]
    if not parts[-1]:
        rest.append("**")
    try:
        ways = [_parts(way.split("/")) for way in _alternatives("/".join(rest))]
    except (re.error, ValueError, RecursionError) as error:
        raise ToolError(f"the glob {pattern!r} cannot be used: {error}") from None
    return folder, lambda found: is_negated != any(_fits(way, found) for way in ways)


def _alternatives(pattern: str) -> list[str]:
    """A pattern with `{a,b}` as one pattern for each."""
    ways, outer = [""], list[tuple[list[str], list[str]]]()  # outer: what stands before an open {, and what is in it
    for piece in re.findall(r"[{},]|(?:\\.|[^{},\\])+|.", pattern, re.DOTALL):
        if piece == "{":
            outer.append((ways, []))
            ways = [""]
        elif piece == "," and outer:
            outer[-1][1].extend(ways)
            ways = [""]
        elif piece == "}" and outer:
            before, inner = outer.pop()
            ways = [start + way for start in before for way in inner + ways]
            if len(ways) > MAX_WAYS:
                raise ValueError("too many alternatives")
        else:
            ways = [way + piece for way in ways]
    if outer or pattern.count("{") > MAX_WAYS:
        raise ValueError("a { is not closed" if outer else "too many alternatives")
    return ways


def _parts(pattern: Sequence[str]) -> list[_Part]:
    """One for each part of a path. `**` at the end stands for one part at least."""
    parts = [None if part == "**" else _known_parts[part] for part in pattern if part]
    return [*parts, _known_parts["*"]] if parts and parts[-1] is None else parts


_TOKEN = re.compile(r"(?P<star>\*+)|(?P<any>\?)|\[(?P<class>[!^]?+.[^\]]*)\]|(?P<open>\[)|\\?(?P<char>.)", re.DOTALL)


def _part(pattern: str) -> re.Pattern[str]:
    """The expression for one part. What follows a star is looked for once only, so no pattern takes for ever."""
    pieces = [""]
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "star":
                pieces.append("")
            case "any":
                pieces[-1] += "."
            case "class":
                pieces[-1] += _class(token["class"])
            case "open":
                raise ValueError("a [ is not closed")
            case _:
                pieces[-1] += re.escape(token["char"])
    first, *rest = pieces
    if not rest:
        return re.compile(first, re.DOTALL)
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}", re.DOTALL)


_known_parts = Cache(_part)


def _class(inside: str) -> str:
    negated = inside.startswith(("!", "^"))
    chars = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
    return f"[{'^' if negated else ''}{chars}]"


def _fits(pattern: Sequence[_Part], parts: Parts) -> bool:
    """Whether a path matches, by simulating all states at once."""
    if len(pattern) == 2 and pattern[0] is None and pattern[1] is not None:
        return pattern[1].fullmatch(parts[-1]) is not None
    states = _reached(pattern, {0})
    for part in parts:
        following: set[int] = set()
        for state in states:
            if state < len(pattern):
                one = pattern[state]
                if one is None:
                    following.add(state)
                elif one.fullmatch(part):
                    following.add(state + 1)
        states = _reached(pattern, following)
    return len(pattern) in states


def _reached(pattern: Sequence[_Part], states: set[int]) -> set[int]:
    """The states including those after a `**`, which may match nothing."""
    for state in range(len(pattern)):
        if state in states and pattern[state] is None:
            states.add(state + 1)
    return states


class IgnoreRule(msgspec.Struct, frozen=True):
    """A line of a `.gitignore`."""

    parts: list[_Part]
    is_negated: bool
    only_folders: bool


Layers: TypeAlias = tuple[tuple[int, list[IgnoreRule]], ...]
"""The rules of each folder on the way down, with the number of its parts."""


class Folder(msgspec.Struct, frozen=True):
    """A folder on the way: its parts from where the search began, and the rules that hold in it.

    Rules hold within a repository only, and end where another one begins.
    """

    parts: Parts
    layers: Layers


def walk(root: Path) -> Iterator[Parts]:
    """The files below a folder that are not ignored, in the order of their names.

    Hidden files too, but no links, nothing in `.git` and nothing that a `.gitignore` of the repository names. A folder
    that is named outright is searched even if it is ignored. What ripgrep would also read is not read: `.ignore`,
    `.rgignore`, `.git/info/exclude`, the user's own excludes. Outside of a repository, a `.gitignore` means nothing.
    """
    prefix, folder = _above(root)
    stack = [_entries(root, prefix, folder)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
        elif isinstance(found, Folder):
            stack.append(_entries(root, prefix, found))
        else:
            yield found


def _above(root: Path) -> tuple[Parts, Folder]:
    """Where a folder is in its repository, and what it has from the folders above it."""
    top = next((each for each in (root, *root.parents) if os.path.lexists(each / GIT)), None)
    if top is None:
        return (), Folder((), ())
    prefix = root.relative_to(top).parts
    layers = tuple((depth, _rules(top.joinpath(*prefix[:depth]))) for depth in range(len(prefix)))
    return prefix, Folder((), layers)


def _entries(root: Path, prefix: Parts, folder: Folder) -> Iterator[Parts | Folder]:
    """The files and folders in a folder."""
    path = root.joinpath(*folder.parts)
    entries: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(path) as found:
        entries = sorted(found, key=lambda each: os.fsencode(each.name))
    begins = any(each.name == GIT for each in entries)
    layers = () if begins else folder.layers
    if begins or layers:  # within a repository
        layers = (*layers, (len(prefix) + len(folder.parts), _rules(path)))
    for each in entries:
        parts = (*folder.parts, each.name)
        is_folder = each.is_dir(follow_symlinks=False)
        if each.name == GIT or not (is_folder or each.is_file(follow_symlinks=False)):
            continue
        if not _is_ignored((*prefix, *parts), layers, is_folder):
            yield Folder(parts, layers) if is_folder else parts


def _is_ignored(parts: Parts, layers: Layers, is_folder: bool) -> bool:
    """The last rule that fits decides, in the deepest folder that has one."""
    for depth, rules in reversed(layers):
        for rule in reversed(rules):
            if (is_folder or not rule.only_folders) and _fits(rule.parts, parts[depth:]):
                return not rule.is_negated
    return False


def _rules(folder: Path) -> list[IgnoreRule]:
    text = ""
    with suppress(OSError):
        text = (folder / ".gitignore").read_text("utf-8-sig", errors="surrogateescape")
    return [rule for line in text.split("\n") if (rule := _rule(line.removesuffix("\r"))) is not None]


def _rule(line: str) -> IgnoreRule | None:
    if line.startswith("#"):
        return None
    line = re.sub(r"(?<!\\)[ \t]+$", "", line)
    is_negated = line.startswith("!")
    line = line[is_negated:]
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    parts = line.removeprefix("/").split("/") if "/" in line else ["**", line]
    try:
        return IgnoreRule(_parts(parts), is_negated, only_folders)
    except (re.error, ValueError):
        return None  # git ignores it too
