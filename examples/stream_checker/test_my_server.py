"""Holds streams that a server has sent against the rules of `toolwire check`.

Capture one with `curl --no-buffer … > captured/NAME.chat.sse`; the middle of the name is the dialect: `chat`,
`responses` or `messages`. If the request lies beside it as `NAME.request.json`, rules about it apply too.
"""

from pathlib import Path

import pytest

from toolwire import RULES, Dialect, Finding, check_stream

DIALECTS: dict[str, Dialect] = {"chat": "chat", "responses": "responses", "messages": "messages"}
CAPTURED = sorted((Path(__file__).parent / "captured").glob("*.sse"))


def findings(file: Path) -> list[Finding]:
    """What is wrong with a captured stream."""
    name, dialect, _ = file.name.split(".")
    request = file.with_name(f"{name}.request.json")
    return check_stream(DIALECTS[dialect], [file.read_bytes()], request.read_bytes() if request.exists() else None)


@pytest.mark.parametrize("file", CAPTURED, ids=lambda file: file.name)
def test_no_client_loses_a_call(file: Path) -> None:
    """The rules that MUST hold: clients lose or mangle calls where one is broken."""
    broken = [f"{finding}\n  {RULES[finding.rule].harm}" for finding in findings(file) if _must_hold(finding)]
    assert not broken, "\n".join(broken)


def _must_hold(finding: Finding) -> bool:
    return RULES[finding.rule].level == "MUST"


def test_a_stream_that_is_cut_is_found(tmp_path: Path) -> None:
    """The suite notices: half a stream breaks a rule."""
    whole = CAPTURED[0].read_bytes()
    half = tmp_path / CAPTURED[0].name
    half.write_bytes(whole[: len(whole) // 2])
    assert any(map(_must_hold, findings(half)))
