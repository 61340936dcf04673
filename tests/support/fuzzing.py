"""Mutations of text files, as hypothesis draws them: of the text itself, and of what it says."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

#: Values that a hasty hand, a bad disk or a spreadsheet may put in the place of another.
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([0.0, -1.0, 0.5, 1e-30, 1e308, 10**30, float("nan"), float("inf")]),
    st.sampled_from(["", " ", "sgd", "mkor", "tuned", "1e-3", "2026-13-45", "../x", "a,b", '"', "é\u2028", "x" * 300]),
    st.sampled_from([[], {}, [0], [[]], {"name": "sgd"}, {"": 0}]).map(copy.deepcopy),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


@st.composite
def changed_values(draw: st.DrawFn, value: Any) -> Any:
    """``value`` with one to three of its parts replaced, removed, renamed or doubled."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(changed)[1:] or [()]))
        if not path:
            return draw(ODD_VALUES)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "double"]))
        if how == "replace":
            holder[path[-1]] = draw(ODD_VALUES)
        elif how == "remove":
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        elif how == "rename":
            holder[f"{path[-1]}z"] = holder.pop(path[-1])
    return changed


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` cut short, with bytes changed, or with lines removed, doubled or swapped."""
    how = draw(st.sampled_from(["cut", "bytes", "remove", "double", "swap", "empty", "zeros", "join"]))
    if how == "cut":
        return content[: draw(st.integers(0, max(len(content) - 1, 0)))]
    if how == "bytes":
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    if how == "empty":
        return b""
    if how == "zeros":  # what a power cut leaves of a file whose size was written before its content
        return bytes(len(content))
    lines = content.splitlines(keepends=True)
    line = draw(st.integers(0, len(lines) - 1))
    if how == "remove":
        del lines[line]
    elif how == "double":
        lines.insert(line, lines[line])
    elif how == "join":
        lines[line] = lines[line].rstrip(b"\n")
    else:
        other = draw(st.integers(0, len(lines) - 1))
        lines[line], lines[other] = lines[other], lines[line]
    return b"".join(lines)


@st.composite
def changed_json(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON file changed in its text or in what it says."""
    if draw(st.booleans()):
        return draw(changed_bytes(content))
    return json.dumps(draw(changed_values(json.loads(content)))).encode()


@st.composite
def changed_csv(draw: st.DrawFn, content: bytes) -> bytes:
    """A CSV file changed in its text, or in one to three of its cells."""
    if draw(st.booleans()):
        return draw(changed_bytes(content))
    rows = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = str(draw(ODD_VALUES))
    return "".join(f"{','.join(row)}\n" for row in rows).encode()
