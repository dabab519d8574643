"""Writes the rules as a page: `python -m toolwire.check.document > docs/rules.md`."""

import sys

from toolwire.check.rules import AREAS, RULES

HEAD = """\
# The rules

The rules that `toolwire check` tests an endpoint for ([how to use it](check.md)).
This page is written by `python -m toolwire.check.document`.

**MUST**: clients lose or mangle calls where it is broken.
**SHOULD**: some clients fail, or information other than calls is lost.
Ids are stable.

One fault can break several rules.
Reports show the cause first: `responses.output-index`, for example, before `responses.final-output`.
"""


def make_page() -> str:
    """All rules as Markdown, a table for each area."""
    lines = [HEAD]
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
