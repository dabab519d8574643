"""Codex as a worker: child processes, their threads, and the upstream that a `codex` backend speaks through.

What the lines mean is known to `backends/codex`; here they are carried, and everything is ended that was begun.
"""
