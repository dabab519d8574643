"""Walks a directory tree as ripgrep does, and matches glob patterns and `.gitignore` rules.

Unlike in ripgrep and git, `?` matches a character, not a byte. Matching takes linear time for every pattern: patterns
come from models and from repositories, and neither is trusted.
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
MAX_ALTERNATIVES = 1000
"""Maximum number of patterns that the braces of one pattern may expand to."""

Parts: TypeAlias = tuple[str, ...]
"""The components of a path, from the directory that is searched."""
PathFilter: TypeAlias = Callable[[Parts], bool]


# Patterns


def compile_glob(pattern: str) -> tuple[str, PathFilter]:
    """The directory at the start of a glob pattern, and a filter for the files in it. Raises `ToolError`."""
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
        alternatives = [PathPattern(each.split("/")) for each in _expand_braces("/".join(rest))]
    except (re.error, ValueError, RecursionError) as error:
        raise ToolError(f"the glob {pattern!r} cannot be used: {error}") from None
    return folder, lambda found: is_negated != any(each.matches(found) for each in alternatives)


def _expand_braces(pattern: str) -> list[str]:
    """One pattern for each alternative in `{a,b}`. Raises `ValueError`."""
    ways = [""]
    outer: list[tuple[list[str], list[str]]] = []  # for each open {, the alternatives before it and inside it
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
            if len(ways) > MAX_ALTERNATIVES:
                raise ValueError("too many alternatives")
        else:
            ways = [way + piece for way in ways]
    if outer or pattern.count("{") > MAX_ALTERNATIVES:
        raise ValueError("a { is not closed" if outer else "too many alternatives")
    return ways


class PathPattern:
    """A pattern for whole paths. `**` matches any number of components, at the end of a pattern at least one.

    Raises `ValueError` and `re.error` if it is malformed.
    """

    def __init__(self, components: Sequence[str]) -> None:
        used = [each for each in components if each]
        runs: list[list[re.Pattern[str]]] = [[]]  # the components between two `**`
        for each in used:
            if each == "**":
                runs.append([])
            else:
                runs[-1].append(_compile_component[each])
        if used and used[-1] == "**":
            runs[-1].append(_compile_component["*"])
        self._first, *self._rest = runs

    def matches(self, parts: Parts) -> bool:
        """Whether a path matches: each run at its first occurrence, the last one at the end."""
        if not _matches_at(self._first, parts, 0):
            return False
        at = len(self._first)
        if not self._rest:
            return at == len(parts)
        *inner, last = self._rest
        for run in inner:
            while not _matches_at(run, parts, at):
                at += 1
                if at > len(parts):
                    return False
            at += len(run)
        end = len(parts) - len(last)
        return end >= at and _matches_at(last, parts, end)


def _matches_at(run: Sequence[re.Pattern[str]], parts: Parts, at: int) -> bool:
    if at + len(run) > len(parts):
        return False
    return all(each.fullmatch(parts[at + index]) for index, each in enumerate(run))


_TOKEN = re.compile(r"(?P<star>\*+)|(?P<any>\?)|\[(?P<class>[!^]?+.[^\]]*)\]|(?P<open>\[)|\\?(?P<char>.)", re.DOTALL)


@Cache
def _compile_component(pattern: str) -> re.Pattern[str]:
    """The expression for one component. Atomic groups keep it from backtracking over several stars."""
    pieces = [""]
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "star":
                pieces.append("")
            case "any":
                pieces[-1] += "."
            case "class":
                inside = token["class"]
                is_negated = inside.startswith(("!", "^"))
                chars = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[is_negated:])
                pieces[-1] += f"[{'^' if is_negated else ''}{chars}]"
            case "open":
                raise ValueError("a [ is not closed")
            case _:
                pieces[-1] += re.escape(token["char"])
    first, *rest = pieces
    if not rest:
        return re.compile(first, re.DOTALL)
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}", re.DOTALL)


# Ignore rules


class IgnoreRule(msgspec.Struct, frozen=True):
    """A line of a `.gitignore`."""

    pattern: PathPattern
    is_negated: bool
    only_folders: bool


Layers: TypeAlias = tuple[tuple[int, list[IgnoreRule]], ...]
"""The rules of each directory from the repository down, with its depth. Those of a nested repository start anew."""


def _read_rules(folder: Path) -> list[IgnoreRule]:
    text = ""
    with suppress(OSError):
        text = (folder / ".gitignore").read_text("utf-8-sig", errors="surrogateescape")
    rules: list[IgnoreRule] = []
    for line in text.split("\n"):
        line = re.sub(r"(?<!\\)[ \t]+$", "", line.removesuffix("\r"))  # noqa: PLW2901
        is_negated = line.startswith("!")
        path = line[is_negated:].rstrip("/")
        if path and not line.startswith("#"):
            components = path.removeprefix("/").split("/") if "/" in path else ["**", path]
            with suppress(re.error, ValueError):  # git ignores a malformed rule too
                rules.append(IgnoreRule(PathPattern(components), is_negated, line.endswith("/")))
    return rules


def _is_ignored(parts: Parts, layers: Layers, is_folder: bool) -> bool:
    """Whether a path is ignored: the last rule that matches decides, in the deepest directory that has one."""
    for depth, rules in reversed(layers):
        for rule in reversed(rules):
            if (is_folder or not rule.only_folders) and rule.pattern.matches(parts[depth:]):
                return not rule.is_negated
    return False


# The walk


def walk(root: Path) -> Iterator[Parts]:
    """The files below a directory that are not ignored, in the order of their names.

    This includes hidden files, but no links, nothing in `.git` and nothing that a `.gitignore` of the repository
    ignores. An ignored directory is searched if it is the root. Unlike ripgrep, it does not read `.ignore`,
    `.rgignore`, `.git/info/exclude` and the user's own excludes. Outside a repository, a `.gitignore` has no effect.
    """
    top = next((each for each in (root, *root.parents) if os.path.lexists(each / GIT)), None)
    prefix = root.relative_to(top).parts if top is not None else ()
    layers: Layers = ()
    if top is not None:
        layers = tuple((depth, _read_rules(top.joinpath(*prefix[:depth]))) for depth in range(len(prefix)))
    pending: list[tuple[Parts, Layers | None]] = [((), layers)]  # directories with their rules, and files with None
    while pending:
        parts, outer = pending.pop()
        if outer is None:
            yield parts
            continue
        folder = root.joinpath(*parts)
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(folder) as found:
            entries = sorted(found, key=lambda each: os.fsencode(each.name), reverse=True)
        is_repository = any(each.name == GIT for each in entries)
        layers = () if is_repository else outer
        if is_repository or layers:
            layers = (*layers, (len(prefix) + len(parts), _read_rules(folder)))
        for each in entries:
            is_folder = each.is_dir(follow_symlinks=False)
            if each.name == GIT or not (is_folder or each.is_file(follow_symlinks=False)):
                continue
            inner = (*parts, each.name)
            if not _is_ignored((*prefix, *inner), layers, is_folder):
                pending.append((inner, layers if is_folder else None))
