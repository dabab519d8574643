"""The .sql files: every statement is used, and every name that is used has a statement."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolwire.memory.postgres.schema import STATEMENTS as POSTGRES
from toolwire.memory.sql.statements import SHARED, Statements, read_statements
from toolwire.memory.sqlite.schema import STATEMENTS as SQLITE

MEMORY = Path("src/toolwire/memory")
ENGINES = {"sqlite": SQLITE, "postgres": POSTGRES}


def code(*folders: str) -> str:
    return "\n".join(file.read_text() for folder in folders for file in (MEMORY / folder).glob("*.py"))


def fragments(texts: dict[str, str]) -> Iterator[str]:
    for text in texts.values():
        yield from re.findall(r"\{(\w+)\}", text)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_statement_that_an_operation_names_is_there(engine: str):
    named = re.findall(r"(?:fetch|fetch_one|stream|execute_many|query|change)\(\s*\"(\w+)\"", code("sql", engine))
    assert len(named) > 40
    assert {*named} <= {*ENGINES[engine].texts}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_statement_is_left_that_nothing_uses(engine: str):
    texts = ENGINES[engine].texts
    named = re.findall(r"\"(\w+)\"", code("sql", engine)) + re.findall(r"\{\{(\w+)\}\}", code("sql", engine))
    used = {*named, *re.findall(r"\"(guard_)", code(engine)), *fragments(texts)}
    unused = {name for name in texts if name not in used}
    assert unused <= {"guard_none", "guard_fence", "guard_lease"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_fragment_of_a_shared_statement_is_there(engine: str):
    assert {*fragments(SHARED)} <= {*ENGINES[engine].texts}


def test_a_name_stands_once_in_the_shared_files():
    names = [name for file in (MEMORY / "sql").glob("*.sql") for name in read_statements(file)]
    assert sorted(names) == sorted(SHARED)


def test_one_text_serves_both_engines():
    text = (
        "SELECT {what} FROM toolwire.runs WHERE id = ANY (:ids::text[]) AND used < now() AND is_over = false FOR UPDATE"
    )
    postgres, sqlite = (
        Statements({"what": "id"}, is_sqlite=False)[text],
        Statements({"what": "id"}, is_sqlite=True)[text],
    )
    assert postgres.text.endswith("id = ANY ($1::text[]) AND used < now() AND is_over = false FOR UPDATE")
    assert sqlite.text.strip() == (
        "SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(:ids)) AND used < :now AND is_over = 0"
    )
    assert (postgres.names, sqlite.arrays, sqlite.times) == (("ids",), ("ids",), ("now",))


def test_comments_are_left_out(tmp_path: Path):
    (tmp_path / "a.sql").write_text("-- About.\n\n-- name: one\n-- Why.\nSELECT 1\n\n-- name: none\n")
    assert read_statements(tmp_path / "a.sql") == {"one": "SELECT 1", "none": ""}
