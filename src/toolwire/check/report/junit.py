"""The report as JUnit XML, as GitLab, GitHub Actions and Jenkins read it.

    <testsuites name="toolwire check" tests="3" failures="1" errors="0" skipped="1" time="4.210">
      <testsuite name="toolwire.check.chat" …>
        <testcase classname="toolwire.check.chat.calls" name="calls.json" time="0">
          <failure type="MUST" message="A call of get_weather has the arguments '{'.">rule, request, frames</failure>

A broken SHOULD rule is no failure, as in the exit code; its findings are in `system-out`. A rule that was not observed
is skipped. A consequence comes after its cause and names it. Characters that XML forbids are written `\\x00`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from toolwire import __version__
from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import decode, escape_invisible, find_proof, mask_url, truncate
from toolwire.check.rules import RULES
from toolwire.check.verdicts import Report, Verdict

MAX_FINDINGS = 5
MAX_FRAMES = 5
MAX_BYTES = 4000
"""Bytes shown of one request or frame."""


def as_junit(report: Report) -> bytes:
    """The report as JUnit XML: a suite for each API, a case for each rule."""
    root = Xml.Element("testsuites", _count("toolwire check", report.verdicts, report.seconds))
    for api in report.apis:
        name = f"toolwire.check.{api}"
        verdicts = [each for each in report.verdicts if each.api == api]
        exchanges = {each.number: each for each in report.exchanges if each.api == api}
        seconds = sum(each.seconds for each in exchanges.values())
        suite = Xml.SubElement(root, "testsuite", _count(name, verdicts, seconds))
        suite.set("timestamp", datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        about = {"toolwire": __version__, "target": mask_url(report.target), "model": escape_invisible(report.model)}
        properties = Xml.SubElement(suite, "properties")
        for key, value in about.items():
            Xml.SubElement(properties, "property", name=key, value=value)
        for verdict in verdicts:
            rule = RULES[verdict.rule]
            case = Xml.SubElement(suite, "testcase", classname=f"{name}.{rule.area}", name=rule.id, time="0")
            if _has_failed(verdict):
                follows = f"follows from {verdict.follows[0]}: " if verdict.follows else ""
                detail = escape_invisible(truncate(follows + verdict.broken[0][0].detail, 300))
                Xml.SubElement(case, "failure", type=rule.level, message=detail).text = _make_proof(verdict, exchanges)
            elif verdict.broken:
                Xml.SubElement(case, "system-out").text = _make_proof(verdict, exchanges)
            elif not verdict.seen:
                reason = "; ".join(verdict.reasons) or "no answer could test it"
                Xml.SubElement(case, "skipped", message=escape_invisible(truncate(f"not observed: {reason}", 1000)))
    Xml.indent(root)
    return Xml.tostring(root, "utf-8", xml_declaration=True) + b"\n"


def _count(name: str, verdicts: Sequence[Verdict], seconds: float) -> dict[str, str]:
    return {
        "name": name,
        "tests": str(len(verdicts)),
        "failures": str(sum(_has_failed(each) for each in verdicts)),
        "errors": "0",
        "skipped": str(sum(each.outcome == "not observed" for each in verdicts)),
        "time": f"{seconds:.3f}",
    }


def _has_failed(verdict: Verdict) -> bool:
    return bool(verdict.broken) and RULES[verdict.rule].level == "MUST"


def _make_proof(verdict: Verdict, exchanges: dict[int, Exchange]) -> str:
    """The rule, and the bytes that break it."""
    rule = RULES[verdict.rule]
    lines = [f"{rule.level} {rule.id}: {rule.requirement}", f"Harm: {rule.harm}", f"Source: {rule.source}"]
    lines += [f"Follows from: {', '.join(verdict.follows)}"] if verdict.follows else []
    for finding, number in verdict.broken[:MAX_FINDINGS]:
        sent, frames = exchanges[number].sent, find_proof(finding, exchanges[number])
        lines += ["", finding.detail]
        if sent.method:
            lines += [f"> {sent.method} {mask_url(sent.url)}", f"> {truncate(decode(sent.body), MAX_BYTES)}"]
        for frame in frames[:MAX_FRAMES]:
            lines += [f"< {line}" for line in truncate(frame.rstrip("\n"), MAX_BYTES).split("\n")]
        if len(frames) > MAX_FRAMES:
            lines.append(f"< and {len(frames) - MAX_FRAMES} more frames")
    more = len(verdict.broken) - MAX_FINDINGS
    if more > 0:
        lines += ["", f"and {more} more like it"]
    return escape_invisible("\n".join(lines))
