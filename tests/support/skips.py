"""The reasons for which a test may be skipped under CI. There, any other skip is a failure."""

import re

import pytest

ALLOWED = (
    r"another platform: ",  # Linux, macOS
    r"another Python: ",
    r"another user: ",  # root, or not root
    # langchain-tests skips features that the model does not declare, and tests that need its own recordings.
    r".*langchain_tests/.*(Model does not|Test requires json mode support|VCR not set up)",
)


def refuse(report: pytest.TestReport) -> None:
    """Turn a skip into a failure if its reason is not listed."""
    path, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
    reason = reason.removeprefix("Skipped: ")
    if not any(re.match(pattern, text) for pattern in ALLOWED for text in (reason, f"{path} {reason}")):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI for a reason that tests/support/skips.py does not list: {reason}"
