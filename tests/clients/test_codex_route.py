"""`toolwire check` on a route to the real `codex app-server`."""

from pathlib import Path

from tests.check.test_routes import checked, far  # noqa: F401 - a fixture
from tests.clients.codex import PROGRAM, needs_codex
from tests.support.gateway import Gateway


def test_the_route_to_codex_breaks_no_rule(far: Gateway, tmp_path: Path):  # noqa: F811
    needs_codex()
    config = f'[[backends]]\nname = "codex"\nkind = "codex"\nbase_url = "{far.base_url}"\ncommand = ["{PROGRAM}"]\n'
    near = Gateway(tmp_path, config)
    try:
        checked(near, "codex/demo", tmp_path)
    finally:
        near.stop()
