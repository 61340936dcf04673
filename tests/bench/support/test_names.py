"""Names and folders that a user can give: each is safe in a path, a shell and a regular expression, or refused."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.shells import NAMED, TEXTS, configure, refused_in_one_line
from workflow.bench.plan import Plan
from workflow.bench.plan.hyperparameters import read_signatures
from workflow.bench.support import names
from workflow.bench.support.command_line import refuse_unwritable
from workflow.bench.support.config import ROOT, SCHEMAS, ConfigError

KINDS = [kind for kind in names.FORMATS if kind != "folder"]


@given(st.sampled_from(KINDS), TEXTS)
@example("label", "abc\n")
@example("label", "a" * 300)
@example("experiment", "runs")
@example("hardware", "partial")
def test_a_valid_name_is_one_word_of_a_shell_and_a_part_of_a_path(kind: str, text: str):
    if names.name_rule(kind, text) is None:
        assert re.fullmatch(r"[A-Za-z0-9_.,@-]{1,100}", text)
        assert text[0] not in "-."
        assert shlex.split(text) == [text]
    else:
        assert text not in ("mkor", "a-name")


@given(TEXTS)
def test_a_valid_folder_can_be_printed_and_is_no_wildcard_and_no_option(text: str):
    if names.folder_rule(text) is None:
        assert text.isprintable()
        assert not set(text) & set("{}")
        assert text[0] not in " -~"
        assert text[-1] != " "
        assert shlex.split(shlex.quote(text)) == [text]
    if names.portable_rule(text) is None:
        assert names.folder_rule(text) is None
        assert shlex.quote(text) == text or not text.isascii()


FOLDERS = {
    "my results; $(touch x)": None,
    'it\'s "a\\b" `c` é中😀 *?[a]!#&|<>()^%,:=@+': None,
    "a/../b.c": None,
    "": "must not be empty",
    "a{b": "must not contain '{', which Snakemake reads as part of a wildcard",
    "a<x>": "must not contain '<x>', which Snakemake reads as a path variable",
    "a\0b": "must not contain U+0000, which cannot be printed",
    "a\nb": "must not contain U+000A, which cannot be printed",
    "a\x1b[2J": "must not contain U+001B, which cannot be printed",
    "a\u202eb": "must not contain U+202E, which cannot be printed",
    "a\udc80": "must not contain U+DC80, which cannot be printed",
    " a": "must not begin or end with a space",
    "-a": "must not begin with '-', which commands read as an option",
    "~/a": "must not begin with '~', which is not expanded here; write the folder in full",
    "a/" + "é" * 128: "must have at most 255 bytes between two slashes, and has 256",
    "/a" * 513: "must have at most 1024 bytes as an absolute path, and has 1026",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rule_that_a_folder_breaks_names_the_character(folder: str):
    assert names.folder_rule(folder) == FOLDERS[folder]


def planned(folder: Path, place: str, text: str) -> Plan | None:
    """Return the plan with a text in one place; None if no file can have this name."""
    try:
        settings = configure(folder, place, text)
    except (OSError, ValueError):
        return None
    with chdir(folder):
        return Plan.load(**settings)


@given(st.sampled_from(NAMED), TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("label", "abc\n")
@example("label", "a" * 300)
@example("experiment", "x`touch y`")
@example("results", "a\0b")
def test_every_text_in_a_configuration_is_refused_in_one_line_or_planned(tmp_path: Path, place: str, text: str):
    plan = None
    with refused_in_one_line(ConfigError):
        plan = planned(tmp_path / "names", place, text)
    if plan is not None:
        words = [plan.hardware, plan.tier.name, *plan.experiments, *(job.label for job in plan.jobs)]
        assert [shlex.quote(word) for word in words] == words


def test_folders_that_snakemake_would_take_for_a_wildcard_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"config_dir = .*: must not contain '{', which Snakemake reads"):
        planned(tmp_path / "names", "config_dir", "{x}")
    (tmp_path / "{x}" / "embedded").mkdir(parents=True)
    monkeypatch.setattr("workflow.bench.plan.plan.REFERENCE", tmp_path)
    with pytest.raises(ConfigError, match=r"\{x\}: its name, that of a machine, must consist of lowercase letters"):
        planned(tmp_path / "names", "hardware", "test")


@pytest.mark.parametrize("folder", ["baselines", "baselines/muon"])
def test_a_file_of_baselines_that_is_no_module_is_refused(folder: str, tmp_path: Path):
    (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "baselines" / "__init__.py", tmp_path / "baselines")
    (tmp_path / folder / "x;touch y.py").touch()
    with pytest.raises(ConfigError, match=r"x;touch y\.py: its name, \"x;touch y\", must consist of letters"):
        read_signatures(tmp_path)


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings in a schema."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(child)


def test_patterns_end_at_the_end_of_the_text():
    r"""A pattern that ends in ``$`` also accepts a line break after it; ``\Z`` does not."""
    for schema in SCHEMAS.rglob("*.yaml"):
        for node in nodes(yaml.safe_load(schema.read_text())):
            assert not str(node.get("pattern", "")).endswith("$"), schema
            assert node.get("format", "folder") in names.FORMATS or not isinstance(node["format"], str), schema
    # Of re.sub the first text alone is a pattern.
    first, any_text = r"(?:\\.|(?!\2)[^\\\n])*?\$", r"[^\n]*?(?<!\\)\$"
    call = r"re\.(?:(subn?)|(?!subn?\()\w+)"
    ends = re.compile(rf"""{call}\(\s*r?f?(["'])(?(1){first}|{any_text})\2(?![^\n]*MULTILINE)""")
    files = [file for name in ("workflow", "mkor_core", "baselines") for file in (ROOT / name).rglob("*.py")]
    assert [str(file) for file in files if ends.search(file.read_text())] == []


def test_a_message_is_one_line_whatever_it_quotes():
    assert str(ConfigError("a\n  b\x1b[2J\u2028\udc80 é")) == r"a b\x1b[2J\u2028\udc80 é"


UNWRITABLE = {
    "": "is a folder; give the name of a file",
    "folder": "is a folder; give the name of a file",
    "file/under/x.csv": "is not a folder",
    "pipe": "is not a regular file, and would be replaced by one",
    "a" * 240: "the file's name must have at most 234 bytes",
    "a\0b": "must not contain U+0000, which cannot be printed",
    "/proc/x/y.csv": "cannot be written: ",
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(name: str, tmp_path: Path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError) as refusal:
        refuse_unwritable("--out", Path(name))
    assert str(refusal.value).startswith("--out = ")
    assert UNWRITABLE[name] in str(refusal.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_can_be_written_is_accepted_and_not_made(tmp_path: Path):
    refuse_unwritable("--out", tmp_path / "a" / "my file; $(touch x).csv")
    assert list(tmp_path.iterdir()) == []
