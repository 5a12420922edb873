"""Proxy: counts the round trips of connections to a server, and cuts a connection at a given request.

client --- request 1 --> proxy --> server       a request is all data of the client until the server answers
client <-- answer 1  --- proxy <-- server       cut "before" request n: the server does not get it; "after": its answer is lost
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True)
class Cut:
    request: int
    after: bool


class Proxy:
    """A proxy of one server; a context manager. `requests` counts over all connections, `refuse` new connections are closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user, _, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
        self.requests = 0
        self.refuse = 0
        self.cut: Cut | None = None
        self.cuts = 0
        self.stall_s = 0.0
        self.silent = False
        """If true, no data is forwarded and no connection is closed, as in a network partition."""
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refuse:
                    self.refuse -= 1
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._open += [client, server]
                self._threads.append(threading.Thread(target=self._serve, args=(client, server), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            self._pump(client, server)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        asking = False
        while True:
            readable, _, _ = select.select([client, server], [], [])
            if self.silent:
                time.sleep(0.02)
            elif server in readable:
                answer = server.recv(1 << 16)
                if asking and self._is_cut(after=True):
                    return
                asking = False
                if not answer:
                    return
                client.sendall(answer)
            else:
                asked = client.recv(1 << 16)
                if not asked:
                    return
                self.requests += not asking
                asking = True
                if self._is_cut(after=False):
                    return
                server.sendall(asked)

    def _is_cut(self, after: bool) -> bool:
        if self.cut != Cut(self.requests, after):
            return False
        self.cut = None
        self.cuts += 1
        return True
