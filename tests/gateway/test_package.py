"""The package as users get it: a wheel in an environment of its own, run from an empty directory."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from scripts import try_wheel

import toolwire
from tests.support.backend_writers import reply
from tests.support.gateway import PROXIES
from tests.support.scripts import Calls, Says, Script
from tests.support.upstream import Asked, Reply, Upstream

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that TOOLWIRE_TEST_WHEEL names, or one built from a copy, so that nothing is left in the repository."""
    built = os.environ.get("TOOLWIRE_TEST_WHEEL")
    if built:
        return Path(built).resolve()
    copy = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    [made] = copy.glob("*.whl")
    return made


def plain_packages() -> set[str]:
    """The packages that a plain installation brings, without what is needed to build."""
    pins = (line.partition("==")[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line)
    return {*pins} - {"setuptools"}


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a clean environment that has the wheel and its dependencies, and nothing else.

    The dependencies are links to those of this environment.
    """
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in plain_packages():
        found = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    install = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, "--disable-pip-version-check", str(wheel)], check=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and all packages of this one, which the examples need."""
    folder = tmp_path_factory.mktemp("examples")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    [installed] = plain.parent.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{installed}\n{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    hidden = (*PROXIES, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    kept |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which saves loading those of this environment
    return {**kept, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}


def test_the_wheel_says_who_made_it_and_holds_nothing_but_the_package(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert {name.split("/")[0] for name in names} == {"toolwire", f"toolwire-{toolwire.__version__}.dist-info"}
    assert {
        "toolwire/py.typed",
        "toolwire/note_texts.toml",
        "toolwire/check/rules.toml",
        "toolwire/check/report/style.css",
    } <= {*names}
    files = [*ROOT.glob("src/toolwire/**/*.py"), *ROOT.glob("src/toolwire/memory/*/*.sql")]
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= {*names}
    for line in ("Author: Toolwire contributors", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in metadata.split("\n")
    assert "Requires-Dist: aiohttp>=3.14" in metadata
    assert 'Requires-Dist: mcp<3,>=2.3; extra == "mcp"' in metadata


def test_the_installed_program_works_in_a_plain_installation(plain: Path, tmp_path: Path):
    """Its version, the gateway, an agent and the line about what is an extra, all from an empty directory."""
    assert try_wheel.count_packages(plain) == len(plain_packages()) + 1
    try_wheel.try_program(plain.with_name("toolwire"), tmp_path, toolwire.__version__)


def loaded_by(program: str) -> set[str]:
    """The packages that a program has loaded in the end, beside those that Python itself begins with."""
    show = f"import sys; before = {{*sys.modules}}; {program}; import json; print(json.dumps([*{{*sys.modules}} - before]))"
    asked = subprocess.run([sys.executable, "-c", show], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(asked.stdout)}
    return loaded - {"typing_extensions"}  # which msgspec uses where it is installed


@pytest.mark.parametrize(
    "program",
    [
        "import toolwire",
        "import toolwire; toolwire.collect(toolwire.decode_stream('chat', []))",
        "import toolwire; [*toolwire.translate('chat', 'messages', [])]",
        "import toolwire; toolwire.convert_request('chat', 'responses', {'model': 'm', 'messages': [{'role': 'user', 'content': 'x'}]})",
        "import toolwire; toolwire.check_stream('chat', [])",
        "import toolwire; dir(toolwire)",
    ],
)
def test_the_library_alone_loads_msgspec_and_nothing_else(program: str):
    """Whoever needs the aggregator, or a stream, does not pay for a server."""
    loaded = loaded_by(program)
    assert loaded - sys.stdlib_module_names == {"msgspec", "toolwire"}
    assert not loaded & {"asyncio", "http", "sqlite3", "ssl"}


def test_only_the_gateway_loads_a_server():
    assert {"starlette", "aiohttp", "sqlite3", "asyncio"} <= loaded_by("import toolwire; toolwire.create_app")


# The examples


def example(name: str, folder: Path) -> Path:
    """A copy of an example, which finds nothing of the repository around it."""
    return Path(shutil.copytree(ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")))


def test_every_example_is_tested_and_explained():
    names = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    tested = Path(__file__).read_text()
    assert [name for name in names if f'"{name}"' not in tested] == []
    assert [name for name in names if f"({name}/" not in (ROOT / "examples" / "README.md").read_text()] == []


def test_the_checker_of_streams_runs_in_pytest(python: Path, tmp_path: Path, environment: dict[str, str]):
    folder = example("stream_checker", tmp_path)
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    broken = folder / "captured" / "broken.chat.sse"
    broken.write_bytes((folder / "captured" / "calls.chat.sse").read_bytes().replace(b'"index":0,"id"', b'"id"'))
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "chat.call-index" in done.stdout


def test_the_loop_of_completions_ends_with_an_answer(python: Path, tmp_path: Path, environment: dict[str, str]):
    program = example("completions", tmp_path) / "tool_loop.py"
    run = [python, program, "What is the weather in Rome?"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr) == ("According to get_weather: 18 degrees in Rome\n", "")


def test_the_support_desk_passes_its_own_tests(python: Path, tmp_path: Path, environment: dict[str, str]):
    folder = example("agent", tmp_path)
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def chat_service(python: Path, upstream: Upstream, tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of the service that translates, in front of the scripted upstream."""
    folder = example("responses_for_chat", tmp_path)
    variables = {**environment, "RESPONSES_URL": upstream.url, "RESPONSES_KEY": "sk-example"}
    with subprocess.Popen(
        [python, "-m", "uvicorn", "service:app", "--port", "0"],
        cwd=folder,
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if "Uvicorn running on " in line)
        yield ready.split("running on ")[1].split()[0]
        process.terminate()
        process.stderr.read()


def test_chat_clients_use_a_server_of_the_responses_api(chat_service: str, upstream: Upstream):
    long = "a_tool_with_a_name_that_is_much_longer_than_the_sixty_four_characters_of_openai"
    tools: list[Any] = [{"type": "function", "function": {"name": long, "parameters": {"type": "object"}}}]

    def told(asked: Asked) -> Reply:
        name = asked.body["tools"][0]["name"]
        script = Script((Says("So."), Calls("call_a", name, '{"q":1}')))
        return reply(script, "responses", stream=bool(asked.body.get("stream")))

    upstream.replies["example"] = told
    client = openai.OpenAI(base_url=f"{chat_service}/v1", api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    whole = client.chat.completions.create(model="example", messages=messages, tools=tools)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_a", long, '{"q":1}')
    with client.chat.completions.stream(model="example", messages=messages, tools=tools) as stream:
        streamed = stream.get_final_completion()
    [call] = streamed.choices[0].message.tool_calls or []
    assert (call.id, call.function.name, streamed.choices[0].finish_reason) == ("call_a", long, "tool_calls")
    assert upstream.of("example")[-1].headers["authorization"] == "Bearer sk-example"

    upstream.replies["example"] = Reply([b'{"error":{"message":"Slow down."}}'], 429, "application/json")
    with pytest.raises(openai.RateLimitError, match="Slow down"):
        client.chat.completions.create(model="example", messages=messages)
    with pytest.raises(openai.BadRequestError, match="model"):
        client.chat.completions.create(model="", messages=messages)
