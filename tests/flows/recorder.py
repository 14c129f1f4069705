"""A server that stands in for AWS Batch and for a Kubernetes API: it keeps what it is sent, and starts nothing."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

QUEUE = {
    "jobQueueName": "queue", "jobQueueArn": "arn", "state": "ENABLED", "status": "VALID", "priority": 1,
    "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "machines"}],
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "/v1/describejobqueues": {"jobQueues": [QUEUE]},
    "/v1/describecomputeenvironments": {"computeEnvironments": [{"computeResources": {"type": "EC2"}}]},
    "/v1/describejobdefinitions": {"jobDefinitions": []},
    "/v1/registerjobdefinition": {"jobDefinitionName": "job", "jobDefinitionArn": "arn:job", "revision": 1},
}
"""Of AWS Batch. Whatever else is asked is refused: what is to be seen is the request."""


@dataclass
class Recorder:
    """Use as a context."""

    seen: dict[str, list[Any]] = field(default_factory=dict)
    """Bodies of requests by path, in order."""

    def __enter__(self) -> "Recorder":
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                recorder.seen.setdefault(self.path.partition("?")[0], []).append(body)
                answer = ANSWERS.get(self.path)
                data = json.dumps({"message": "nothing is started here"} if answer is None else answer).encode()
                self.send_response(400 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, file: Path) -> Path:
        """A file that leads the Kubernetes client here."""
        name = "here"
        settings = {
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(settings))
        return file

    def only(self, end: str) -> Any:
        """The one request whose path ends so."""
        (found,) = [body for path, bodies in self.seen.items() if path.endswith(end) for body in bodies]
        return found
