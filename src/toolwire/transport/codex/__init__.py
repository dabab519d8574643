"""Codex as a worker: child processes, their threads, and the upstream that a `codex` backend speaks through.

What is said is the backend's affair; here it is carried, and everything is ended that was begun.
"""
