"""Stands in for a Python program that the process server runs, with the same streams, signals and exit code.

    python -I -S warm.py SOCKET PROGRAM [ARGUMENTS]

If it is killed, its connection closes, and the server kills the program.
"""

import json
import os
import signal
import socket
import sys

path, *argv = sys.argv[1:]
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(path)
ours, theirs = socket.socketpair()
order = {"argv": [sys.executable, *argv], "cwd": os.getcwd(), "env": dict(os.environ)}
socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2, theirs.fileno()])
theirs.close()
os.closerange(0, 3)
control = ours.makefile()
pid = int(control.readline())
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, lambda number, _: os.kill(pid, number))
code = int(control.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
