"""YAML files: scalars as the user wrote them, and every refusal one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow.bench.support.config import ConfigError, read_yaml
from workflow.bench.support.strict_yaml import dump, parse


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


MISTAKES = {
    "an integer of 20 digits": (f"a: -{2**63}", f"the integer -{2**63} does not fit into 64 bits, line 1"),
    "too large a real": ("a: [1e400]", 'a[0] = "inf": must be a finite number'),
    "the same key": ("a: 1\nb: 2\na: 3", "the key 'a' appears twice, line 3"),
    "the same anchor": ("- &a 1\n- &a 2", "found duplicate anchor; first occurrence: second occurrence, line 2"),
    "an object": ("!!python/object/apply:os.system [ls]", "could not determine a constructor for the tag"),
    "a list as a key": ("? [a]\n: 1", "a key must be text, line 1"),
    "no character": ('a: "\\UFFFFFFFF"', "found invalid Unicode character escape code, line 1"),
    "a bell": ('a: ["\\x07"]', 'a[0] = "\\u0007": must be text without line breaks and control characters'),
    "two lines": ("a: |\n  b\n  c", 'a = "b\\nc": must be text without line breaks'),
    "a line separator": ('a: "b\\u2028c"', 'a = "b\\u2028c": must be text without line breaks'),
    "text that runs backwards": ('a: "\\u202ecba"', 'a = "\\u202ecba": must be text without'),
    "a bell as a key": ('"\\x07": 1', "a key must have no line breaks"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, tmp_path: Path):
    text, said = MISTAKES[mistake]
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert "some.yaml: " in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


def test_integers_of_64_bits_and_merged_mappings_are_read():
    assert parse(f"[{2**63 - 1}, {1 - 2**63}]") == [2**63 - 1, 1 - 2**63]
    assert parse("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a}")["b"] == {"x": 3, "y": 2}


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        read_yaml(tmp_path)
