"""A relay on loopback that records what travels."""

import contextlib
import socket
import threading


class Wiretap:
    """Connections to `port` go on to `target`, a port of this host; `heard` has every byte, of both
    directions, in pieces.
    """

    def __init__(self, target):
        self._target, self.heard = target, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __contains__(self, text):
        return text in b"".join(self.heard)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                pair = [
                    self._listener.accept()[0],
                    socket.create_connection(("127.0.0.1", self._target)),
                ]
                self._ends += pair
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self._pass_on, args=[source, sink], daemon=True).start()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
