"""Toolwire is held to its own rules: `toolwire check` on every route of a running gateway, and on the page of rules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support import processes
from tests.support.gateway import Gateway
from toolwire.check.rules import RULES, make_page, select_rules

KINDS = ("responses", "chat", "messages", "gemini")
TIME = {"stream.live"}
"""Rules that only a slow stream can show, and a busy machine may break."""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The model: the demo model of a gateway of its own, in every dialect."""
    gateway = Gateway(tmp_path_factory.mktemp("far"))
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def near(far: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway under test, with a backend of every kind in front of the model."""
    urls = {kind: f"{far.url}/v1beta" if kind == "gemini" else far.base_url for kind in KINDS}
    config = "".join(f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "{urls[kind]}"\n' for kind in KINDS)
    gateway = Gateway(tmp_path_factory.mktemp("near"), config)
    yield gateway
    gateway.stop()


def checked(gateway: Gateway, model: str, folder: Path, *options: str) -> None:
    """Check all dialects: nothing may be found, and everything must have been seen."""
    report = folder / "report.json"
    command = (sys.executable, "-m", "toolwire", "check", gateway.url, "--model", model, "--budget", "400")
    done = processes.run(
        (*command, "--report", str(report), *options), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = msgspec.json.decode(report.read_bytes())
    outcomes = {(each["api"], each["rule"]["id"]): each["outcome"] for each in told["verdicts"]}
    assert {rule for (_, rule), outcome in outcomes.items() if outcome == "broken"} <= TIME
    apis = ("chat", "responses", "messages", "gemini")
    assert set(outcomes) == {(api, rule.id) for api in apis for rule in select_rules(api)}
    assert {rule for (_, rule), outcome in outcomes.items() if outcome == "not observed"} <= TIME


@pytest.mark.parametrize("kind", ["demo", *KINDS])
def test_a_route_breaks_no_rule(near: Gateway, kind: str, tmp_path: Path):
    checked(near, "demo" if kind == "demo" else f"{kind}/demo", tmp_path)


def test_the_page_of_rules_is_the_rules():
    page = Path("docs/rules.md").read_text()
    assert page == make_page(), "write it again: python -m toolwire.check.rules > docs/rules.md"
    assert all(f"| `{rule}` |" in page for rule in RULES)
