"""Builds the documentation site into build/site. Arguments are for zensical: `serve` shows it on a local port.

The pages are copied in the layout of the repository, so that a link works here as it does on a git host.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "pages"
PARTS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"),
    *("docs", "examples", "deploy", "toolwire.example.toml"),
)


def list_navigation(entry: Any) -> list[str]:
    """The pages of the navigation, in its order."""
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return [page for each in below for page in list_navigation(each)]


def copy_pages(target: Path) -> None:
    """Copy what the site is made of into an empty directory."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        else:
            shutil.copy(ROOT / part, target)


def find_faults(pages: Path) -> list[str]:
    """What zensical does not report: pages outside the navigation, and links to files outside the site."""
    navigation = list_navigation(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    found = [str(page.relative_to(pages)) for page in sorted(pages.rglob("*.md"))]
    faults = [f"{page}: not in the navigation" for page in found if page not in navigation]
    faults += [f"zensical.toml: {page} does not exist" for page in navigation if page not in found]
    faults += [f"zensical.toml: {page} is there twice" for page in set(navigation) if navigation.count(page) > 1]
    for page in found:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (pages / page).read_text()):
            if not (pages / page).parent.joinpath(link).is_file():
                faults.append(f"{page}: {link} is not a file of the site")
    return faults


def find_remote_resources(site: Path) -> list[str]:
    """What a page of the built site would load from another host."""
    loading = re.compile(r'<(?:script|img|iframe|link rel="?stylesheet)\b[^>]*?(?:src|href)="?((?:https?:)?//[^ ">]+)')
    return [f"{page.name} loads {url}" for page in site.rglob("*.html") for url in loading.findall(page.read_text())]


def main() -> None:
    """Copy, check and build."""
    copy_pages(PAGES)
    if faults := find_faults(PAGES):
        sys.exit("\n".join(faults))
    os.chdir(ROOT)
    zensical = [sys.executable, "-m", "zensical"]
    if sys.argv[1:]:
        os.execv(sys.executable, [*zensical, *sys.argv[1:]])
    if code := subprocess.run([*zensical, "build", "--clean", "--strict"], check=False).returncode:
        sys.exit(code)
    if faults := find_remote_resources(PAGES.parent / "site"):
        sys.exit("\n".join(faults))
    print("The site is in build/site.")


if __name__ == "__main__":
    main()
