"""``python -m MODULE`` as a fork of a process that has imported the libraries, which saves seconds in each command.

A pipeline starts dozens of Python commands, and each imports PyTorch, pandas or Transformers before it does its work.
In the environment of `commands_fork`, the word ``python`` in a shell command is a function that asks this server for a
fork. The fork takes over the caller's arguments, environment, folder and streams, and imports the project's own modules
anew, from its ``PYTHONPATH``. Commands that a test signals or times start in the ordinary way.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "jsonschema",
    "matplotlib.backends.backend_pdf",
    "matplotlib.pyplot",
    "pandas",
    "scipy.stats",
    "seaborn",
    "sklearn.datasets",
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "yaml",
)
"""What the pipeline's commands import that takes long."""

_CLIENT = f"""{{ '{sys.executable}' -IS '{Path(__file__).with_name("fork_client.py")}' "$@"; }}"""


@functools.cache
def commands_fork() -> dict[str, str]:
    """Start the server, which ends with this process, and return the environment in which bash uses it."""
    folder = tempfile.TemporaryDirectory(prefix="fork")
    atexit.register(folder.cleanup)
    place = Path(folder.name) / "socket"
    server = subprocess.Popen(
        [sys.executable, __file__, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.communicate)  # closes its standard input, and waits
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the server does not start"
    return {"BASH_FUNC_python%%": f"() {_CLIENT}", "FORK_SERVER": str(place)}


def _serve(place: str) -> None:
    """Fork for every connection until standard input closes, as it does when the process at its other end ends."""
    sys.path[0] = str(Path(__file__).parents[2])
    operators = importlib.import_module("mkor_core.torchvision_operators")  # as in the commands, before Transformers
    for library in LIBRARIES:
        importlib.import_module(library)
    del sys.path[0]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("baselines", "mkor_core")]:
        del sys.modules[name]  # a fork imports its own
    gc.freeze()  # forks share its memory longer
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()
    del operators


def _reap(*_: object) -> None:
    """Wait for the forks that have ended; their processor time then counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    """Run one command in a fork of its own, end it if its caller dies, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _run(**json.loads(message))
    for descriptor in descriptors:
        os.close(descriptor)
    if connection.fileno() in select.select([os.pidfd_open(pid), connection.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Become ``python -m MODULE ...``."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    start = [] if environment.get("PYTHONSAFEPATH") else [folder]
    sys.path[:0] = [*start, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    _, module, *rest = arguments
    sys.argv = [module, *rest]
    code: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        if isinstance(code, str):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        # Not by the interpreter's own end, which in a process with so many modules takes longer than most commands.
        os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _serve(sys.argv[1])
