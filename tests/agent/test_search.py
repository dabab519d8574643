"""Glob and Grep on real trees. Grep is asked twice: with ripgrep and without."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.test_files import ordinary_user, own_folder
from toolwire.agent.tools import search
from toolwire.agent.tools.search import glob, grep
from toolwire.agent.tools.walk import walk
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Tool

__all__ = ["own_folder"]


def within(folder: Path) -> Context:
    return Context(folder, lambda text: None, writable=False)


def call_of(tool: Tool, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(tool.name, "call_1", FunctionPayload(msgspec.json.encode(arguments).decode()))


def run(tool: Tool, folder: Path, **arguments: Any) -> str:
    return asyncio.run(tool.run(call_of(tool, arguments), within(folder))).text


def lines(tool: Tool, folder: Path, **arguments: Any) -> list[str]:
    text = run(tool, folder, **arguments)
    return [] if text.startswith("No ") else text.split("\n")


def refusal(tool: Tool, folder: Path, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        run(tool, folder, **arguments)
    return str(caught.value)


def put(folder: Path, *names: str, text: str = "needle\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def ripgrep() -> str:
    """The one that the development requirements bring along."""
    return str(Path(sys.executable).with_name("rg"))


@pytest.fixture(params=["ripgrep", "python"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    programs = tmp_path_factory.mktemp("programs")
    if request.param == "ripgrep":
        (programs / "rg").symlink_to(ripgrep())
    monkeypatch.setenv("PATH", str(programs))
    return request.param


@pytest.fixture
def python(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("nothing")))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A tree that has what is to be left out."""
    (tmp_path / ".git").mkdir()
    put(tmp_path, ".git/config", "main.py", "src/app.py", "src/app.ts", "src/deep/x.py", "docs/a.md", ".github/ci.yml")
    put(tmp_path, "build/out.py", "src/deep/x.log", "src/keep.log", "node_modules/m/index.js")
    put(tmp_path, ".gitignore", text="# made\nbuild/\n*.log\nnode_modules\n")
    put(tmp_path, "src/.gitignore", text="!keep.log\n")
    return tmp_path


# What the model is told of the tools


def test_searching_may_run_beside_others():
    assert [(tool.name, tool.kind, tool.parallel, tool.writes) for tool in (glob, grep)] == [
        ("Glob", "function", True, False),
        ("Grep", "function", True, False),
    ]


def test_the_arguments_of_grep_are_those_of_its_schema():
    assert grep.parameters is not None
    schema = msgspec.json.decode(grep.parameters)
    assert list(schema["properties"]) == ["pattern", "path", "glob", "mode", "ignore_case", "context", "limit"]
    assert (schema["required"], schema["additionalProperties"]) == (["pattern"], False)
    assert schema["properties"]["mode"]["enum"] == ["count", "files", "lines"]


# Glob


def test_a_name_is_found_at_any_depth(repository: Path):
    assert sorted(lines(glob, repository, pattern="*.py")) == ["main.py", "src/app.py", "src/deep/x.py"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("src/*.py", ["src/app.py"]),
        ("src/**/*.py", ["src/app.py", "src/deep/x.py"]),
        ("**/x.py", ["src/deep/x.py"]),
        ("src/app.{py,ts}", ["src/app.py", "src/app.ts"]),
        ("{src,docs}/*.{md,t[a-s]}", ["docs/a.md", "src/app.ts"]),
        ("{src/{app,none},docs/a}.{ts,md}", ["docs/a.md", "src/app.ts"]),
        ("src/app.?[!y]", ["src/app.ts"]),
        ("s*c/*/*.p?", ["src/deep/x.py"]),
        ("docs/", ["docs/a.md"]),
        ("docs/**", ["docs/a.md"]),
        ("./docs/*", ["docs/a.md"]),
        ("src/deep/../app.*", ["src/app.py", "src/app.ts"]),
        (".github/*", [".github/ci.yml"]),
        ("*.log", ["src/keep.log"]),
        ("build/*.py", ["build/out.py"]),
        ("node_modules/**", ["node_modules/m/index.js"]),
        ("*.none", []),
        ("config", []),
    ],
)
def test_what_a_pattern_finds(repository: Path, pattern: str, found: list[str]):
    assert sorted(lines(glob, repository, pattern=pattern)) == found


def test_a_pattern_may_be_absolute(repository: Path):
    assert lines(glob, repository, pattern=f"{repository}/docs/*") == ["docs/a.md"]


def test_letters_can_be_escaped(tmp_path: Path):
    put(tmp_path, "[id].ts", "i.ts", "{a}", "a*")
    assert lines(glob, tmp_path, pattern="\\[id\\].ts") == ["[id].ts"]
    assert lines(glob, tmp_path, pattern="[[]id].ts") == ["[id].ts"]
    assert lines(glob, tmp_path, pattern="\\{a\\}") == ["{a}"]
    assert lines(glob, tmp_path, pattern="a\\*") == ["a*"]


def test_all_files_are_all_that_are_not_ignored(repository: Path):
    found = [".gitignore", ".github/ci.yml", "docs/a.md", "main.py"]
    found += ["src/.gitignore", "src/app.py", "src/app.ts", "src/deep/x.py", "src/keep.log"]
    assert sorted(lines(glob, repository, pattern="**/*")) == sorted(found)
    assert sorted(lines(glob, repository, pattern="**")) == sorted(found)


def test_the_newest_file_comes_first(tmp_path: Path):
    for age, name in enumerate(("c", "a", "b")):
        put(tmp_path, name)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert lines(glob, tmp_path, pattern="*") == ["c", "a", "b"]


def test_too_many_files_are_cut_and_counted(tmp_path: Path):
    put(tmp_path, *(f"{number}.txt" for number in range(search.MAX_GLOB_FILES + 5)))
    found = lines(glob, tmp_path, pattern="*.txt")
    assert len(found) == search.MAX_GLOB_FILES + 1
    assert found[-1] == "[the newest 200 of 205 files; narrow the pattern or the path]"


def test_a_search_for_names_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "SEARCH_TIMEOUT", -1.0)
    put(tmp_path, "a")
    assert run(glob, tmp_path, pattern="*") == "[stopped after -1 seconds; narrow the path]"


def test_nothing_found_says_so(tmp_path: Path):
    assert run(glob, tmp_path, pattern="*.rs") == "No files match *.rs."


def test_a_missing_folder_names_similar_ones(repository: Path):
    assert refusal(glob, repository, pattern="*", path="sources") == "there is no sources; similar: src"
    assert refusal(glob, repository, pattern="doc/*.md") == "there is no doc; similar: docs"
    assert "is a file" in refusal(glob, repository, pattern="*", path="main.py")


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "src/../../*"])
def test_no_pattern_leads_out_of_the_roots(repository: Path, pattern: str):
    assert "is outside the folders" in refusal(glob, repository / "src", pattern=pattern)


def test_links_are_not_followed(tmp_path: Path):
    put(tmp_path, "outside/secret", "work/a")
    (tmp_path / "work/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "work/file").symlink_to(tmp_path / "outside/secret")
    assert lines(glob, tmp_path / "work", pattern="**/*") == ["a"]
    assert "is outside the folders" in refusal(glob, tmp_path / "work", pattern="folder/*")


@pytest.mark.parametrize("pattern", ["[a", "{a,b", "{a,b}" * 30, "[z-a]", "{a}" * 5000])
def test_a_pattern_that_cannot_be_is_explained(tmp_path: Path, pattern: str):
    assert "cannot be used: " in refusal(glob, tmp_path, pattern=pattern)


def test_no_pattern_takes_for_ever(tmp_path: Path):
    put(tmp_path, "a" * 200)
    assert lines(glob, tmp_path, pattern="*a" * 60 + "b") == []  # which would take longer than there are stars
    assert lines(glob, tmp_path, pattern="**/" * 60 + "*a*b") == []


def test_names_that_are_no_text_are_shown_as_well_as_can_be(tmp_path: Path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w") as file:
        file.write("x")
    assert lines(glob, tmp_path, pattern="*.txt") == ["caf\ufffd.txt"]


def test_a_folder_that_may_not_be_read_is_passed_over(own_folder: Path):
    with ordinary_user():
        put(own_folder, "a.py", "shut/b.py")
        (own_folder / "shut").chmod(0)
        assert lines(glob, own_folder, pattern="*.py") == ["a.py"]
        assert refusal(glob, own_folder, pattern="*", path="shut") == "no permission for shut"


def test_a_deep_tree_is_walked():
    deep = "d/" * 1100
    top = Path(tempfile.mkdtemp())
    here = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("x.py", os.O_CREAT, dir_fd=here))
    os.close(here)
    try:
        assert lines(glob, top, pattern="*.py") == [f"{deep}x.py"]
    finally:
        subprocess.run(["rm", "-rf", top], check=True)  # shutil.rmtree cannot


# What is ignored


def test_rules_hold_within_a_repository_only(tmp_path: Path):
    put(tmp_path, ".gitignore", text="*\n")
    put(tmp_path, "a.py", "inner/a.py", "inner/b.py")
    put(tmp_path, "inner/.gitignore", text="a.py\n.gitignore\n")
    (tmp_path / "inner/.git").mkdir()
    assert list(walk(tmp_path)) == [(".gitignore",), ("a.py",), ("inner", "b.py")]
    (tmp_path / ".git").mkdir()
    assert list(walk(tmp_path)) == []
    assert list(walk(tmp_path / "inner")) == [("b.py",)]


def test_rules_of_the_folders_above_hold(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    put(tmp_path, ".gitignore", text="/a/b/x\n*.log\n")
    put(tmp_path, "a/.gitignore", text="!y.log\n/b/z\n")
    put(tmp_path, "a/b/x", "a/b/y.log", "a/b/z", "a/b/z.log", "a/b/c/x")
    assert list(walk(tmp_path / "a/b")) == [("c", "x"), ("y.log",)]


NAMES = ["a", "b", "ab", "a.py", ".h", "x y", "#c", "!b"]
RULES = [
    "a",
    "b/",
    "*.py",
    "/a",
    "a/b",
    "**/b",
    "a/**",
    "a/**/b",
    "!a",
    "!*.py",
    "*",
    "!*/",
    "?",
    "[ab]",
    "[!a]*",
    ".h",
]
RULES += ["x y", "x\\ y", "a ", "\\!b", "\\#c", "#c", "", "**/", "**", "/*", "!/a", "a*b", "[a", "./a", "**/a/", "a/*"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


@given(
    files=st.lists(PATHS, max_size=8),
    rules=st.dictionaries(st.sampled_from(["", "a/", "b/", "a/b/"]), st.lists(st.sampled_from(RULES), max_size=4)),
    inner=st.sampled_from([None, "a", "a/b"]),
    root=st.sampled_from(["", "a", "b"]),
)
def test_ripgrep_leaves_out_the_same(files: list[str], rules: dict[str, list[str]], inner: str | None, root: str):
    program = ripgrep()
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for folder in (".git", "a", "b", *([f"{inner}/.git"] if inner else [])):
            (top / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            try:
                put(top, file)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
        for folder, said in rules.items():
            if (top / folder).is_dir():
                put(top, f"{folder}.gitignore", text="\n".join(said))
        options = ["--no-config", "--files", "--hidden", "--sort=path", "--glob=!.git", "--no-ignore-global"]
        asked = subprocess.run([program, *options, top / root], capture_output=True, text=True, check=False)
        assert [str(Path(top, root, *parts)) for parts in walk(top / root)] == asked.stdout.splitlines()


# Grep


@pytest.mark.usefixtures("engine")
class TestGrep:
    """What both must do alike."""

    def test_lines_have_their_place(self, tmp_path: Path):
        put(tmp_path, "b.txt", text="no\nthe needle\n")
        put(tmp_path, "a/c.txt", text="needle")
        assert lines(grep, tmp_path, pattern="needle") == ["a/c.txt:1:needle", "b.txt:2:the needle"]

    def test_what_is_ignored_is_left_out(self, repository: Path):
        found = [".github/ci.yml", "docs/a.md", "main.py", "src/app.py", "src/app.ts", "src/deep/x.py", "src/keep.log"]
        assert lines(grep, repository, pattern="needle", mode="files") == found

    @pytest.mark.parametrize("path", ["build", "build/out.py", "node_modules/m"])
    def test_what_is_named_is_searched_though_it_is_ignored(self, repository: Path, path: str):
        assert len(lines(grep, repository, pattern="needle", path=path)) == 1

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.py", ["main.py", "src/app.py", "src/deep/x.py"]),
            ("**/*.py", ["main.py", "src/app.py", "src/deep/x.py"]),
            ("src/*.py", ["src/app.py"]),
            ("src/**/*.{py,ts}", ["src/app.py", "src/app.ts", "src/deep/x.py"]),
            ("*.log", ["src/keep.log"]),
            ("s*/app.*", ["src/app.py", "src/app.ts"]),
            ("!*.py", [".github/ci.yml", "docs/a.md", "src/app.ts", "src/keep.log"]),
            ("!src/**", [".github/ci.yml", "docs/a.md", "main.py"]),
            ("build/*", ["build/out.py"]),
        ],
    )
    def test_a_glob_narrows_and_brings_nothing_back(self, repository: Path, pattern: str, found: list[str]):
        assert lines(grep, repository, pattern="needle", mode="files", glob=pattern) == found

    def test_a_glob_is_seen_from_the_path(self, repository: Path):
        assert lines(grep, repository, pattern="needle", mode="files", path="src", glob="deep/*") == ["src/deep/x.py"]

    def test_one_file_is_searched_whatever_the_glob(self, repository: Path):
        assert lines(grep, repository, pattern="ne+dle", path="main.py", glob="docs/*.md") == ["main.py:1:needle"]

    def test_matching_lines_are_counted(self, tmp_path: Path):
        put(tmp_path, "a", text="x x\ny\nx\n")
        put(tmp_path, "b", text="x")
        put(tmp_path, "c", text="y")
        assert lines(grep, tmp_path, pattern="x", mode="count") == ["a:2", "b:1"]

    def test_case_counts_unless_it_does_not(self, tmp_path: Path):
        put(tmp_path, "a", text="ÄPFEL\näpfel\n")
        assert lines(grep, tmp_path, pattern="äpfel") == ["a:2:äpfel"]
        assert lines(grep, tmp_path, pattern="äpfel", ignore_case=True) == ["a:1:ÄPFEL", "a:2:äpfel"]

    def test_lines_around_are_shown_once(self, tmp_path: Path):
        put(tmp_path, "a", text="1\nx\n3\nx\n5\n6\n7\n8\nx\n")
        put(tmp_path, "b", text="x\n")
        assert lines(grep, tmp_path, pattern="x", context=1) == [
            *("a-1-1", "a:2:x", "a-3-3", "a:4:x", "a-5-5", "--", "a-8-8", "a:9:x", "--", "b:1:x")
        ]

    def test_lines_around_are_for_lines_only(self, tmp_path: Path):
        put(tmp_path, "a", text="1\nx\n3\n")
        assert lines(grep, tmp_path, pattern="x", context=1, mode="files") == ["a"]
        assert lines(grep, tmp_path, pattern="x", context=1, mode="count") == ["a:1"]

    @pytest.mark.parametrize(("mode", "what"), [("lines", "lines"), ("files", "files"), ("count", "files")])
    def test_more_than_the_limit_is_told(self, tmp_path: Path, mode: str, what: str):
        put(tmp_path, "a", "b", "c")
        found = lines(grep, tmp_path, pattern="needle", mode=mode, limit=2)
        assert len(found) == 3
        assert found[2] == f"[more results follow the first 2 {what}; narrow the search, or raise the limit]"
        assert len(lines(grep, tmp_path, pattern="needle", mode=mode, limit=3)) == 3

    def test_a_file_with_many_matches_is_cut_within(self, tmp_path: Path):
        put(tmp_path, "a", text="needle\n" * 5000)
        found = lines(grep, tmp_path, pattern="needle", limit=10)
        assert found[9:] == [
            "a:10:needle",
            "[more results follow the first 10 lines; narrow the search, or raise the limit]",
        ]

    def test_a_long_line_is_cut(self, tmp_path: Path):
        put(tmp_path, "a", text="needle" + "é" * 1_000_000)
        assert lines(grep, tmp_path, pattern="needle") == [f"a:1:needle{'é' * 394}… [999606 more characters]"]

    def test_a_flood_is_cut(self, tmp_path: Path):
        put(tmp_path, "a", text=("needle" + "x" * 390 + "\n") * 1000)
        assert len(run(grep, tmp_path, pattern="needle", limit=1000)) < search.MAX_RESULT_CHARS + 1000

    def test_windows_line_endings_are_no_part_of_a_line(self, tmp_path: Path):
        (tmp_path / "a").write_bytes(b"one\r\ntwo needle\r\n")
        assert lines(grep, tmp_path, pattern="needle$") == ["a:2:two needle"]

    @pytest.mark.parametrize("data", [b"needle\n\0", b"\0needle\n", b"needle\n" * 20_000 + b"\0"])
    def test_binary_files_are_passed_over(self, tmp_path: Path, data: bytes):
        (tmp_path / "a").write_bytes(data)
        assert lines(grep, tmp_path, pattern="needle", mode="count") == []
        assert refusal(grep, tmp_path, pattern="needle", path="a") == "a is a binary file"

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_marks_of_an_encoding_are_no_part_of_a_line(self, tmp_path: Path, encoding: str):
        (tmp_path / "a").write_bytes("nädel\nx\n".encode(encoding))
        assert lines(grep, tmp_path, pattern="^nädel$") == ["a:1:nädel"]

    def test_bytes_that_are_no_text_are_shown_as_well_as_can_be(self, tmp_path: Path):
        with open(os.fsencode(tmp_path) + b"/caf\xe9", "wb") as file:
            file.write(b"caf\xe9 needle\n")
        assert lines(grep, tmp_path, pattern="needle") == ["caf\ufffd:1:caf\ufffd needle"]

    def test_names_of_all_languages_work(self, tmp_path: Path):
        put(tmp_path, "données/文 件.txt")
        assert lines(grep, tmp_path, pattern="needle", glob="文*.txt") == ["données/文 件.txt:1:needle"]

    def test_nothing_found_says_so(self, tmp_path: Path):
        put(tmp_path, "a", "empty", text="")
        assert run(grep, tmp_path, pattern="^") == "No matches for ^."

    def test_empty_lines_match(self, tmp_path: Path):
        put(tmp_path, "a", text="x\n\ny")
        assert lines(grep, tmp_path, pattern="^$") == ["a:2:"]

    @pytest.mark.parametrize("pattern", ["(x", "[a", "*", "x{2,1}"])
    def test_a_pattern_that_cannot_be_is_explained(self, tmp_path: Path, pattern: str):
        put(tmp_path, "a", text="x")
        told = refusal(grep, tmp_path, pattern=pattern)
        assert told.startswith(f"the pattern {pattern!r} cannot be used: ")
        assert "\n" not in told

    @pytest.mark.parametrize("pattern", ["-needle", "--files", "-e"])
    def test_a_pattern_is_no_option(self, tmp_path: Path, pattern: str):
        put(tmp_path, "a", text=f"{pattern}\n")
        assert lines(grep, tmp_path, pattern=pattern) == [f"a:1:{pattern}"]

    @pytest.mark.parametrize("pattern", ["a\nb", "a\\nb", "\\\\\\n"])
    def test_a_match_is_within_one_line(self, tmp_path: Path, pattern: str):
        assert "within one line" in refusal(grep, tmp_path, pattern=pattern)

    def test_a_backslash_before_an_n_is_no_line_break(self, tmp_path: Path):
        put(tmp_path, "a", text="C:\\new\n")
        assert lines(grep, tmp_path, pattern="C:\\\\new") == ["a:1:C:\\new"]

    def test_links_are_not_followed(self, tmp_path: Path):
        put(tmp_path, "outside/secret", "work/a")
        (tmp_path / "work/folder").symlink_to(tmp_path / "outside")
        (tmp_path / "work/file").symlink_to(tmp_path / "outside/secret")
        assert lines(grep, tmp_path / "work", pattern="needle", mode="files") == ["a"]
        for path in ("folder", "file", "..", "folder/secret"):
            assert "is outside the folders" in refusal(grep, tmp_path / "work", pattern="needle", path=path)

    def test_a_missing_path_names_similar_ones(self, repository: Path):
        assert refusal(grep, repository, pattern="x", path="main.pi") == "there is no main.pi; similar: main.py"

    @pytest.mark.skipif(os.geteuid() == 0, reason="another user: root may read everything")
    def test_what_may_not_be_read_is_passed_over(self, own_folder: Path):
        put(own_folder, "a", "b", "shut/c")
        (own_folder / "b").chmod(0)
        (own_folder / "shut").chmod(0)
        assert lines(grep, own_folder, pattern="needle", mode="files") == ["a"]

    def test_a_file_in_the_working_directory_is_no_code_of_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        put(tmp_path, "re.py", "msgspec.py", text="raise SystemExit('needle')\n")
        monkeypatch.chdir(tmp_path)
        assert lines(grep, tmp_path, pattern="needle", mode="files") == ["msgspec.py", "re.py"]


@pytest.mark.parametrize(
    "arguments", [{}, {"pattern": "x", "context": 99}, {"pattern": "x", "mode": "all"}, {"pattern": "x", "a": 1}]
)
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: dict[str, Any]):
    assert refusal(grep, tmp_path, **arguments).startswith("invalid arguments for Grep: ")


def test_arguments_that_are_no_json_are_explained(tmp_path: Path):
    for payload in (FunctionPayload("{"), CustomPayload("x")):
        with pytest.raises(ToolError, match=r"failed to parse function arguments|Grep takes arguments"):
            asyncio.run(grep.run(ToolCall("Grep", "call_1", payload), within(tmp_path)))


def test_a_pattern_has_an_end(tmp_path: Path):
    assert refusal(grep, tmp_path, pattern="x" * 10_001) == "the pattern is too long, or holds a NUL"


@pytest.mark.usefixtures("engine")
def test_a_line_that_is_too_long_to_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "MAX_EVENT_BYTES", 1000)
    put(tmp_path, "a", text="needle" * 1000)
    told = refusal(grep, tmp_path, pattern="needle")
    assert told == "a line that matches is too long to show; narrow the glob or the path"


BAD = "(a+)+$"
"""Takes `re` longer than anybody lives."""


def is_running(word: str) -> bool:
    def said(process: Path) -> bytes:
        try:
            return (process / "cmdline").read_bytes()
        except OSError:
            return b""

    return any(word.encode() in said(process) for process in Path("/proc").glob("[0-9]*"))


@pytest.mark.usefixtures("python")
def test_a_bad_pattern_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "SEARCH_TIMEOUT", 1.0)
    put(tmp_path, "a", text="needle a\n")
    put(tmp_path, "b", text="a" * 60 + "b\n")

    async def watched() -> tuple[str, int]:
        task = asyncio.create_task(grep.run(call_of(grep, {"pattern": BAD}), within(tmp_path)))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return (await task).text, ticks

    told, ticks = asyncio.run(watched())
    assert told.split("\n")[-1] == "[stopped after 1 seconds; narrow the glob or the path]"
    assert ticks > 1, "the loop went on"
    assert not is_running(BAD)


@pytest.mark.usefixtures("python")
def test_a_search_that_is_cancelled_is_over(tmp_path: Path):
    put(tmp_path, "b", text="a" * 60 + "b\n")

    async def cancelled() -> None:
        task = asyncio.create_task(grep.run(call_of(grep, {"pattern": BAD}), within(tmp_path)))
        while not is_running(BAD):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    end = time.monotonic() + 60
    while is_running(BAD) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(BAD)


def test_a_ripgrep_that_cannot_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, "bin/rg", text="no program")
    (tmp_path / "bin/rg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert refusal(grep, tmp_path, pattern="x").startswith("the search could not be started: ")
