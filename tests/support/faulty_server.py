"""An HTTP server on this machine that sends files and misbehaves as told: cuts, no ranges, other bytes, errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """What an address sends, and how."""

    content: bytes
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the connection ends, for the first requests; later ones are answered in full."""
    statuses: list[int] = field(default_factory=list)
    """Errors of HTTP, for the first requests."""
    ranges: bool = True
    """Whether ranges are answered; otherwise the whole file is sent each time."""
    etag: str | None = None
    length: bool = True
    """Whether the size is sent before the content."""
    kind: str = "application/octet-stream"
    redirect: str | None = None


@dataclass
class Server:
    """The pages by path, and the requests that came: path and the header Range."""

    address: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str) -> str:
        """Return the address of a path."""
        return f"{self.address}/{path}"


@contextmanager
def running() -> Iterator[Server]:
    """Serve pages on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            server.requests.append((path, self.headers.get("Range")))
            page = server.pages.get(path)
            if page is None or page.statuses:
                self.send_error(page.statuses.pop(0) if page else 404)
            elif page.redirect:
                self.send_response(302)
                self.send_header("Location", page.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send(page)

        def _send(self, page: Page) -> None:
            size, start = len(page.content), 0
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            if asked and page.ranges and condition in (None, page.etag):
                start = int(asked[1])
            if start and start >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            if page.length:
                self.send_header("Content-Length", str(size - start))
            if page.etag:
                self.send_header("ETag", page.etag)
            self.send_header("Content-Type", page.kind)
            self.end_headers()
            end = start + page.cuts.pop(0) if page.cuts else size
            self.wfile.write(page.content[start:end])
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_address[1]}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        http.shutdown()
        thread.join()
