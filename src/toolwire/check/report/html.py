"""The HTML report: one self-contained file without scripts, readable on a screen or a phone.

Everything that came from the server is escaped by `escape`.
"""

from datetime import UTC, datetime
from pathlib import Path

from toolwire import __version__
from toolwire.check.report.evidence import escape, format_prose, mask_url, truncate
from toolwire.check.report.exchange import make_exchange
from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import Report, Verdict, count_verdicts

MAX_EXCHANGES = 3
"""Exchanges shown for one rule on one API; the others are counted."""
STYLE = Path(__file__).with_name("style.css").read_text("utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Prevents the browser from loading or running anything, even if an escape is missing."""
LABELS = {"must": "MUST broken", "should": "SHOULD broken", "passed": "passed", "none": "not observed"}
"""Labels of the counts, by CSS class."""


def as_html(report: Report) -> bytes:
    """The report as one self-contained page."""
    others = (_make_others(report, outcome) for outcome in ("passed", "not observed"))
    parts = (_make_head(report), _make_table(report), _make_broken(report), *others)
    body = "\n".join(part for part in parts if part)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>toolwire check: {escape(mask_url(report.target))}</title>
<style>{STYLE}</style>
</head>
<body><main>
{body}
<footer>Made by Toolwire {escape(__version__)}.</footer>
</main></body>
</html>
"""
    return page.encode(errors="backslashreplace")


def _make_head(report: Report) -> str:
    counts = count_verdicts(report.verdicts)
    kind = "good" if report.is_sound and counts.passed else "bad" if not report.is_sound else "soft"
    model = f"<dt>Model</dt><dd>{escape(report.model)}</dd>" if report.model else ""
    when = datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    tried = f"{len(report.exchanges)} {'request' if report.seconds else 'captured turn'}"
    tried += "" if len(report.exchanges) == 1 else "s"
    tried += f" in {report.seconds:.1f} s" if report.seconds else ""
    numbers = (counts.must_broken, counts.should_broken, counts.passed, counts.not_observed)
    tiles = (
        f'<li class="{label if number else "none"}"><b>{number}</b> {word}</li>'
        for (label, word), number in zip(LABELS.items(), numbers, strict=True)
    )
    notes = [f"{escape(api)} was not checked: {escape(truncate(reason, 300))}" for api, reason in report.absent.items()]
    for api, reason in report.ended.items():
        notes.append(f"{escape(api)} was not checked to the end: {escape(truncate(reason, 300))}")
    if report.spent:
        notes.append("The budget of requests ended before the probes did: raise --budget.")
    return f"""<header>
<p class="brand">toolwire check</p>
<h1 class="{kind}">{escape(report.headline)}</h1>
<dl><dt>Target</dt><dd class="url">{escape(mask_url(report.target))}</dd>{model}
<dt>Date</dt><dd>{when}</dd><dt>Tried</dt><dd>{tried}</dd></dl>
<ul class="tiles">{"".join(tiles)}</ul>
{"".join(f'<p class="note">{note}</p>' for note in notes)}
</header>"""


def _make_table(report: Report) -> str:
    """Areas by API: links to the broken rules, and to the first rule of every other outcome."""
    heads = "".join(f'<th scope="col">{escape(api)}</th>' for api in report.apis)
    legend = " ".join(f'<span class="chip {kind}">{word}</span>' for kind, word in LABELS.items())
    rows: list[str] = []
    for area in report.areas:
        cells: list[str] = []
        for api in report.apis:
            verdicts = [each for each in report.verdicts if each.api == api and RULES[each.rule].area == area]
            chips = [
                f'<a class="chip {RULES[each.rule].level.lower()}" href="#{_anchor(each)}">'
                f"{each.rule.partition('.')[2]}</a>"
                for each in verdicts
                if each.broken
            ]
            for kind in ("passed", "none"):
                others = [each for each in verdicts if each.outcome == LABELS[kind]]
                if others:
                    link = f'href="#{_anchor(others[0])}" title="{len(others)} {LABELS[kind]}"'
                    chips.append(f'<a class="chip {kind}" {link}>{len(others)}</a>')
            cells.append(f'<td><div class="chips">{"".join(chips)}</div></td>')
        rows.append(f'<tr><th scope="row">{escape(area)}</th>{"".join(cells)}</tr>')
    note = "Broken rules by name, the others as a number; each leads to its rule."
    return f"""<section><h2>Rules by area</h2><p class="legend">{legend} <span class="soft">{note}</span></p>
<div class="wide"><table class="areas"><thead><tr><th scope="col">Area</th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div></section>"""


def _make_broken(report: Report) -> str:
    if not report.broken:
        return ""
    follows = ' class="follows"'
    index = "".join(
        f"<li{follows if each.follows else ''}>{_make_badge(each)} "
        f'<a href="#{_anchor(each)}"><code>{each.rule}</code></a> {escape(each.api)}</li>'
        for each in report.broken
    )
    articles = "\n".join(_make_article(each, report) for each in report.broken)
    following = count_verdicts(report.verdicts).following
    note = f'<p class="soft">{following} of them follow from others.</p>' if following else ""
    return f'<section><h2>Broken rules</h2>{note}<ul class="index">{index}</ul>\n{articles}</section>'


def _anchor(verdict: Verdict) -> str:
    return f"{verdict.api}-{verdict.rule}"


def _make_badge(verdict: Verdict) -> str:
    level = RULES[verdict.rule].level
    return f'<span class="badge {level.lower()}">{level}</span>'


def _make_article(verdict: Verdict, report: Report) -> str:
    rule = RULES[verdict.rule]
    exchanges = {each.number: each for each in report.exchanges}
    found: dict[int, list[Finding]] = {}
    for finding, number in verdict.broken:
        found.setdefault(number, []).append(finding)
    seen = "\n".join(make_exchange(exchanges[number], found[number]) for number in [*found][:MAX_EXCHANGES])
    more = len(found) - MAX_EXCHANGES
    rest = f'<p class="soft">Seen in {more} more exchanges.</p>' if more > 0 else ""
    links = (f'<a href="#{verdict.api}-{cause}"><code>{cause}</code></a>' for cause in verdict.follows)
    causes = f"<dt>Follows from</dt><dd>{', '.join(links)}</dd>" if verdict.follows else ""
    kind = f"{rule.level.lower()} follows" if verdict.follows else rule.level.lower()
    return f"""<article class="{kind}" id="{_anchor(verdict)}">
<h3>{_make_badge(verdict)} <code>{rule.id}</code> <span class="badge api">{escape(verdict.api)}</span></h3>
<p class="sentence">{format_prose(rule.requirement)}</p>
<dl>{causes}<dt>Harm</dt><dd>{format_prose(rule.harm)}</dd><dt>Source</dt><dd>{format_prose(rule.source)}</dd></dl>
{seen}{rest}</article>"""


def _make_others(report: Report, outcome: str) -> str:
    """The rules with this outcome, and how often each was tested or why it was not."""
    verdicts = [each for each in report.verdicts if each.outcome == outcome]
    if not verdicts:
        return ""
    items: list[str] = []
    for each in verdicts:
        reason = "; ".join(truncate(reason, 300) for reason in each.reasons) or "no answer could test it"
        if each.seen:
            reason = "seen once" if each.seen == 1 else f"seen {each.seen} times"
        items.append(
            f'<li id="{_anchor(each)}">{_make_badge(each)} <code>{each.rule}</code> '
            f'<span class="badge api">{escape(each.api)}</span> '
            f'{format_prose(RULES[each.rule].requirement)} <span class="soft">({escape(reason)})</span></li>'
        )
    summary = f"{len(verdicts)} {outcome}"
    return f'<section><details><summary>{summary}</summary><ul class="list">{"".join(items)}</ul></details></section>'
