"""Chromium, driven by a script."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs

PACKAGES = Path(__file__).parent.parent / "clients" / "js"
OPEN = """
import { chromium } from "playwright-core";
import packed from "@sparticuz/chromium";

// Debian's own where there is no packed one.
const executablePath = process.arch === "x64" ? await packed.executablePath() : "/usr/bin/chromium";
const given = JSON.parse(process.argv[1]);
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", ...JSON.parse(process.argv[2])];
const browser = await chromium.launch({ executablePath, args });
"""
CLOSE = """
await browser.close();
console.log(JSON.stringify(seen));
"""


def browse(script: str, given: Any, *options: str) -> Any:
    """What a script leaves in `seen`; it has the open `browser` and what was `given`."""
    needs("node")
    if not (PACKAGES / "node_modules" / "@sparticuz" / "chromium").is_dir():
        pytest.skip("needs the packages that `make clients` installs")
    with tempfile.TemporaryDirectory() as home:
        # The browser comes with the libraries that it needs, and unpacks them where it takes itself for a lambda.
        environment = {"PATH": os.environ["PATH"], "TMPDIR": home, "HOME": home, "AWS_EXECUTION_ENV": "_nodejs20.x"}
        if Path("/etc/fonts/fonts.conf").exists():
            environment["FONTCONFIG_PATH"] = "/etc/fonts"
        whole = OPEN + script + CLOSE
        command = ["node", "--input-type=module", "--eval", whole, json.dumps(given), json.dumps(options)]
        ended = subprocess.run(command, cwd=PACKAGES, env=environment, capture_output=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)
