"""One file from a server on this machine: resumed, from mirrors, with a wrong checksum. Truth: the bytes it sends."""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faulty_server
from tests.support.faulty_server import Page, Server
from workflow.bench.downloads import transfer
from workflow.bench.downloads.catalogue import Source
from workflow.bench.downloads.transfer import TransferError, download, read_pointer

CONTENT = random.Random(0).randbytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"x" * len(CONTENT)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again without a wait, and without a proxy of this machine."""
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with faulty_server.running() as found:
        yield found


def source(server: Server, *paths: str, size: int | None = len(CONTENT)) -> Source:
    return Source("it.zip", tuple(server.url(path) for path in paths), size)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole(server, tmp_path):
    server.pages["a"] = Page(b"", redirect=server.url("b"))
    server.pages["b"] = Page(CONTENT)
    assert download(source(server, "a"), tmp_path / "new" / "it.zip", SUM) == SUM
    assert (tmp_path / "new" / "it.zip").read_bytes() == CONTENT
    assert files(tmp_path / "new") == ["it.zip"]
    assert download(source(server, "a"), tmp_path / "new" / "it.zip", SUM) == SUM
    assert len(server.requests) == 2, "a file that is there is not asked for again"


@pytest.mark.parametrize("length", [True, False])
def test_a_cut_connection_is_resumed_at_the_byte_where_it_ended(server, tmp_path, length):
    server.pages["a"] = Page(CONTENT, cuts=[100_000, 0, 50_000], length=length)
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    assert (tmp_path / "it.zip").read_bytes() == CONTENT
    asked = [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert [header for _, header in server.requests] == asked


def test_the_next_call_goes_on_with_the_part_of_the_last_one(server, tmp_path, capsys):
    server.pages["a"] = Page(CONTENT, cuts=[120_000, 0, 0, 0])
    with pytest.raises(TransferError, match=r"it\.zip was not downloaded: .*/a: the connection was cut"):
        download(source(server, "a"), tmp_path / "it.zip", SUM)
    assert (tmp_path / "it.zip.part").read_bytes() == CONTENT[:120_000]
    assert files(tmp_path) == ["it.zip.part"]
    server.requests.clear()
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    assert server.requests == [("a", "bytes=120000-")]
    assert files(tmp_path) == ["it.zip"]
    assert "it.zip: going on from 120.0 kB of 300.0 kB" in capsys.readouterr().err


def test_a_server_that_ignores_ranges_sends_the_whole_file_again(server, tmp_path):
    server.pages["a"] = Page(CONTENT, cuts=[100_000, 50_000], ranges=False)
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    assert (tmp_path / "it.zip").read_bytes() == CONTENT


def test_mirrors_are_tried_in_order_and_go_on_with_the_part(server, tmp_path):
    server.pages["b"] = Page(CONTENT, cuts=[1000, 0, 0, 0])
    server.pages["c"] = Page(CONTENT)
    assert download(source(server, "a", "b", "c"), tmp_path / "it.zip", SUM) == SUM
    assert [path for path, _ in server.requests] == ["a", "b", "b", "b", "b", "c"]
    assert server.requests[-1] == ("c", "bytes=1000-")


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.pages["a"] = Page(CONTENT, statuses=[503, 429])
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    server.pages["b"] = Page(CONTENT, statuses=[503] * 9)
    with pytest.raises(TransferError, match=r"/b: 503 Service Unavailable$"):
        download(source(server, "b"), tmp_path / "other.zip", SUM)


def test_a_wrong_checksum_is_refused_in_one_line_and_nothing_of_the_file_stays(server, tmp_path):
    server.pages["a"] = server.pages["b"] = Page(OTHER)
    with pytest.raises(TransferError) as error:
        download(source(server, "a", "b"), tmp_path / "it.zip", SUM)
    found = hashlib.sha256(OTHER).hexdigest()
    refused = f"its SHA-256 is {found}, and must be {SUM}: refused"
    assert str(error.value) == (
        f"it.zip was not downloaded: {server.url('a')}: {refused}; {server.url('b')}: {refused}"
    )
    assert files(tmp_path) == []


def test_after_a_wrong_mirror_the_next_one_starts_anew(server, tmp_path):
    server.pages |= {"a": Page(OTHER), "b": Page(CONTENT)}
    assert download(source(server, "a", "b"), tmp_path / "it.zip", SUM) == SUM
    assert server.requests == [("a", None), ("b", None)]


def test_a_part_with_wrong_bytes_costs_one_more_download_of_the_same_address(server, tmp_path):
    (tmp_path / "it.zip.part").write_bytes(OTHER[:1000])
    server.pages["a"] = Page(CONTENT)
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    assert server.requests == [("a", "bytes=1000-"), ("a", None)]


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_of_another_size_is_refused_before_it_is_downloaded(server, tmp_path, size):
    server.pages["a"] = Page(CONTENT)
    with pytest.raises(TransferError, match=rf"its file has 300,000 bytes, and must have {size:,}: refused"):
        download(source(server, "a", size=size), tmp_path / "it.zip", SUM)
    assert files(tmp_path) == []


def test_a_part_that_is_larger_than_the_file_is_dropped(server, tmp_path):
    (tmp_path / "it.zip.part").write_bytes(CONTENT + b"more")
    server.pages["a"] = Page(CONTENT)
    assert download(source(server, "a"), tmp_path / "it.zip", SUM) == SUM
    assert server.requests == [("a", None)]


def test_a_part_that_was_complete_is_only_checked(server, tmp_path):
    """Of a known size it is not even asked for; otherwise the server says that no byte is left."""
    for name, size, asked in (("a", len(CONTENT), []), ("b", None, [("b", "bytes=300000-")])):
        (tmp_path / "it.zip.part").write_bytes(CONTENT)
        server.pages[name] = Page(CONTENT)
        assert download(source(server, name, size=size), tmp_path / f"{name}.zip", SUM) == SUM
        (tmp_path / f"{name}.zip.part").write_bytes(CONTENT)
        (tmp_path / f"{name}.zip").unlink()
        server.requests.clear()
        assert download(source(server, name, size=size), tmp_path / f"{name}.zip", SUM) == SUM
        assert server.requests == asked


class TestWithoutAChecksum:
    def test_a_part_is_continued_only_if_the_server_vouches_for_the_same_file(self, server, tmp_path):
        server.pages["a"] = Page(CONTENT, cuts=[1000, 0, 0, 0], etag='"1"')
        with pytest.raises(TransferError):
            download(source(server, "a", size=None), tmp_path / "it.zip", None)
        server.requests.clear()
        assert download(source(server, "a", size=None), tmp_path / "it.zip", None) == SUM
        assert server.requests == [("a", "bytes=1000-")]
        assert files(tmp_path) == ["it.zip"]

    def test_a_file_that_changed_meanwhile_is_taken_whole(self, server, tmp_path):
        server.pages["a"] = Page(OTHER, cuts=[1000, 0, 0, 0], etag='"1"')
        with pytest.raises(TransferError):
            download(source(server, "a", size=None), tmp_path / "it.zip", None)
        server.pages["a"] = Page(CONTENT, etag='"2"')
        assert download(source(server, "a", size=None), tmp_path / "it.zip", None) == SUM

    @pytest.mark.parametrize("etag", [None, 'W/"1"'])
    def test_without_a_strong_etag_it_starts_anew(self, server, tmp_path, etag):
        server.pages["a"] = Page(CONTENT, cuts=[1000], etag=etag)
        assert download(source(server, "a", size=None), tmp_path / "it.zip", None) == SUM
        assert server.requests == [("a", None), ("a", None)]

    def test_a_web_page_is_not_taken_for_the_file(self, server, tmp_path):
        server.pages["a"] = Page(b"<html>log in first", kind="text/html; charset=utf-8")
        with pytest.raises(TransferError, match="it sends a web page in place of the file"):
            download(source(server, "a", size=None), tmp_path / "it.zip", None)
        assert files(tmp_path) == []


def test_no_server_and_no_host_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(
        TransferError, match=r"^it\.zip was not downloaded: http://127\.0\.0\.1:1/a: Connection refused$"
    ):
        download(Source("it.zip", ("http://127.0.0.1:1/a",)), tmp_path / "it.zip", SUM)
    monkeypatch.setattr(transfer.time, "sleep", lambda _: pytest.fail("an unknown host is not waited for"))
    with pytest.raises(TransferError, match=r"^it\.zip was not downloaded: http://no\.invalid/a: \w+"):
        download(Source("it.zip", ("http://no.invalid/a",)), tmp_path / "it.zip", SUM)


def test_a_full_disk_is_an_error_of_its_own_and_keeps_the_part(server, tmp_path, monkeypatch):
    """No mirror is tried: the disk would be full there, too."""
    server.pages["a"] = server.pages["b"] = Page(CONTENT)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*it\.zip\.part'"):
        download(source(server, "a", "b"), tmp_path / "it.zip", SUM)
    monkeypatch.undo()
    assert server.requests == [("a", None)]
    assert files(tmp_path) == ["it.zip.part"]
    assert download(source(server, "a", "b"), tmp_path / "it.zip", SUM) == SUM


def test_a_pointer_states_the_checksum(server):
    """Truth: the format of Git LFS."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{SUM}\nsize 300000\n"
    server.pages["a"] = Page(pointer.encode(), statuses=[503], kind="text/plain")
    assert read_pointer(server.url("a")) == SUM
    server.pages["b"] = Page(b"<html>", kind="text/html")
    with pytest.raises(TransferError, match="/b: it is no Git LFS pointer"):
        read_pointer(server.url("b"))
    with pytest.raises(TransferError, match="/c: 404 Not Found"):
        read_pointer(server.url("c"))
