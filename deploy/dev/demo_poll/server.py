"""Serves the pages of the poll: `python3 server.py PORT`; with `--check` it only looks whether they can be served."""

import importlib
import importlib.util
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from poll import Form, Routes

PAGES = ("home", "places", "votes", "ranking", "health")


def routes() -> Routes:
    """What the pages that there are answer."""
    found: Routes = {}
    for name in PAGES:
        if importlib.util.find_spec(name) is not None:
            found.update(importlib.import_module(name).ROUTES)
    return found


class Handler(BaseHTTPRequestHandler):
    """One request, answered by its page."""

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.answer({name: values[0] for name, values in parse_qs(body).items()})

    def answer(self, form: Form) -> None:
        page = routes().get((self.command, self.path))
        status, kind, content = page(form) if page else (404, "text/plain", "There is no such page.\n")
        self.send_response(status)
        self.send_header("Location" if status == 303 else "Content-Type", kind)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())


if __name__ == "__main__":
    ready = routes()
    if sys.argv[1] != "--check":
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
