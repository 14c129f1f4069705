"""A stand-in for the API server of a Kubernetes cluster: plain objects by their paths, over HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


class ApiServer:
    """What the cluster holds. An object's path is that of its collection and its name."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Object]] = {}
        self.refused: set[str] = set()
        """Rights that the user does not have, such as `create jobsets`."""
        self.forbidden: set[str] = set()
        """Paths that the user may not read."""

    def put(self, collection: str, name: str, found: Object) -> None:
        own = json.loads(json.dumps(found))  # a copy, whose parts no other object has
        self.collections.setdefault(collection, {})[name] = {**own, "metadata": {"name": name}}

    def answer(self, path: str) -> tuple[int, Object]:
        """The status, and the object or list at a path."""
        collection, _, name = path.rpartition("/")
        if path in self.forbidden:
            return 403, {"reason": "Forbidden"}
        if path in self.collections:
            return 200, {"items": list(self.collections[path].values())}
        if name in self.collections.get(collection, {}):
            return 200, self.collections[collection][name]
        if kinds := [known.removeprefix(f"{path}/") for known in self.collections if known.startswith(f"{path}/")]:
            return 200, {"groupVersion": path.removeprefix("/apis/"), "resources": [{"name": kind} for kind in kinds]}
        return 404, {"reason": "NotFound"}

    def review(self, body: Object) -> tuple[int, Object]:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return 201, {"status": {"allowed": f"{asked['verb']} {resource}" not in self.refused}}

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its URL."""
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(*cluster.answer(self.path.partition("?")[0].rstrip("/")))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
                self.reply(*cluster.review(body))

            def reply(self, status: int, found: Object) -> None:
                text = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


def write_kubeconfig(path: Path, url: str, cluster: str) -> None:
    """As `aws eks update-kubeconfig` writes it, but for how credentials are made."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "own",
        "clusters": [{"name": cluster, "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "own", "context": {"cluster": cluster, "user": "me"}}],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
