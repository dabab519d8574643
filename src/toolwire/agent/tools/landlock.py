"""Runs a program in a sandbox of Linux: Landlock limits what it may write to, seccomp forbids the network.

This is a program of its own, which imports only the standard library:

    python -I -S landlock.py '{"writable": ["/home/ada/project", "/tmp"], "network": false}' PROGRAM ARGUMENT …

Without the network there are no sockets but pairs of Unix sockets, so a program cannot ask others, such as Docker or
systemd, to write for it either. If anything cannot be limited, the program does not run.
"""

import ctypes
import errno
import json
import os
import platform
import stat
import struct
import sys

CANNOT_LIMIT, CANNOT_RUN = 126, 127
"""The exit codes if there is no sandbox, and if there is no such program, as in a shell."""
MIN_ABI = 3
"""The first version of Landlock that limits `truncate`: Linux 6.2."""
SCOPES_ABI = 6
"""The first version that keeps a program from sending signals to programs outside of its sandbox: Linux 6.12."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the numbers of the calls on all architectures
_GET_VERSION = 1
_BENEATH_PATH = 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES = _WRITE_FILE | _TRUNCATE | sum(1 << bit for bit in range(4, 14))  # also create, remove, link and rename
_SCOPES = 3
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_CALLS = {"x86_64": (0xC000003E, 41, 42), "aarch64": (0xC00000B7, 198, 203)}
"""The name of each architecture in seccomp, and the numbers of `socket` and `connect`."""
_IO_URING_SETUP = 425
_AF_UNIX = 1
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_LOAD, _IS_EQUAL, _IS_GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32 = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: object) -> int:
    result: int = getattr(_libc, function)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")
    return result


def limit_writes(writable: list[str]) -> None:
    """Allow this process to write beneath these directories and to harmless devices only. Raises `OSError`."""
    abi = _call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION)
    if abi < MIN_ABI:
        raise OSError(errno.ENOSYS, f"Landlock has version {abi}, and {MIN_ABI} is needed")
    handled = struct.pack("QQQ", _WRITES, 0, _SCOPES) if abi >= SCOPES_ABI else struct.pack("Q", _WRITES)
    ruleset = _call("syscall", _CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    for path in (*writable, *DEVICES):
        try:
            beneath = os.open(path, os.O_PATH)
        except FileNotFoundError:
            continue
        allowed = _WRITES if stat.S_ISDIR(os.fstat(beneath).st_mode) else _WRITE_FILE | _TRUNCATE
        _call("syscall", _ADD_RULE, ruleset, _BENEATH_PATH, struct.pack("=Qi", allowed, beneath), 0)
        os.close(beneath)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def forbid_network() -> None:
    """Forbid this process to open sockets that are not Unix sockets, and to connect any. Raises `OSError`."""
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"the network cannot be forbidden on {platform.machine()}")
    architecture, socket, connect = _CALLS[platform.machine()]
    lines = (
        (_LOAD, 0, 0, 4),  # the architecture of the call
        (_IS_EQUAL, 0, 7, architecture),
        (_LOAD, 0, 0, 0),  # its number
        (_IS_GREATER_OR_EQUAL, 5, 0, _X32),
        (_IS_EQUAL, 4, 0, connect),
        (_IS_EQUAL, 3, 0, _IO_URING_SETUP),
        (_IS_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, 16),  # its first argument
        (_IS_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    )
    filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(filter))
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def main(limits: str, *argv: str) -> None:
    """Limit this process, and become the program."""
    try:
        read = json.loads(limits)
        limit_writes(read["writable"])
        if not read["network"]:
            forbid_network()
    except OSError as error:
        print(f"there is no sandbox: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_LIMIT)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 the command has its shell, if it wants one
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main(*sys.argv[1:])
