"""Targets of the tests' own: a webhook and an SMTP server, which keep what they get."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = "hunter2-6f1c"


class Sink:
    """A server and what came to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.titles: list[str] = []
        self.bodies: list[str] = []
        self.answers: list[int] = []
        """Status codes of the webhook's next answers; 200 when there is none."""


@contextmanager
def webhook() -> Iterator[Sink]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = sink.answers.pop(0) if sink.answers else 200
            if status == 200:
                sink.titles.append(body["title"])
                sink.bodies.append(body["message"])
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sink = Sink(f"json://me:{PASSWORD}@127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink
        server.shutdown()


@contextmanager
def smtp() -> Iterator[Sink]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 sink")
            while line := self.rfile.readline():
                command = line.decode().strip().upper()
                if command == "DATA":
                    self.say("354 go on")
                    self.keep()
                    self.say("250 kept")
                elif command.startswith("EHLO"):
                    self.say("250-sink\r\n250 AUTH PLAIN LOGIN")
                elif command.startswith("AUTH"):
                    self.say("235 welcome")
                elif command == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def keep(self) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            mail = message_from_bytes(b"".join(lines), policy=policy.default)
            sink.titles.append(str(mail["Subject"]))
            sink.bodies.append(mail.get_body(("plain", "html")).get_content())  # type: ignore[union-attr]

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        port = server.server_address[1]
        sink = Sink(f"mailto://me:{PASSWORD}@127.0.0.1:{port}?smtp=127.0.0.1&from=me@example.com&to=you@example.com")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink
        server.shutdown()
