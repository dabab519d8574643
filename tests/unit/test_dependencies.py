"""What the package imports is declared, and what an extra brings is needed by that extra alone."""

import ast
import asyncio
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolwire.agent import Agent, ServerFailed
from toolwire.agent.mcp import Server
from toolwire.cli import app
from toolwire.cli.doctor import examine
from toolwire.config.settings import Settings, SettingsError, load
from toolwire.gateway.serve import check
from toolwire.imports import REQUIREMENTS, install_command, missing_extra

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = {
    "google": "toolwire/upstream/google_login",
    "mcp": "toolwire/agent/mcp/",
    "postgres": "toolwire/memory/postgres/",
}
"""The folder whose modules import what an extra installs."""
MODULES = {
    "google-auth": "google",
    "markdown-it-py": "markdown_it",
    "mcp-types": "mcp_types",
    "prometheus-client": "prometheus_client",
}
"""Where a distribution has another name than its module."""
MAX_PACKAGES = 30


def modules(requirements: list[str]) -> set[str]:
    """The top-level modules of requirements."""
    names = (re.split(r"[<>=!;\[ ]", each)[0] for each in requirements)
    return {MODULES.get(name, name).partition(".")[0] for name in names}


def imported(node: ast.AST) -> Iterator[str]:
    """The top-level modules that code imports, also inside functions, but not for a type checker alone."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            for other in each.orelse:
                yield from imported(ast.Module([other], []))
        elif isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.partition(".")[0]
        else:
            yield from imported(each)


def test_every_import_is_declared():
    plain = modules(PROJECT["dependencies"])
    own = {*sys.stdlib_module_names, "compression", "toolwire"}  # which Python has from 3.14 on
    undeclared: dict[str, set[str]] = {}
    used: set[str] = set()
    for path in (ROOT / "src").glob("toolwire/**/*.py"):
        name = path.relative_to(ROOT / "src").as_posix()
        found = {*imported(ast.parse(path.read_text()))} - own
        used |= found
        extra = next((modules(EXTRAS[extra]) for extra, folder in PACKAGES.items() if name.startswith(folder)), set())
        if found - plain - extra:
            undeclared[name] = found - plain - extra
    assert undeclared == {}
    assert plain <= used


def pins(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    return {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}


def test_a_plain_installation_is_small_and_has_nothing_of_an_extra():
    plain, extras = pins("requirements.txt"), pins("requirements-extras.txt")
    assert len(plain) <= MAX_PACKAGES
    assert not plain & extras
    assert {"mcp", "asyncpg", "pydantic", "httpx2"} <= extras


def test_a_hint_installs_what_pyproject_declares():
    assert {extra: requirements[0] for extra, requirements in EXTRAS.items()} == REQUIREMENTS


def test_a_hint_fits_an_environment_without_pip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/opt/my tools/bin/python")
    assert install_command("mcp") == "'/opt/my tools/bin/python' -m pip install 'mcp>=2.3,<3'"
    monkeypatch.setitem(sys.modules, "pip", None)
    assert install_command("mcp") == "uv pip install --python '/opt/my tools/bin/python' 'mcp>=2.3,<3'"


def test_all_modules_but_those_of_an_extra_are_imported_without_extras():
    absent = {name for requirements in EXTRAS.values() for name in modules(requirements)} - {"anyio"}
    paths = [path.relative_to(ROOT / "src").with_suffix("") for path in (ROOT / "src").glob("toolwire/**/*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"]
    needing = {"toolwire.memory.postgres"}
    needing |= {f"toolwire.agent.mcp.{name}" for name in ("connection", "content", "transports")}
    program = f"""if True:
        import importlib, sys
        sys.modules.update(dict.fromkeys({sorted(absent)!r}))
        failed = set()
        for name in {sorted(names)!r}:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name in {sorted(absent)!r}, error
                failed.add(name)
        print(*failed)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    failed = {name for name in done.stdout.split() if not name.startswith("toolwire.memory.postgres.")}
    assert failed == needing


# Without the package mcp

LINE = f"MCP servers need the package mcp, which is not installed: {sys.executable} -m pip install 'mcp>=2.3,<3'"


@pytest.fixture
def without_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that has no package mcp."""
    for name in [each for each in sys.modules if each.partition(".")[0] in ("mcp", "mcp_types")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "x"}}}))
    return path


@pytest.fixture
def settings(servers: Path) -> Path:
    path = servers.with_name("toolwire.toml")
    path.write_text('[gateway_tools]\nmcp = "servers.json"\n')
    path.chmod(0o600)
    return path


def test_with_the_package_nothing_is_said():
    assert missing_extra("mcp") == ""


@pytest.mark.usefixtures("without_mcp")
def test_the_command_says_what_to_install(servers: Path, tmp_path: Path):
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = CliRunner().invoke(app, ["run", "-m", "demo", "--mcp", str(servers), "Hi"], env=environment)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"toolwire: --mcp: {LINE}\n")
    assert not (tmp_path / "state").exists(), "no session began"
    servers.write_text('{"mcpServers": {}}')
    done = CliRunner().invoke(app, ["run", "-m", "demo", "--mcp", str(servers), "Hi"], env=environment)
    assert done.exit_code == 0, "no server, no need"


@pytest.mark.usefixtures("without_mcp")
def test_the_gateway_says_what_to_install(settings: Path, tmp_path: Path):
    done = CliRunner().invoke(app, ["serve", "--port", "0", "-c", str(settings)], env={"HOME": str(tmp_path)})
    said = f"toolwire: {settings}: gateway_tools.mcp: {LINE}\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)
    with pytest.raises(SettingsError) as raised:
        check(load(str(settings)))
    assert str(raised.value) == f"{settings}: gateway_tools.mcp: {LINE}"


@pytest.mark.usefixtures("without_mcp")
def test_the_doctor_says_what_to_install(settings: Path):
    findings = asyncio.run(examine(str(settings)))
    assert [each.text for each in findings if each.state == "bad" and each.name == "configuration"] == [
        f"{settings}: gateway_tools.mcp: {LINE}"
    ]


@pytest.mark.usefixtures("without_mcp")
def test_the_library_says_what_to_install():
    agent = Agent("demo", mcp_servers=[Server(name="s", command="x")], settings=Settings.from_dict({}))
    with pytest.raises(ServerFailed) as raised:
        agent.run_sync("Hi")
    assert str(raised.value) == LINE
