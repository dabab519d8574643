"""Files are completed by what was typed of them."""

from pathlib import Path

from toolwire.agent.terminal.completion import Files


def test_names_that_have_the_characters_in_this_order_are_found(tmp_path: Path) -> None:
    for name in ("button.tsx", "notes.md", "bench.toml"):
        (tmp_path / name).write_text("")
    assert Files(tmp_path).matching("btn") == ["button.tsx"]
    assert Files(tmp_path).matching("b") == ["bench.toml", "button.tsx"]
    assert Files(tmp_path).matching("md.notes") == []


def test_a_long_name_of_one_character_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / ("a" * 250)).write_text("")
    assert Files(tmp_path).matching("a" * 40 + "b") == []
