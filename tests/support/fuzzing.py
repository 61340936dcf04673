"""Hypothesis strategies that change text files, their bytes or the values they contain, and calls of commands."""

from __future__ import annotations

import copy
import errno
import json
import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.support import tally

FUZZ: Final = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
MOST: Final = settings.default.max_examples if settings.default else 100
"""100 in `make test`, 1000 in `make test-faults`."""

ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([0.0, -1.0, 0.5, 1e-30, 1e308, 10**30, float("nan"), float("inf")]),
    st.sampled_from(["", " ", "sgd", "mkor", "tuned", "1e-3", "2026-13-45", "../x", "a,b", '"', "é\u2028", "x" * 300]),
    st.sampled_from([[], {}, [0], [[]], {"name": "sgd"}, {"": 0}]).map(copy.deepcopy),
)
"""Wrong values such as typing errors, damaged disks and spreadsheets leave in a file."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all parts of ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


@st.composite
def changed_values(draw: st.DrawFn, value: Any) -> Any:
    """Draw ``value`` with one to three of its parts replaced, removed, renamed or duplicated."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(changed)[1:] or [()]))
        if not path:
            return draw(ODD_VALUES)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "double"]))
        if change == "replace":
            holder[path[-1]] = draw(ODD_VALUES)
        elif change == "remove":
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        elif change == "rename":
            holder[f"{path[-1]}z"] = holder.pop(path[-1])
    return changed


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw other content, or ``content`` cut, with changed bytes, or with lines removed, doubled, swapped or joined."""
    change = draw(
        st.sampled_from(["cut", "bytes", "remove", "double", "swap", "empty", "zeros", "join", "other", "nested"])
    )
    if change == "cut":
        return content[: draw(st.integers(0, max(len(content) - 1, 0)))]
    if change == "bytes":
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    if change == "empty":
        return b""
    if change == "other":
        return draw(st.binary(max_size=100))
    if change == "nested":
        return b"[" * draw(st.sampled_from([1, 1000, 100_000]))
    if change == "zeros":  # as after a power cut between writing a file's size and its content
        return bytes(len(content))
    lines = content.splitlines(keepends=True)
    line = draw(st.integers(0, len(lines) - 1))
    if change == "remove":
        del lines[line]
    elif change == "double":
        lines.insert(line, lines[line])
    elif change == "join":
        lines[line] = lines[line].rstrip(b"\n")
    else:
        other = draw(st.integers(0, len(lines) - 1))
        lines[line], lines[other] = lines[other], lines[line]
    return b"".join(lines)


@st.composite
def changed_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a JSON file with changed text or changed values."""
    if draw(st.booleans()):
        return draw(changed_bytes(content))
    return json.dumps(draw(changed_values(json.loads(content)))).encode()


@st.composite
def changed_csv(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a CSV file with changed text, or with one to three changed cells."""
    if draw(st.booleans()):
        return draw(changed_bytes(content))
    rows = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = str(draw(ODD_VALUES))
    return "".join(f"{','.join(row)}\n" for row in rows).encode()


def _unreadable(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a path one that may not be opened: root may open files of any mode."""
    real = os.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> int:
        if file == path or file == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return real(file, *arguments, **options)

    patch.setattr(os, "open", refuse)


def _instead(make: Callable[[Path], object]) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def put(path: Path, _: pytest.MonkeyPatch) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return put


MISPLACED: Final[dict[str, Callable[[Path, pytest.MonkeyPatch], None]]] = {
    "a folder": _instead(Path.mkdir),
    "a FIFO": _instead(os.mkfifo),
    "a socket": _instead(lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)),
    "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "Too many levels of symbolic links": _instead(lambda path: path.symlink_to(path)),
    "Permission denied": _unreadable,
}
"""What may be where a file belongs, by the words of the message, and functions that put it there."""


def call(main: Callable[[list[str]], int], arguments: list[str], said: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command and return its exit status and stderr; an exception fails the test."""
    said.readouterr()
    tally.count("tracebacks", 0)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:  # noqa: BLE001  (any exception of a command would be a traceback to its user)
        tally.count("tracebacks")
        pytest.fail(f"a traceback:\n{traceback.format_exc()}")
    err = said.readouterr().err
    assert "Traceback" not in err
    return code, err


def assert_one_line(err: str) -> None:
    """The last line is the message."""
    assert err.strip(), "failed without a message"
    assert len(err.strip().splitlines()[-1]) < 600
