"""Connections to backends: HTTP, child processes, built-in scripts, credentials and recordings."""
