"""Codex as a backend: app-server processes, their threads, and the upstream that a `codex` backend uses.

`backends/codex` interprets their lines; this package only transports them.
"""
