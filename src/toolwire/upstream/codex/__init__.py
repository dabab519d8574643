"""Codex as a backend: app-server processes, their threads, and the upstream that a `codex` backend uses.

`backends/codex` knows what the lines mean; here they are carried.
"""
