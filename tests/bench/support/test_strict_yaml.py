"""YAML files: limited in size, scalars as the user wrote them, and every refusal one line."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow.bench.support import strict_yaml
from workflow.bench.support.config import ConfigError, read_yaml
from workflow.bench.support.strict_yaml import dump, parse

SECONDS = 5.0
"""Time in which any file must be read or refused; the slowest takes about one second."""


@pytest.mark.parametrize(
    "written",
    ["1:30:00", "1:30.5", "1_000", "010", "0x10", "0b11", "0o7", "yes", "off", "2026-01-01", "2026-13-45", "1 000"],
)
def test_what_only_yaml_1_1_takes_for_a_number_or_a_date_is_text(written: str):
    assert parse(f"[{written}]") == [written]


@pytest.mark.parametrize(
    ("written", "value"),
    [("0", 0), ("-3", -3), ("+5", 5), ("1.", 1.0), (".5", 0.5), ("1e-3", 0.001), ("2E6", 2e6), ("-1.5e+2", -150.0)],
)
def test_decimal_numbers_are_numbers(written: str, value: float):
    found = parse(f"[{written}]")[0]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("written", "value"), [("true", True), ("False", False), ("null", None), ("~", None), ("", None)]
)
def test_truth_values_and_nothing(written: str, value: bool | None):
    assert parse(f"a: {written}") == {"a": value}


TEXTS = st.one_of(
    st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=8),
    st.from_regex(r"[-+]?[0-9_.:exob]{1,8}", fullmatch=True),  # run ids such as 12e45 look like numbers
    st.sampled_from(["yes", "null", "~", "<<", "true", ".inf", "2026-01-01", "!!int", "*x", "&x", "1e400", ""]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
@settings(max_examples=30)
def test_what_is_dumped_is_read_back_the_same(value: Any):
    assert repr(parse(dump(value))) == repr(value)


def _links(first: str, link: str) -> str:
    """Return a chain of anchors, each of which repeats the one before it nine times."""
    lines = [f"a0: &a0 {first}"]
    return "\n".join([*lines, *(f"a{k}: &a{k} {link.format(','.join([f'*a{k - 1}'] * 9))}" for k in range(1, 13))])


BOMBS = {
    "aliases": (_links("[x]", "[{}]"), "at most 50000 values, those that aliases repeat included, line 6"),
    "merges": (_links("{x: 1}", "{{<<: [{}]}}"), "at most 50000 values"),
    "many bytes": ("#" * 1_000_001, "must have at most 1000000 bytes"),
    "deep lists": ("[" * 100_000, "nested at most 40 deep, line 1"),
    "deep mappings": ("{a: " * 100_000, "nested at most 40 deep"),
    "deep blocks": ("".join(f"{' ' * k}a:\n" for k in range(1000)), "nested at most 40 deep"),
    "long integer": (f"a: {'9' * 900_000}", "the integer 9999999999999999999999999999999999999... does not fit"),
    "integer of 20 digits": (f"a: -{2**63}", f"the integer -{2**63} does not fit into 64 bits, line 1"),
    "too large a real": ("a: [1e400]", 'a[0] = "inf": must be a finite number'),
    "itself": ("a: &a [*a]", "the value of '&a' contains itself"),
    "same anchor": ("- &a 1\n- &a 2", "found duplicate anchor 'a'; first occurrence: second occurrence, line 2"),
    "a tag": ('a: !!int "1:30"', "tags such as !!int are not allowed, line 1"),
    "an object": ("!!python/object/apply:os.system [ls]", "tags such as !!int are not allowed"),
    "a list as a key": ("? [a]\n: 1", "a key must be text, line 1"),
    "no character": ('a: "\\UFFFFFFFF"', "found invalid Unicode character escape code, line 1"),
    "half a character": ('a: "\\ud800"', "found invalid Unicode character escape code, line 1"),
    "a bell": ('a: ["\\x07"]', 'a[0] = "\\u0007": must be text without line breaks and control characters'),
    "two lines": ("a: |\n  b\n  c", 'a = "b\\nc": must be text without line breaks'),
    "a line separator": ('a: "b\\u2028c"', 'a = "b\\u2028c": must be text without line breaks'),
    "text that runs backwards": ('a: "\\u202ecba"', 'a = "\\u202ecba": must be text without'),
    "a bell as a key": ('"\\x07": 1', "a key must have no line breaks"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_hang_or_mislead_is_one_line_soon(bomb: str, tmp_path: Path):
    text, said = BOMBS[bomb]
    file = tmp_path / "some.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert time.process_time() - began < SECONDS
    assert "some.yaml: " in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


def test_the_limits_leave_room(tmp_path: Path):
    """A file at the limit is read, in a time that a user can wait for."""
    file = tmp_path / "some.yaml"
    file.write_text(f"[{'1,' * (strict_yaml.MAX_VALUES - 2)}1]")
    began = time.process_time()
    read_yaml(file)
    assert time.process_time() - began < SECONDS
    assert parse("[" * 40 + "]" * 40)
    assert parse(f"[{2**63 - 1}, {1 - 2**63}]") == [2**63 - 1, 1 - 2**63]


@pytest.mark.parametrize("kind", ["folder", "FIFO"])
def test_only_a_file_is_read(kind: str, tmp_path: Path):
    file = tmp_path / "some.yaml"
    file.mkdir() if kind == "folder" else os.mkfifo(file)
    with pytest.raises(ConfigError, match=r"some\.yaml: must be a file"):
        read_yaml(file)
