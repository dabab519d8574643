"""`import toolwire`: the checker's rules on captured data."""

import pytest

from tests.support.chunks import in_any_chunking
from tests.support.scripts import NAMES, Name
from tests.unit.test_library_streams import CALLING
from toolwire import RULES, check_body, check_stream, collect, encode_body, encode_stream


@pytest.mark.parametrize("dialect", NAMES)
def test_what_the_library_writes_breaks_no_rule(dialect: Name):
    data = b"".join(encode_stream(dialect, CALLING))
    assert in_any_chunking(data, lambda chunks: check_stream(dialect, chunks)) == []
    assert check_body(dialect, encode_body(dialect, collect(CALLING))) == []


@pytest.mark.parametrize("dialect", NAMES)
def test_a_stream_that_is_cut_breaks_a_rule_that_must_hold(dialect: Name):
    data = b"".join(encode_stream(dialect, CALLING))
    found = check_stream(dialect, [data[: len(data) * 2 // 3]])
    assert "MUST" in {RULES[finding.rule].level for finding in found}


@pytest.mark.parametrize("dialect", NAMES)
def test_with_the_request_more_rules_apply(dialect: Name):
    data = b"".join(encode_stream(dialect, CALLING))
    tool = {"name": "other", "type": "function", "function": {"name": "other"}}
    for request in ({"model": "m", "tools": [tool]}, b'{"model":"m","tools":[{"name":"other"}]}'):
        assert "calls.name" in {finding.rule for finding in check_stream(dialect, [data], request)}
        body = encode_body(dialect, collect(CALLING))
        assert "calls.name" in {finding.rule for finding in check_body(dialect, body, request)}


@pytest.mark.parametrize("request_body", ["nojson", b"[]", "3"])
def test_a_request_that_is_no_object_is_refused(request_body: str | bytes):
    with pytest.raises(ValueError, match="request: the body of a request must be a JSON object"):
        check_stream("chat", [], request=request_body)


def test_a_body_that_is_no_json_breaks_the_rule_about_that():
    assert [finding.rule for finding in check_body("chat", b"<html>")] == ["plain.json"]
    with pytest.raises(ValueError, match="is no dialect"):
        check_body("claude", b"{}")  # pyright: ignore[reportArgumentType]
