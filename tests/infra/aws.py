"""A stand-in for AWS in a process of its own: moto, and a few calls that moto lacks.

    python -m tests.infra.aws PORT

What it answers itself: placement groups, EC2's quotas, capacity reservations (none), instance types (each is offered in
each zone), who is told of a budget, and the ping of a metadata service.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

REPOSITORY = Path(__file__).parents[2]
QUOTAS = {
    "Running On-Demand P instances": 3072.0,
    "Running On-Demand G and VT instances": 768.0,
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 768.0,
    "All P5 Spot Instance Requests": 0.0,
}
"""In vCPUs, by the names that Service Quotas has."""

Environment = dict[str, Any]
Start = Callable[..., Any]


class WithWhatMotoLacks:
    """A WSGI application before moto's."""

    def __init__(self, moto: Callable[[Environment, Start], Iterable[bytes]]) -> None:
        self._moto = moto
        self._turn = threading.Lock()
        self._groups: dict[str, tuple[str, dict[str, str]]] = {}
        """Strategy and tags of each placement group."""

    def __call__(self, environ: Environment, start: Start) -> Iterable[bytes]:
        if environ.get("HTTP_TRANSFER_ENCODING"):
            return self._ask_moto(environ, start)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        answer = self._ec2(form) or self._json(environ.get("HTTP_X_AMZ_TARGET", ""))
        if environ["PATH_INFO"] == "/ping":
            answer = "200 OK", "text/plain", "pong"
        if answer is None:
            return self._ask_moto(environ, start)
        status, kind, text = answer
        data = text.encode()
        start(status, [("Content-Type", kind), ("Content-Length", str(len(data)))])
        return [data]

    def _ask_moto(self, environ: Environment, start: Start) -> Iterable[bytes]:
        """One request at a time: moto is not safe for threads. If one fails halfway, its client repeats it, and then
        what it has made already exists."""
        with self._turn:
            return self._moto(environ, start)

    def _json(self, target: str) -> tuple[str, str, str] | None:
        answers: dict[str, Any] = {
            "ServiceQuotasV20190624.ListServiceQuotas": {
                "Quotas": [{"ServiceCode": "ec2", "QuotaName": name, "Value": value} for name, value in QUOTAS.items()]
            },
            "AWSBudgetServiceGateway.DescribeSubscribersForNotification": {
                "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "ml@example.com"}]
            },
            "AWSBudgetServiceGateway.ListTagsForResource": {
                "ResourceTags": [{"Key": "convoy:stack", "Value": "convoy"}]
            },
        }
        if target not in answers:
            return None
        return "200 OK", "application/x-amz-json-1.1", json.dumps(answers[target])

    def _ec2(self, form: dict[str, str]) -> tuple[str, str, str] | None:
        action, name = form.get("Action", ""), form.get("GroupName") or form.get("GroupName.1", "")
        if action == "CreatePlacementGroup":
            tags = {form[f"TagSpecification.1.Tag.{n}.Key"]: form[f"TagSpecification.1.Tag.{n}.Value"]
                    for n in range(1, 20) if f"TagSpecification.1.Tag.{n}.Key" in form}  # fmt: skip
            self._groups[name] = (form["Strategy"], tags)
            return _xml(action, f"<placementGroup>{self._group(name)}</placementGroup>")
        if action == "DeletePlacementGroup":
            self._groups.pop(name, None)
            return _xml(action, "<return>true</return>")
        if action == "DescribePlacementGroups":
            wanted = [value for key, value in form.items() if key.startswith("GroupName.")] or list(self._groups)
            if unknown := [each for each in wanted if each not in self._groups]:
                return _unknown(unknown[0])
            items = "".join(f"<item>{self._group(each)}</item>" for each in wanted)
            return _xml(action, f"<placementGroupSet>{items}</placementGroupSet>")
        if action == "DescribeInstanceTypeOfferings" and form.get("LocationType") == "availability-zone":
            asked = _filters(form)
            items = "".join(
                f"<item><instanceType>{name}</instanceType><locationType>availability-zone</locationType>"
                f"<location>{zone}</location></item>"
                for name in asked["instance-type"] for zone in asked["location"]
            )  # fmt: skip
            return _xml(action, f"<instanceTypeOfferingSet>{items}</instanceTypeOfferingSet>")
        if action == "DescribeCapacityReservations":
            return _xml(action, "<capacityReservationSet/>")
        return None

    def _group(self, name: str) -> str:
        strategy, tags = self._groups[name]
        number = f"pg-{abs(hash(name)) % 16**17:017x}"
        listed = "".join(
            f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in tags.items()
        )
        return (
            f"<groupName>{escape(name)}</groupName><groupId>{number}</groupId><strategy>{strategy}</strategy>"
            f"<groupArn>arn:aws:ec2:us-east-1:123456789012:placement-group/{escape(name)}</groupArn>"
            f"<state>available</state><tagSet>{listed}</tagSet>"
        )


def _filters(form: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number in range(1, 9):
        values = [value for key, value in form.items() if key.startswith(f"Filter.{number}.Value.")]
        if name := form.get(f"Filter.{number}.Name"):
            found[name] = values
    return found


def _xml(action: str, content: str) -> tuple[str, str, str]:
    name = f"{action}Response"
    text = f'<{name} xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>1</requestId>{content}</{name}>'
    return "200 OK", "text/xml", text


def _unknown(name: str) -> tuple[str, str, str]:
    error = (
        f"<Code>InvalidPlacementGroup.Unknown</Code><Message>The Placement Group '{escape(name)}' is unknown.</Message>"
    )
    return (
        "400 Bad Request",
        "text/xml",
        f"<Response><Errors><Error>{error}</Error></Errors><RequestID>1</RequestID></Response>",
    )


class AwsStandIn:
    """Use as a context; `url` is its endpoint."""

    def __enter__(self) -> "AwsStandIn":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # The stacks attach policies of AWS's own, and start a machine.
        loaded = {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true", "MOTO_EC2_LOAD_DEFAULT_AMIS": "true"}
        environment = os.environ | loaded
        command = [sys.executable, "-m", "tests.infra.aws", str(port)]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return self
            except OSError:
                assert self._process.poll() is None, "it ended"
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def main(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    from tests.infra.moto_batch import as_aws_validates

    as_aws_validates().start()
    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, WithWhatMotoLacks(moto), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
