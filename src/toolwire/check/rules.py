"""All rules. They are data in rules.toml, which explains the fields of a rule.

`python -m toolwire.check.rules > docs/rules.md` writes them as a page.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from toolwire.check.turns.rule import ALL_APIS, Rule
from toolwire.core.events import Dialect


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules about one subject; their ids begin with its name."""

    description: str
    specification: str = ALL_APIS
    """What the rules are taken from."""
    apis: tuple[str, ...] = ()
    """The APIs that have such rules; empty for all."""


class _RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    areas: dict[str, Area]
    groups: dict[str, list[str]]
    """Names of fields by the name of their group; a rule lists a group as `@name`."""
    rules: dict[str, dict[str, Any]]


_file = msgspec.toml.decode(Path(__file__).with_name("rules.toml").read_bytes(), type=_RuleFile)


def _make_rule(id: str, values: dict[str, Any]) -> Rule:
    area = _file.areas[id.partition(".")[0]]
    names: list[str] = values.get("fields", [])
    fields = [field for name in names for field in (_file.groups[name[1:]] if name.startswith("@") else (name,))]
    defaults = {"apis": area.apis, "specification": area.specification}
    return msgspec.convert({**defaults, **values, "id": id, "fields": fields}, Rule)


AREAS: dict[str, Area] = _file.areas
"""Every area by its name, in the order of docs/rules.md."""

RULES: dict[str, Rule] = {id: _make_rule(id, values) for id, values in _file.rules.items()}
"""Every rule by its id."""


def _find_causes() -> dict[str, set[str]]:
    """For every rule the rules that explain it, directly or through others."""
    causes: dict[str, set[str]] = {id: set() for id in RULES}
    for rule in RULES.values():
        areas = {name.removesuffix(".*") for name in rule.explains if name.endswith(".*")}
        for each in RULES.values():
            if each.id in rule.explains or each.area in areas:
                causes[each.id].add(rule.id)
    for middle in RULES:
        for id in RULES:
            if middle in causes[id]:
                causes[id] |= causes[middle]
    return causes


CAUSES: dict[str, set[str]] = _find_causes()


def find_roots(broken: Iterable[str]) -> list[str]:
    """The broken rules that no other broken rule explains."""
    here = [*broken]
    return [id for id in here if CAUSES[id].isdisjoint(here)]


def applies(rule: Rule, api: Dialect) -> bool:
    """Whether a rule applies to an API."""
    return not rule.apis or api in rule.apis


def rules_for(api: Dialect) -> list[Rule]:
    """The rules that apply to an API."""
    return [rule for rule in RULES.values() if applies(rule, api)]


_PAGE_HEAD = """\
# The rules

The rules that `toolwire check` tests an endpoint for ([how to use it](check.md)).
This page is written by `python -m toolwire.check.rules`.

**MUST**: clients lose or mangle calls where it is broken.
**SHOULD**: some clients fail, or information other than calls is lost.
Ids are stable.

One fault can break several rules.
Reports show the cause first: `responses.output-index`, for example, before `responses.final-output`.
"""


def make_page() -> str:
    """All rules as Markdown, a table for each area."""
    lines = [_PAGE_HEAD]
    for name, area in AREAS.items():
        lines.append(f"## {name}\n\n{area.description}\n")
        lines.append("| rule | level | requirement | required by | what goes wrong otherwise |")
        lines.append("| --- | --- | --- | --- | --- |")
        lines += [
            f"| `{rule.id}` | {rule.level} | {rule.requirement} | {rule.source} | {rule.harm} |"
            for rule in RULES.values()
            if rule.area == name
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(make_page())
