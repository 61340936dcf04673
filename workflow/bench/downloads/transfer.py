"""One file over HTTP: mirrors in order, resumed where the connection was cut, kept only if its checksum matches.

The file grows as ``<name>.part``, and gets its name when it is complete and has the expected SHA-256. A part stays when
the download is interrupted, and the next call goes on from it. The standard library's client takes the proxies of the
environment (``https_proxy``).
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from socket import gaierror
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from workflow.bench.downloads.catalogue import Source
from workflow.bench.downloads.meter import Meter
from workflow.bench.support.errors import first_line, one_line
from workflow.bench.support.files import name_in_errors, sync_folder

ATTEMPTS: Final = 3
"""Attempts in a row that bring no byte before the next mirror is tried."""
WAIT_SECONDS: Final = 2.0
"""The wait before an attempt, times the attempts that have failed."""
_TIMEOUT_SECONDS: Final = 60
_CHUNK: Final = 1 << 20
_MOST_POINTER_BYTES: Final = 1000
_AGENT: Final = "mkor-harness"
_MAY_PASS: Final = (408, 425, 429, 500, 502, 503, 504)
"""The statuses of HTTP after which the same address may answer later."""


class TransferError(OSError):
    """A file that could not be downloaded; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class _Cut(Exception):
    """The connection ended early, or was not made; trying again may help."""


class _Refused(Exception):
    """An address does not have the file."""


def download(source: Source, path: Path, sha256: str | None) -> str:
    """Bring a file to ``path``, and return its SHA-256.

    A file that is there already is only checked.

    Args:
        source: the file and its addresses.
        path: where it lands; ``<path>.part`` holds what has arrived.
        sha256: the checksum that it must have; None takes any file.

    Raises:
        TransferError: no address has the file with this checksum; nothing of a wrong file stays.
        OSError: it cannot be written.
    """
    if path.exists():
        found = _digest(path)
        if sha256 in (None, found):
            return found
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    problems = []
    for url in source.urls:
        part = _Part(source, path, sha256)
        try:
            found = part.bring(url)
        except _Refused as problem:
            problems.append(f"{url}: {problem}")
            continue
        os.replace(part.path, path)
        part.discard()
        sync_folder(path.parent)
        return found
    raise TransferError(f"{source.name} was not downloaded: {'; '.join(problems)}")


def read_pointer(url: str) -> str:
    """Return the SHA-256 that a Git LFS pointer states.

    Raises:
        TransferError: it cannot be read, or is no pointer.
    """
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(WAIT_SECONDS * attempt)
        try:
            with _opened(url, {}) as response:
                text = response.read(_MOST_POINTER_BYTES).decode("ascii", "replace")
        except _Refused as problem:
            raise TransferError(f"{url}: {problem}") from None
        except (_Cut, OSError, HTTPException) as problem:
            reason = first_line(problem)
            continue
        if found := re.search(r"^oid sha256:([0-9a-f]{64})$", text, re.MULTILINE):
            return found[1]
        raise TransferError(f"{url}: it is no Git LFS pointer, so that the file's checksum is not known")
    raise TransferError(f"{url}: {reason}")


class _Part:
    """What has arrived of a file."""

    def __init__(self, source: Source, path: Path, sha256: str | None) -> None:
        self._source, self._sha256 = source, sha256
        self.path = path.with_name(f"{path.name}.part")
        self._validator = path.with_name(f"{path.name}.part.etag")

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return self.path.stat().st_size if self.path.exists() else 0

    def discard(self) -> None:
        """Remove all that has arrived."""
        self.path.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def bring(self, url: str) -> str:
        """Complete the part from an address, check it, and return its SHA-256.

        Raises:
            _Refused: the address does not have the file, or another one; the part is gone if it is wrong.
        """
        was_begun = self.size > 0
        self._complete(url)
        found = _digest(self.path)
        if self._sha256 not in (None, found):
            self.discard()
            if was_begun:  # by a download from another address perhaps, whose bytes were wrong
                return self.bring(url)
            raise _Refused(f"its SHA-256 is {found}, and must be {self._sha256}: refused")
        return found

    def _complete(self, url: str) -> None:
        """Append to the part until it is complete."""
        fruitless = 0
        while True:
            before = self.size
            try:
                if self._is_complete() or self._append(url):
                    return
                reason = "the connection was cut"
            except _Cut as problem:
                reason = str(problem)
            fruitless = 0 if self.size > before else fruitless + 1
            if fruitless == ATTEMPTS:
                raise _Refused(reason)
            time.sleep(WAIT_SECONDS * fruitless)

    def _is_complete(self) -> bool:
        """Return whether the part has the published size; one that is too large is removed."""
        if self._source.bytes and self.size > self._source.bytes:
            self.discard()
        return self.size == self._source.bytes

    def _append(self, url: str) -> bool:
        """Append what an address sends after what has arrived; return whether that was all."""
        validator = self._validator.read_text() if self._validator.exists() else ""
        # Without a checksum, only the server can tell that its file is still the one of which the part is.
        if self.size and not self._sha256 and not validator:
            self.discard()
        start = self.size
        headers = {"Range": f"bytes={start}-"} if start else {}
        headers |= {"If-Range": validator} if start and validator and not self._sha256 else {}
        with _opened(url, headers) as response:
            if response.status == 416:
                # All has arrived, or the part does not fit the file.
                if response.headers.get("Content-Range", "") == f"bytes */{start}":
                    return True
                self.discard()
                return False
            total = self._total(response, start)
            if response.status != 206:
                start = 0  # the server ignores ranges, or its file is another one now
            self._keep_validator(response)
            self._receive(response, start, total)
        return total is None or self.size >= total

    def _total(self, response: HTTPResponse, start: int) -> int | None:
        """Return the size of the whole file, None if nobody states it; refuse an answer that cannot be the file."""
        if self._sha256 is None and response.headers.get_content_type() == "text/html":
            raise _Refused("it sends a web page in place of the file")
        if response.status == 206:
            sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if not sent or int(sent[1]) != start:
                raise _Refused("it sends another range than the one that was asked for")
            total = None if sent[2] == "*" else int(sent[2])
        else:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
        if self._source.bytes and total not in (None, self._source.bytes):
            raise _Refused(f"its file has {total:,} bytes, and must have {self._source.bytes:,}: refused")
        return total or self._source.bytes

    def _keep_validator(self, response: HTTPResponse) -> None:
        """Keep the server's name of this version of the file; a weak one does not vouch for bytes."""
        etag = response.headers.get("ETag", "")
        if etag.startswith('"'):
            self._validator.write_text(etag)
        else:
            self._validator.unlink(missing_ok=True)

    def _receive(self, response: HTTPResponse, start: int, total: int | None) -> None:
        """Write what arrives from byte ``start`` on."""
        with (
            name_in_errors(self.path),
            self.path.open("r+b" if self.path.exists() else "wb") as file,
            Meter(self._source.name, start, total) as meter,
        ):
            file.seek(start)
            file.truncate()
            while chunk := _received(response):
                file.write(chunk)
                meter.add(len(chunk))
            file.flush()
            os.fsync(file.fileno())


def _received(response: HTTPResponse) -> bytes:
    """Return what has arrived; nothing at the end."""
    try:
        return response.read1(_CHUNK)
    except (OSError, HTTPException) as problem:
        raise _Cut(f"the connection was cut: {first_line(problem)}") from None


@contextmanager
def _opened(url: str, headers: dict[str, str]) -> Iterator[HTTPResponse]:
    """Open an address; of the errors of HTTP only 416 is an answer."""
    request = Request(url, headers={"User-Agent": _AGENT, **headers})
    try:
        response = urlopen(request, timeout=_TIMEOUT_SECONDS)
    except HTTPError as problem:
        if problem.code != 416:
            answer = f"{problem.code} {problem.reason}"
            raise (_Cut if problem.code in _MAY_PASS else _Refused)(answer) from None
        response = problem
    except (OSError, HTTPException) as problem:
        cause = getattr(problem, "reason", None) or problem
        reason = getattr(cause, "strerror", None) or first_line(cause)
        # Without a network, or where a host is gone, waiting is in vain.
        raise (_Refused if isinstance(cause, gaierror) else _Cut)(reason) from None
    with response:
        yield response


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
