"""What is left of some rows, which are tested as far as there is something to test, and what it waits for."""

_CODEX = "codex backend"

REMAINS = {
    "hx-steer-lost": f"{_CODEX}: a turn that waits for its results",
    "err-disconnect-mid": f"{_CODEX}: the same there",
}
