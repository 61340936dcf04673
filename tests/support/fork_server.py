"""``python -m MODULE`` as a fork of a process that has imported the libraries, which saves seconds in each command.

A pipeline starts dozens of Python commands, and each imports PyTorch, pandas or Transformers before it does its work.
In the environment of `commands_fork`, the word ``python`` in a shell command is a function that asks this server for a
fork, and `forked` is a command line that does. The fork takes over the caller's arguments, environment, folder and
streams. If its ``PYTHONPATH`` is this repository, it has the project's modules from the server too; otherwise it
imports them anew. Commands that a test signals or times start in the ordinary way.
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
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
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
    "snakemake.cli",
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "yaml",
)
"""What the pipeline's commands import that takes long."""

COMMANDS = ("aggregate", "make_artefact", "partial", "report", "snakemake_report", "train")
"""Commands of the project whose modules, and the artefacts' modules, a fork has."""
OWN = ("baselines", "mkor_core", "tests", "workflow")
"""The project's packages."""
ROOT = Path(__file__).parents[2]
_CLIENT = (sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")))


def forked(module: str, *arguments: str) -> list[str]:
    """Return the command line of ``python -m MODULE ...`` for an environment with `commands_fork`."""
    return [*_CLIENT, "-m", module, *arguments]


def snakemake(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Call Snakemake in a folder, by default with this project's code and with commands that are forks, too."""
    usual = {**os.environ, **commands_fork(), "PYTHONPATH": str(ROOT)} if environment is None else environment
    command = forked("snakemake", *arguments)
    return subprocess.run(command, cwd=folder, env=usual, capture_output=True, text=True, check=False)


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
    return {"BASH_FUNC_python%%": f'() {{ {shlex.join(_CLIENT)} "$@"; }}', "FORK_SERVER": str(place)}


def _serve(place: str) -> None:
    """Fork for every connection until standard input closes, as it does when the process at its other end ends."""
    sys.path[0] = str(ROOT)
    operators = importlib.import_module("mkor_core.torchvision_operators")  # as in the commands, before Transformers
    for library in LIBRARIES:
        importlib.import_module(library)
    importlib.import_module("tests.support.preloaded")
    for command in COMMANDS:
        importlib.import_module(f"workflow.bench.{command}")
    artefacts = importlib.import_module("workflow.bench.plan.artefacts")
    for kind in ("figures", "tables"):
        for name in artefacts.available(kind):
            importlib.import_module(f"workflow.bench.{kind}.{name}")
            artefacts.sources(artefacts.describe(kind, name).module)  # parses files; this is cached
    del sys.path[0]
    gc.freeze()  # forks share its memory longer
    gc.set_threshold(50_000)
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
    if environment.get("PYTHONPATH") != str(ROOT):
        for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
            del sys.modules[name]
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # it runs as __main__; of a package, its file __main__.py does
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
