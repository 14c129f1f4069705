"""Records the AWS calls of a run, in all its processes, and says which IAM requests each call makes.

`Recording.at(folder)` gives the environment that a run needs: Python imports `sitecustomize` from PYTHONPATH at its
start, and the one written there has botocore and aiobotocore append each call to a file. Transfers of files through
awscrt, which boto3 chooses on machines such as p4d and p5, would not be seen; they need the same actions.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tests.infra.iam_policy import Request

REPOSITORY = Path(__file__).resolve().parents[2]
CLIENTS = {"botocore.client": "BaseClient", "aiobotocore.client": "AioBaseClient"}
"""The class whose method `_make_api_call` each call passes, by module."""

HOOK = """
import sys
sys.path.append({repository!r})
from tests.infra.iam_calls import record_to
sys.path.remove({repository!r})
record_to({file!r})
"""


@dataclass(frozen=True)
class Call:
    """One call of an AWS API."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    """Those that name or imply something; not the bodies of objects."""
    error: str | None
    """Code of the error that was the answer."""
    region: str
    program: str
    """The words of the process that made it."""


@dataclass(frozen=True)
class Recording:
    """Where a run's calls are recorded."""

    file: Path
    folder: Path
    """Of `sitecustomize`."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """In a new folder."""
        file = folder / "calls.jsonl"
        (folder / "path").mkdir(parents=True)
        (folder / "path" / "sitecustomize.py").write_text(HOOK.format(repository=str(REPOSITORY), file=str(file)))
        return cls(file, folder / "path")

    @property
    def environment(self) -> dict[str, str]:
        """For the first process of the run."""
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))}

    def calls(self) -> list[Call]:
        """Those that were answered."""
        return _read_calls(self.file)

    def begun_calls(self) -> list[Call]:
        """All, also those in which a process was killed, which AWS may have carried out."""
        return _read_calls(Path(f"{self.file}{BEGUN}"))


BEGUN = ".begun"
"""End of the name of the file of calls that were begun."""


def _read_calls(file: Path) -> list[Call]:
    return [Call(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def record_to(file: str) -> None:
    """Append each AWS call of this process, and of those forked from it, to the file."""
    sys.meta_path.insert(0, _PatchingFinder(file))


class _PatchingFinder(MetaPathFinder):
    """Patches the modules when they are imported: importing them here would slow down every process."""

    def __init__(self, file: str) -> None:
        self._file = file

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in CLIENTS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                patch(getattr(module, CLIENTS[name]), self._file)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def patch(client: Any, file: str) -> None:
    """Have a class of clients append each call to the file."""
    make_call = client._make_api_call

    def recorded(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        _append(f"{file}{BEGUN}", self, operation, parameters, None)
        try:
            answer = make_call(self, operation, parameters)
        except Exception as error:
            _append(file, self, operation, parameters, error)
            raise
        if hasattr(answer, "__await__"):
            return _awaited(answer, file, self, operation, parameters)
        _append(file, self, operation, parameters, None)
        return answer

    client._make_api_call = recorded


async def _awaited(answer: Any, file: str, client: Any, operation: str, parameters: dict[str, Any]) -> Any:
    try:
        result = await answer
    except Exception as error:
        _append(file, client, operation, parameters, error)
        raise
    _append(file, client, operation, parameters, None)
    return result


def _append(file: str, client: Any, operation: str, parameters: dict[str, Any], error: Exception | None) -> None:
    code = None if error is None else getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
    call = {
        "service": client.meta.service_model.service_name,
        "operation": operation,
        "parameters": {name: value for name, value in parameters.items() if name != "Body"},
        "error": code,
        "region": client.meta.region_name,
        "program": " ".join(sys.argv)[:200],
    }
    line = json.dumps(call, default=str) + "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())  # at once, so that lines of several processes do not mix
    finally:
        os.close(descriptor)


# Which IAM requests a call makes. Source: AWS's service authorization reference.

OBJECT_ACTIONS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListParts": "s3:ListMultipartUploadParts",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
BUCKET_ACTIONS = {
    "HeadBucket": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjects": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
}
COPIES = {"CopyObject", "UploadPartCopy"}
IMPLYING = {
    "ACL", "BypassGovernanceRetention", "GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP",
    "ObjectLockLegalHoldStatus", "ObjectLockMode", "SSEKMSKeyId", "Tagging", "VersionId",
}  # fmt: skip
"""Parameters for which S3 wants further actions, or others."""

BATCH_WITHOUT_RESOURCE = {
    "DescribeComputeEnvironments", "DescribeJobDefinitions", "DescribeJobQueues", "DescribeJobs", "ListJobs",
}  # fmt: skip
JOB_ROLES = ("jobRoleArn", "executionRoleArn")
PASSED_TO: tuple[dict[str, str], ...] = ({"iam:PassedToService": "ecs-tasks.amazonaws.com"}, {})
"""Contexts in which a job's role may be passed. AWS's own policy for ParallelCluster on Batch allows a request without
the key (`StringEqualsIfExists`), so both must be allowed."""

NO_REQUEST = {"GetCallerIdentity"}
"""Of STS: allowed even where a policy denies it."""


class UnknownCallError(ValueError):
    """It is not known what the call asks of IAM."""


def iam_requests(call: Call, account: str) -> list[Request]:
    """All must be allowed for the call to succeed. Raises UnknownCallError."""
    services: dict[str, Callable[[Call, str], Iterator[Request]]] = {
        "s3": _of_s3, "batch": _of_batch, "logs": _of_logs, "sts": _of_sts,
    }  # fmt: skip
    if call.service not in services:
        raise _unknown(call)
    return list(services[call.service](call, account))


def _unknown(call: Call, detail: str = "") -> UnknownCallError:
    return UnknownCallError(f"{call.service}:{call.operation}{detail}: it is not known what this asks of IAM")


def _of_s3(call: Call, _: str) -> Iterator[Request]:
    if implying := IMPLYING & call.parameters.keys():
        raise _unknown(call, f" with {', '.join(sorted(implying))}")
    bucket = f"arn:aws:s3:::{call.parameters.get('Bucket')}"
    secure = {"aws:SecureTransport": "true"}
    if call.operation in OBJECT_ACTIONS:
        key = call.parameters["Key"]
        yield Request(OBJECT_ACTIONS[call.operation], f"{bucket}/{key}", secure)
        if call.operation in ("GetObject", "HeadObject") and call.error in ("NoSuchKey", "404"):
            # Who may not list the bucket is told 403 instead. S3 compares s3:prefix with the key then; ceph/ceph#68577.
            yield Request("s3:ListBucket", bucket, secure | {"s3:prefix": key})
    elif call.operation in BUCKET_ACTIONS:
        keys = {"s3:prefix": "Prefix", "s3:delimiter": "Delimiter", "s3:max-keys": "MaxKeys"}
        listed = BUCKET_ACTIONS[call.operation] == "s3:ListBucket"
        given = {key: str(call.parameters[name]) for key, name in keys.items() if listed and name in call.parameters}
        yield Request(BUCKET_ACTIONS[call.operation], bucket, secure | given)
    elif call.operation == "DeleteObjects":
        for each in call.parameters["Delete"]["Objects"]:
            yield Request("s3:DeleteObject", f"{bucket}/{each['Key']}", secure)
    elif call.operation in COPIES:
        source = call.parameters["CopySource"]
        path = source if isinstance(source, str) else f"{source['Bucket']}/{source['Key']}"
        yield Request("s3:GetObject", f"arn:aws:s3:::{path.lstrip('/')}", secure)
        yield Request("s3:PutObject", f"{bucket}/{call.parameters['Key']}", secure)
    else:
        raise _unknown(call)


def _of_batch(call: Call, account: str) -> Iterator[Request]:
    def arn(kind: str, name: str) -> str:
        return name if name.startswith("arn:") else f"arn:aws:batch:{call.region}:{account}:{kind}/{name}"

    given, tags = call.parameters, call.parameters.get("tags") or {}
    tagging = {"aws:TagKeys": tuple(tags), **{f"aws:RequestTag/{key}": value for key, value in tags.items()}}
    if call.operation in BATCH_WITHOUT_RESOURCE:
        yield Request(f"batch:{call.operation}", "*")
    elif call.operation == "SubmitJob":
        for resource in (arn("job-queue", given["jobQueue"]), arn("job-definition", given["jobDefinition"])):
            yield Request("batch:SubmitJob", resource)
        # Refused in practice with the job definition's ARN (wri/gfw-data-api#175); the job has no id yet.
        for resource in (arn("job-definition", given["jobDefinition"]), arn("job", "new")) if tags else ():
            yield Request("batch:TagResource", resource, tagging)
    elif call.operation == "RegisterJobDefinition":
        definition = arn("job-definition", given["jobDefinitionName"])
        yield Request("batch:RegisterJobDefinition", definition)
        if tags:
            yield Request("batch:TagResource", definition, tagging)
        for role in sorted(set(_roles(given))):
            yield from (Request("iam:PassRole", role, context) for context in PASSED_TO)
    elif call.operation == "TerminateJob":
        yield Request("batch:TerminateJob", arn("job", given["jobId"]))
    elif call.operation == "TagResource":
        yield Request("batch:TagResource", given["resourceArn"], tagging)
    else:
        raise _unknown(call)


def _roles(definition: Mapping[str, Any]) -> Iterator[str]:
    """The roles in the containers of a job definition."""
    nodes = definition.get("nodeProperties", {}).get("nodeRangeProperties", [])
    for container in (definition.get("containerProperties", {}), *(node["container"] for node in nodes)):
        yield from (container[name] for name in JOB_ROLES if container.get(name))


def _of_logs(call: Call, account: str) -> Iterator[Request]:
    if call.operation != "GetLogEvents":
        raise _unknown(call)
    group, stream = call.parameters["logGroupName"], call.parameters["logStreamName"]
    name = f"arn:aws:logs:{call.region}:{account}:log-group:{group}:log-stream:{stream}"
    yield Request("logs:GetLogEvents", name)


def _of_sts(call: Call, _: str) -> Iterator[Request]:
    if call.operation == "AssumeRole":
        yield Request("sts:AssumeRole", call.parameters["RoleArn"])
    elif call.operation not in NO_REQUEST:
        raise _unknown(call)
