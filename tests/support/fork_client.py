"""Stands for ``python -m MODULE ...`` in a shell command: the server of fork_server.py runs it; see there."""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["FORK_SERVER"])
    request = {"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    message = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(server, [message], [0, 1, 2])
    server.sendall(message[sent:])
    code = server.recv(1)
sys.exit(code[0] if code else 1)
