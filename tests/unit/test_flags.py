"""Flags: variables and headers say the same in the same words, and what means nothing is refused by name."""

import pytest

from toolwire.assembly import ToolRules
from toolwire.config.flags import FLAGS, HEADERS, FlagError, with_flags
from toolwire.config.settings import SettingsError, load

BOTH = [(name, field) for flags in (FLAGS, HEADERS) for name, field in flags.items()]

FORMS = {
    "output_mode": {"Obsidian_XML": "obsidian-xml", " obsidian ": "obsidian-xml", "OPENAI": "openai-json", "Auto": "auto"},
    "stop_after_mode": {"First": "first", " BURST": "burst"},
    "name_fallback": {"Position": "position"},
    "arguments": {"Check": "check", "REPAIR ": "repair", "pass": "pass"},
    "responses_events": {"Extended": "extended", "OPENAI": "openai"},
    "stop_after_grace_ms": {"0": 0, " 250 ": 250},
    "max_calls": {"3": 3},
    "delimiter": {"": "", " ": " ", "\\n---\\n": "\n---\n", "True": "True"},
}  # fmt: skip
TRUTHS = {"1": True, "TRUE": True, "Yes": True, " on ": True, "0": False, "False": False, "no": False, "OFF": False}


def told(name: str, text: str) -> ToolRules:
    flags = FLAGS if name in FLAGS else HEADERS
    return with_flags(ToolRules(), flags, {name: text})


@pytest.mark.parametrize(("name", "field"), BOTH)
def test_every_form_is_taken_in_any_case(name, field):
    for text, value in FORMS.get(field, TRUTHS).items():
        assert getattr(told(name, text), field) == value


@pytest.mark.parametrize(("name", "field"), [each for each in BOTH if each[1] != "delimiter"])
def test_a_value_that_means_nothing_is_refused_by_name(name, field):
    for text in ("maybe", "2x", "-1", "null", "truee"):
        with pytest.raises(FlagError, match=name) as caught:
            told(name, text)
        assert text in str(caught.value)


@pytest.mark.parametrize(("name", "field"), [each for each in BOTH if each[1] != "delimiter"])
def test_a_flag_without_a_value_is_not_set(name, field):
    for text in ("", "  "):
        assert told(name, text) == ToolRules()


@pytest.mark.parametrize("name", [*FLAGS, "CODEX_DUMP_SSE"])
def test_a_variable_that_means_nothing_is_an_error_of_the_settings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "PROXY_TOOL_BLOCK_DELIMITER":
        with pytest.raises(SettingsError, match=name):
            load(None, {name: "perhaps"})
    assert load(None, {"PROXY_TOOL_BLOCK_DELIMITER": ""}).tools.delimiter == ""


@pytest.mark.parametrize("field", ["max_calls", "stop_after_grace_ms"])
def test_a_number_below_nothing_is_an_error_of_the_file(field, tmp_path):
    file = tmp_path / "toolwire.toml"
    file.write_text(f"[tools]\n{field} = -1\n")
    with pytest.raises(SettingsError, match=field):
        load(str(file), {})
