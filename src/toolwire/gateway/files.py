"""The number of files and sockets that this process may have open."""

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None


def file_limit() -> int:
    """Files that this process may open; a very large number where the system sets no limit."""
    if resource is None:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_files(connections: int) -> None:
    """Ask the system for as many open files as all connections need, each with one to a backend."""
    wanted = 2 * connections + 512
    if resource is not None and file_limit() < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
