"""The live page of a run: the topology with counts on its edges, watermark and lag over time, the last windows, late tuples.

    sampler thread --source() once a second--> PageState: the numbers of now, as JSON
    browser        --once a second--> /now                              the browser keeps what it draws over time
                   <-- /, /page.js, /page.css, from this package: no build step, no network

The page is read-only: there are only GET requests, and none of them has a parameter.

Laws
- The server listens on 127.0.0.1 only, and answers only requests whose Host names this machine, which stops DNS rebinding. No
  answer is readable by another origin (no CORS header), and a request that the browser marks as from another site is refused.
- Text from data goes into text nodes, and the content security policy allows no script but page.js.
- A failing source, or a slow or closed browser, does not affect the run. Neither do many connections: at most 64 are open.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from windowing.errors import ConfigError, describe_error, quote
from windowing.execution.metrics import RunMetrics, TaskMetrics
from windowing.execution.plan import Exchange, ExecutionPlan
from windowing.topology.plan import Topology

_log = logging.getLogger("windowing.monitoring")
_EVERY_S, _CONNECTIONS = 1.0, 64
_LAST_S = 1.5
"""How long a page that closes serves the last numbers to browsers, which ask once a second."""
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LivePage:
    """A served page. url: its address. A context manager: leaving it stops the server; the run goes on."""

    def __init__(self, state: _PageState, server: _PageServer) -> None:
        self._state, self._server = state, server
        self._threads = [
            threading.Thread(target=server.serve_forever, name="windowing-page", daemon=True),
            threading.Thread(target=state.sample, name="windowing-page-sampler", daemon=True),
        ]
        state.take()  # the first request already has metrics
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The address of the page, on this machine."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __repr__(self) -> str:
        return f"LivePage({self.url!r})"

    def close(self) -> None:
        """Stop serving; idempotent. A browser that shows the page has the numbers as of now then, for which this waits 1.5 s."""
        if not self._state.over.is_set():
            self._state.over.set()
            self._state.take()
            if time.monotonic() - self._server.asked < 2 * _EVERY_S:
                time.sleep(_LAST_S)
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_page(
    source: Callable[[], RunMetrics], drawn: Topology | ExecutionPlan | Drawing | None = None, port: int = 0
) -> LivePage:
    """Serve the page of a run on 127.0.0.1; `query.ui()` calls it for a query on Spark.

    source: the function that returns the metrics, for example `ClusterMetrics(cluster).now`. drawn: a topology or a plan to draw;
    without it, only the components are drawn. port: 0 for a free one. Every user of this machine can read the page, and with it
    some of the data. Raises ConfigError for a source that is not callable, and for a port that cannot be opened. Cost: one call of
    the source per second; O(tasks) per second for each browser.
    """
    if not callable(source):
        raise ConfigError(
            f"serve_page takes a function that returns RunMetrics, got {quote(source)}; give ClusterMetrics(cluster).now"
        )
    state = _PageState(source, Drawing.of(drawn))
    try:
        server = _PageServer(("127.0.0.1", port), state)
    except (OSError, OverflowError, TypeError) as problem:
        raise ConfigError(
            f"port {quote(port)} of 127.0.0.1 cannot be served: {describe_error(problem)}; give another port=, or 0 for a free one"
        ) from problem
    return LivePage(state, server)


# -- the drawing -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """Boxes and edges of the picture. An edge has the location of its count: (component, stream, None) for the tuples emitted on a
    stream, which in a plan of Trident is called as its target; (None, None, component) for the tuples that a component executed.

    Plain data, so that it can be sent to another process.
    """

    boxes: Sequence[Mapping[str, Any]] = ()
    edges: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, drawn: Topology | ExecutionPlan | Drawing | None) -> Drawing:
        """Return the drawing of a topology or plan; for None an empty one, so that the page draws only the components."""
        if drawn is None or isinstance(drawn, Drawing):
            return drawn or cls()
        if isinstance(drawn, Topology):
            counts: list[Any] = [
                (found.component, found.stream, None) for name in drawn.order for found in drawn.component(name).inputs
            ]
        else:
            counts = list(map(_count_of, drawn.exchanges))
        edges = [{**asdict(arrow), "count": count} for arrow, count in zip(drawn.arrows(), counts, strict=True)]
        return cls([asdict(box) for box in drawn.boxes()], edges)

    def edges_now(self, found: Mapping[str, TaskMetrics]) -> list[dict[str, Any]]:
        """Return the edges with their current counts, None for an unknown count."""
        return [{**edge, "count": self._count(edge["count"], found)} for edge in self.edges]

    def _count(self, where: Sequence[str | None], found: Mapping[str, TaskMetrics]) -> int | None:
        component, stream, reader = where
        if reader is not None:
            return found[reader].executed if reader in found else None
        each = found.get(component or "")
        return None if each is None else each.emitted.get(stream or "", 0)


# -- the state of the page -------------------------------------------------------------------------------------------------------


def _count_of(exchange: Exchange) -> tuple[str | None, str | None, str | None]:
    if not exchange.stage:
        return None, None, exchange.target
    if isinstance(exchange.source, str):
        return exchange.source, exchange.stream, None
    return exchange.stage, exchange.target, None  # of Trident


class _PageState:
    """The content of the page, sampled once a second."""

    def __init__(self, source: Callable[[], RunMetrics], drawing: Drawing) -> None:
        self._source, self._drawing = source, drawing
        self.now = b""
        """The content as JSON. It is replaced at once, because other threads read it."""
        self._turn = threading.Lock()  # the sampler, and a page that closes
        self.over = threading.Event()

    def sample(self) -> None:
        while not self.over.wait(_EVERY_S):
            self.take()

    def take(self) -> None:
        """Call the source once and update the content."""
        with self._turn:
            try:
                content = self._content(self._source())
            except Exception as problem:
                _log.warning("the page cannot have the numbers: %s", describe_error(problem))
                content = {"name": "", "problem": describe_error(problem)}
            self.now = json.dumps({**content, "over": self.over.is_set()}).encode()

    def _content(self, run: RunMetrics) -> dict[str, Any]:
        found = run.components()
        return {
            "name": run.name,
            "at": int(time.time() * 1000),
            "as_of": run.at_ms,
            "batch": run.batch,
            "ended": run.ended,
            "phases": dict(run.phases),
            "boxes": list(self._drawing.boxes) or [{"name": name, "lines": [name], "shape": "bolt"} for name in found],
            "edges": self._drawing.edges_now(found),
            "components": {name: _component(each) for name, each in found.items()},
            "tasks": [_component(each) for each in run.tasks],
        }


def _component(found: TaskMetrics) -> dict[str, Any]:
    return {
        **asdict(found),
        "slowest": None if found.slowest is None else str(found.slowest),
        "execute_latency_ms": found.execute_latency_ms,
        "process_latency_ms": found.process_latency_ms,
    }


# -- the server ------------------------------------------------------------------------------------------------------------------


class _PageServer(ThreadingHTTPServer):
    """One thread for each connection; `connections` limits their number, for they are files of the process that runs the query.

    asked: when a browser had the numbers last, by the monotonic clock.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], state: _PageState) -> None:
        self.state, self.asked = state, -math.inf
        self.connections = threading.Semaphore(_CONNECTIONS)
        super().__init__(address, _PageHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a new connection is served; another one is closed."""
        return self.connections.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections."""


class _PageHandler(BaseHTTPRequestHandler):
    """Answers GET requests for the page's files and /now; refuses all others."""

    server: _PageServer
    server_version, sys_version = "windowing", ""
    timeout = 30

    def do_GET(self) -> None:
        if not self._is_ours():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this page answers requests of this machine only\n")
        elif self.path in _FILES:
            name, kind = _FILES[self.path]
            self._answer(HTTPStatus.OK, kind, files("windowing.monitoring").joinpath(name).read_bytes())
        elif self.path == "/now":
            self.server.asked = time.monotonic()
            self._answer(HTTPStatus.OK, "application/json", self.server.state.now)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n")

    def _is_ours(self) -> bool:
        """Return whether the request names this machine and its port, and does not come from another site."""
        port = self.server.server_address[1]
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        site = self.headers.get("Sec-Fetch-Site", "none")
        origin = self.headers.get("Origin")
        asked = [value.lower() for value in self.headers.get_all("Host", [])]
        return (
            len(asked) == 1
            and asked[0] in hosts
            and site in ("none", "same-origin")
            and (origin is None or origin in {f"http://{host}" for host in hosts})
        )

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the page requests data every second."""
