"""A visitor of the poll, for its tests: a served poll that begins empty, and requests to it."""

import threading
import unittest
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from urllib.parse import urlencode

import poll
from server import Handler


class Quiet(Handler):
    """Tests say enough by themselves."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        del format, args


class Visit(unittest.TestCase):
    """A poll of its own for each test."""

    def setUp(self) -> None:
        poll.PLACES.clear()
        poll.VOTERS.clear()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def get(self, path: str) -> tuple[int, str]:
        """The status and the text of a page."""
        return self._asked("GET", path, None)

    def post(self, path: str, **form: str) -> tuple[int, str]:
        """The same for a form that is sent."""
        return self._asked("POST", path, urlencode(form))

    def _asked(self, method: str, path: str, body: "str | None") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=10)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
