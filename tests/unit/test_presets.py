"""Presets: what they fill in, what wins over them, and that the documents say the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from toolwire.config.presets import PRESETS, explain_preset, find_preset
from toolwire.config.settings import ANTHROPIC, OPENAI, Backend, SettingsError, load
from toolwire.config.validate import find_backend_faults

PAGE = (Path(__file__).parent.parent.parent / "docs" / "presets.md").read_text()
KEYS = {preset.api_key_env: "sk-x" for preset in PRESETS.values() if preset.api_key_env}


def loaded(tmp_path: Path, entry: str) -> Backend:
    """The first backend of a file."""
    path = tmp_path / "toolwire.toml"
    path.write_text(f"[[backends]]\n{entry}\n")
    return load(str(path), {"HOME": str(tmp_path), **KEYS}).backends[0]


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, as cells without backticks around them."""
    table = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `") and not line.startswith("| `preset`")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def plain(cell: str) -> str:
    return cell.replace("`", "")


def test_the_table_of_presets_is_that_of_the_code():
    said = {plain(name): tuple(map(plain, rest)) for name, *rest in rows("What each fills in")}
    assert said == {
        name: (each.title, each.kind, each.base_url, each.api_key_env, ", ".join(each.models))
        for name, each in PRESETS.items()
    }


def test_every_fact_has_a_reason_and_no_reason_is_about_another():
    said = {(plain(name), plain(fact)): why for name, fact, why in rows("The facts, and why")}
    assert set(said) == {(name, fact) for name, preset in PRESETS.items() for fact in facts(preset.fields)}
    assert all(len(why) > 20 for why in said.values())


def facts(fields: dict[str, Any]) -> list[str]:
    known = {f"profile.{key}": value for key, value in fields.get("profile", {}).items()}
    known |= {key: fields[key] for key in ("query", "key_header", "auth") if key in fields}
    return [f"{key} = {json.dumps(value)}" for key, value in known.items()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_entry(name: str, tmp_path: Path):
    preset = PRESETS[name]
    url = re.sub("[A-Z]{3,}", "mine", preset.address)
    more = f'\nbase_url = "{url}"' if url else ""
    backend = loaded(tmp_path, f'preset = "{name}"{more}')
    assert (backend.name, backend.kind, backend.api_key_env) == (name, preset.kind, preset.api_key_env)
    assert backend.base_url == (preset.base_url or url)
    assert (backend.models, backend.profile) == (preset.models, preset.profile)
    assert [*find_backend_faults(backend)] == []


def test_what_the_entry_says_wins_key_by_key(tmp_path: Path):
    backend = loaded(
        tmp_path, 'preset = "mistral"\nname = "m"\nmodels = ["a"]\nprofile = { usage = true, strict = false }'
    )
    assert (backend.name, backend.models, backend.kind) == ("m", ("a",), "chat")
    assert backend.profile == {"id_exact": 9, "reasoning": "drop", "usage": True, "strict": False}
    assert backend.base_url == PRESETS["mistral"].base_url


def test_an_empty_key_variable_passes_on_the_key_of_the_client(tmp_path: Path):
    assert not loaded(tmp_path, 'preset = "openrouter"\napi_key_env = ""').has_key


def test_the_profile_of_a_preset_is_for_its_kind_only(tmp_path: Path):
    assert loaded(tmp_path, 'preset = "openai"\nkind = "chat"\nprofile = { developer = true }').profile == {
        "developer": True
    }


def test_what_is_found_without_a_file_is_a_preset(tmp_path: Path):
    for backend in (OPENAI, ANTHROPIC):
        assert backend == loaded(tmp_path, f'preset = "{backend.name}"')


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepsek", "deepseek"),
        ("moonshot", "kimi"),
        ("z.ai", "glm"),
        ("dashscope", "qwen"),
        ("llama.cpp", "llamacpp"),
        ("LM Studio", "lmstudio"),
        ("azure-openai", "azure"),
        ("grok", "xai"),
        ("open router", "openrouter"),
    ],
)
def test_the_nearest_preset_is_found_by_name_and_by_vendor(name: str, near: str):
    assert explain_preset(name) == f"there is no preset {name!r}; did you mean {near}?"


def test_a_preset_that_is_like_none_gets_the_list(tmp_path: Path):
    with pytest.raises(SettingsError, match=re.escape("there is no preset 'watson'; there are openai, anthropic, ")):
        loaded(tmp_path, 'preset = "watson"')


@pytest.mark.parametrize(
    ("url", "owner", "preset"),
    [
        ("https://api.deepseek.com/v1", "", "deepseek"),
        ("https://api.deepseek.com.example.net/v1", "", ""),
        ("https://mine.openai.azure.com/openai/v1", "", "azure"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", "", "bedrock"),
        ("http://127.0.0.1:11434/v1", "", ""),
        ("http://10.0.0.5:9000/v1", "vllm", "vllm"),
        ("http://10.0.0.5:9000/v1", "library", "ollama"),
        ("http://10.0.0.5:9000/v1", "somebody", ""),
    ],
)
def test_a_server_is_known_by_its_vendor_or_by_the_owner_of_its_models(url: str, owner: str, preset: str):
    assert find_preset(url, owner) == preset
