"""Reading of files that somebody may have damaged or misplaced: one line that names the file, and no waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fuzzing import MISPLACED
from tests.support.numbers import within
from workflow.bench.support import reading
from workflow.bench.support.errors import DamagedFileError, UnreadableError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'"\xff"', "it is not UTF-8 text"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b'{"a": 1e999}', "1e999 is not a finite number"),
        (b"9" * 5000, "not valid JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (rb'{"a": "\ud800"}', "half of a surrogate pair"),
    ],
    ids=range(9),
)
def test_damaged_json_is_told_in_one_line(content: bytes, said: str, tmp_path: Path):
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        reading.read_json(file)
    assert str(caught.value).startswith(f"{file}: damaged: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_file_is_told_at_once(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.write_bytes(b"1")
    MISPLACED[words](file, monkeypatch)
    for read in (reading.read_bytes, reading.read_text, reading.read_json, reading.open_regular):
        with within(10), pytest.raises(UnreadableError, match=f"^{file}: cannot be read: .*{words}"):
            read(file)


def test_a_file_too_large_for_memory_is_not_read(tmp_path: Path):
    """It has a size and no content."""
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, reading.MOST_BYTES + 1)
    with pytest.raises(DamagedFileError, match=rf"damaged: it has {reading.MOST_BYTES + 1} bytes"):
        reading.read_bytes(file)
    os.truncate(file, reading.MOST_JSON_BYTES + 1)  # lists in it would take 40 times its size
    with pytest.raises(DamagedFileError, match=rf"damaged: it has {reading.MOST_JSON_BYTES + 1} bytes"):
        reading.read_json(file)


def test_an_absent_file_is_absent(tmp_path: Path):
    for path in (tmp_path / "file", tmp_path / "folder" / "file"):
        with pytest.raises(FileNotFoundError):
            reading.read_json(path)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert not reading.is_regular(tmp_path / "link")


def test_messages_escape_what_a_terminal_would_act_on(tmp_path: Path):
    file = tmp_path / "a\nb\x1b[2J"
    file.mkdir()
    with pytest.raises(UnreadableError) as caught:
        reading.open_regular(file)
    assert str(caught.value) == f"{tmp_path}/a b\\x1b[2J: cannot be read: it is a folder, not a file"


def test_nothing_is_read_by_way_of_a_link_below_the_folder(tmp_path: Path):
    """The folder itself may be one: its user has chosen it."""
    folder, private = tmp_path / "folder", tmp_path / "private"
    for place in (folder, private):
        place.mkdir()
        (place / "file").write_text("1")
    (tmp_path / "chosen").symlink_to(folder)
    assert reading.read_json(tmp_path / "chosen" / "file", within=tmp_path / "chosen") == 1
    links = {folder / "linked": private / "file", folder / "inner": private, folder / "nowhere": private / "nothing"}
    for link, target in links.items():
        link.symlink_to(target)
        file = link / "file" if target == private else link
        with pytest.raises(UnreadableError, match=f"^{link}: is a link, to {target}; put the file"):
            reading.read_bytes(file, within=folder)
    assert reading.read_text(folder / "linked") == "1"
    for outside in (private / "file", folder / ".." / "private" / "file"):
        with pytest.raises(UnreadableError, match=f"it is not in {folder}$"):
            reading.read_text(outside, within=folder)


def test_the_first_link_at_any_depth_is_refused_but_in_named_folders(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to("/")
    reading.refuse_links(tmp_path, but=["runs"])
    # Each comes before those made so far.
    for link in (tmp_path / "a" / "runs", tmp_path / "a" / "b" / "link", tmp_path / "a" / "a"):
        link.symlink_to("/")
        with pytest.raises(UnreadableError, match=f"^{link}: is a link, to /; "):
            reading.refuse_links(tmp_path, but=["runs"])
        if link.name == "runs":
            link.unlink()
