"""The policies that Terraform gives to tasks and to those who start runs, against the AWS calls of real runs.

What the calls ask of IAM is recorded in iam_requests.json, run by run, without the names that differ from run to run.
Each is evaluated by `tests/infra/iam_policy.py`, because moto's own enforcement knows neither conditions nor the
resources of AWS Batch. Training and one of the other runs, another one for each commit, are recorded anew, on moto:
they may make no call that asks for anything else. `make campaign` records all of them.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from convoy.job.heartbeat import live_mark
from convoy.job.lineage import read_history
from convoy.job.record import job_store
from tests.campaign import in_full
from tests.flows.places import CONVOY, FLOW, REPOSITORY, SMOKE, Place, agent_pid, wait_for
from tests.infra.iam_calls import Recording, iam_requests
from tests.infra.iam_policy import Policy, Request, decide
from tests.infra.terraform import copy_repository, initialised, leave_out_waits

pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]

NAME, ACCOUNT, REGION = "least", "123456789012", "us-east-1"
BUCKET = f"{NAME}-{ACCOUNT}-{REGION}"
TASK_ROLE = f"arn:aws:iam::{ACCOUNT}:role/{NAME}-task"
IMAGE = "registry.example/convoy:1"
GANG_FLOW = REPOSITORY / "tests" / "flows" / "gang_flow.py"
BENCHMARK_FLOW = FLOW.with_name("benchmark_flow.py")
JOB, STEPS = "blue", 40

UNUSED = {
    ("s3:AbortMultipartUpload", f"arn:aws:s3:::{BUCKET}/metaflow/*"): "boto3 gives up a large artifact that breaks off",
    ("s3:GetObject", f"arn:aws:s3:::{BUCKET}/fsx/*"):
        "a corpus that lies on FSx is read from S3 where FSx is not mounted",
    ("logs:GetLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/batch/job:log-stream:*"):
        "of a task that ran out of memory, only AWS has the last lines, for a person to read",
    ("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{NAME}-k8s"):
        "`aws eks update-kubeconfig` asks for the cluster's address",
}  # fmt: skip
"""Rights, as (action, resource), that no recorded call used: why they are given all the same."""


@dataclass(frozen=True)
class Policies:
    """What Terraform made."""

    task: Policy
    submit: Policy
    submit_kubernetes: Policy
    attached: list[Policy]
    """To the role of tasks."""
    trust: Policy
    """Who may take that role."""
    bucket: Policy

    def decide(self, request: Request, *, as_task: bool) -> str:
        """as_task: by a task, else by who starts runs and has both policies."""
        asked = replace(request, principal=TASK_ROLE)
        return decide(asked, [self.task] if as_task else [self.task, self.submit], [self.bucket])


@pytest.fixture(scope="module")
def server(s3_endpoint: str) -> Iterator[str]:
    """The URL of moto, to which all of this file's processes are led."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        patch.setenv("METAFLOW_S3_ENDPOINT_URL", s3_endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setattr("moto.batch.models.Job.run", _run_until_terminated)
        yield s3_endpoint


def _run_until_terminated(job: Any) -> None:
    """In place of a container that moto would start with Docker."""
    job.job_started_at = datetime.now()
    job._start_attempt()
    job.status = "RUNNING"
    while not job.stop:
        time.sleep(0.05)
    job._mark_stopped(success=False)


@pytest.fixture(scope="module")
def policies(server: str, tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """The bucket, the policies and the role of tasks, applied to moto."""
    repository = copy_repository(tmp_path_factory.mktemp("stack"))
    leave_out_waits(repository)
    root = repository / "infra" / "least-privilege"
    root.mkdir()
    given = {"account": ACCOUNT, "region": REGION, "bucket": "${module.datastore.bucket}"}
    outputs = {"task": "iam.task_policy", "submit": "iam.submit_policy", "kubernetes": "kubernetes.submit_policy"}
    content = {
        "provider": {"aws": {"region": REGION, "s3_use_path_style": True}},
        "module": {
            "datastore": {"source": "../modules/datastore", "name": NAME, "keep_data": False},
            "iam": {"source": "../modules/iam", "name": NAME, "backend": "batch"} | given,
            "kubernetes": {"source": "../modules/iam", "name": f"{NAME}-k8s", "backend": "kubernetes"} | given,
        },
        "output": {name: {"value": f"${{module.{value}}}"} for name, value in outputs.items()},
    }
    (root / "main.tf.json").write_text(json.dumps(content))
    applied = initialised(repository, root.name, server)
    applied.run("apply", "-auto-approve", "-input=false", "-no-color")
    made = {name: json.loads(each["value"]) for name, each in json.loads(applied.run("output", "-json").stdout).items()}
    iam, s3, role = boto3.client("iam"), boto3.client("s3"), f"{NAME}-task"
    attached = [
        iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId="v1")["PolicyVersion"]["Document"]
        for each in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    ]
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == []
    trust = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    bucket = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])
    s3.delete_bucket_policy(Bucket=BUCKET)  # moto takes its unmet condition for a denial
    return Policies(made["task"], made["submit"], made["kubernetes"], attached, trust, bucket)


@pytest.fixture(scope="module")
def queues(policies: Policies) -> None:
    """Job queues of the stack, for GPUs and for CPUs, on one compute environment."""
    iam, ec2, batch = boto3.client("iam"), boto3.client("ec2"), boto3.client("batch")
    role = iam.create_role(RoleName=f"{NAME}-machine", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName=f"{NAME}-machine")["InstanceProfile"]["Arn"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    batch.create_compute_environment(
        computeEnvironmentName=NAME, type="MANAGED", state="ENABLED", serviceRole=role,
        computeResources={"type": "EC2", "minvCpus": 0, "maxvCpus": 384, "instanceTypes": ["p4d.24xlarge"],
                          "instanceRole": profile, "subnets": [subnet], "securityGroupIds": [group]},
    )  # fmt: skip
    for kind in ("p4d", "cpu"):
        order = [{"order": 1, "computeEnvironment": NAME}]
        queue = f"{NAME}-{kind}"
        batch.create_job_queue(jobQueueName=queue, state="ENABLED", priority=1, computeEnvironmentOrder=order)


RECORDED = Path(__file__).with_name("iam_requests.json")
VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{20,}")
"""Hashes and UUIDs."""


@pytest.fixture(scope="module")
def requests() -> dict[str, list[Request]]:
    """What each recorded run asks of IAM."""
    recorded = json.loads(RECORDED.read_text())
    return {run: [_read(line) for line in lines] for run, lines in recorded.items()}


def _read(line: str) -> Request:
    action, resource, *values = line.split(" ")
    context = {name: value for name, _, value in (each.partition("=") for each in values)}
    return Request(action, resource, {k: tuple(v.split(",")) if k == "aws:TagKeys" else v for k, v in context.items()})


def _line(request: Request) -> str:
    """The request, as the file has it: of a key, what the policies distinguish, and no names that vary."""
    resource = VARYING.sub("...", re.sub(r"(:::[^/]+/[^/]+/).+", r"\1...", request.resource))
    values = []
    for name, value in sorted(request.context.items()):
        if name == "s3:prefix":
            values.append(f"{name}={re.sub('/.+', '/...', str(value))}")
        elif not name.startswith("aws:RequestTag/"):
            values.append(f"{name}={value if isinstance(value, str) else ','.join(value)}")
    return " ".join([request.action, resource, *values])


ENVIRONMENT = {
    "CONVOY_ROOT": f"s3://{BUCKET}/convoy",
    "METAFLOW_DEFAULT_DATASTORE": "s3",
    "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{BUCKET}/metaflow",
    "METAFLOW_DATATOOLS_S3ROOT": f"s3://{BUCKET}/metaflow/data",
    "METAFLOW_BATCH_JOB_QUEUE": f"{NAME}-cpu",
    "METAFLOW_BATCH_CONTAINER_IMAGE": IMAGE,
    "METAFLOW_BATCH_EMIT_TAGS": "1",
    "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": TASK_ROLE,
    "METAFLOW_SERVICE_URL": "http://127.0.0.1:9",  # asked for by the preflight; metadata stay local
}
TRAINING = f"s3://{BUCKET}/convoy/{JOB}"


def train_drain_and_resume(place: Place) -> None:
    """A corpus on S3, training on it whose first node is lost, so that Metaflow tries again, and that `convoy drain`
    ends, and `resume`. Metaflow keeps what it knows in a metadata service, as on AWS."""
    with _metadata_service(place) as url:
        service = {"METAFLOW_DEFAULT_METADATA": "service", "METAFLOW_SERVICE_URL": url}
        _train_drain_and_resume(replace(place, variables={**place.variables, **service}))


def _train_drain_and_resume(place: Place) -> None:
    _put_corpus()
    config = yaml.safe_load(SMOKE.read_text())
    config["data"] |= {"corpus": {"kind": "files", "path": f"s3://{BUCKET}/corpus"}, "tokenizer": {"kind": "bytes"}}
    config["model"]["vocab_size"] = 257
    config["train"]["steps"] = STEPS
    config["checkpoint"] = {"every_steps": 10, "export_model": False}
    config["evaluation"]["every_steps"] = 20
    config["report"]["card_refresh_seconds"] = 60
    file = place.folder / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    store = job_store(f"s3://{BUCKET}/convoy", JOB)
    config_words, retry = ("--config", "run", file), ("--with", "retry:times=1")
    process = place.start(sys.executable, FLOW, *config_words, "run", "--job", JOB, *retry)
    with _killed_at_last(process):
        wait_for(lambda: read_history(store).commits, pause=0.2)
        os.kill(int(wait_for(lambda: agent_pid(None, 1, 0, process.pid))), signal.SIGKILL)
        wait_for(lambda: read_history(store).generations.keys() >= {2}, pause=0.2)
        wait_for(lambda: (mark := live_mark(store)) is not None and not mark.preparing, pause=0.2)
        drained = place.convoy("drain", JOB)
        printed = "".join(process.communicate(timeout=240))
    assert drained.returncode == 0, drained.stderr + printed
    assert process.returncode != 0, printed
    _succeed(place.run(sys.executable, FLOW, "resume", "train"))
    found = place.client(
        "drained, resumed = list(Flow('TrainFlow').runs())[1::-1]\n"
        "first = list(drained['train'].control_tasks())[0]\n"
        "answer = {'ended': resumed['end'].task.metadata_dict['attempt_ok'],\n"
        "          'attempts': sorted({each.value for each in first.metadata if each.name == 'attempt'}),\n"
        "          'live': get_cards(list(resumed['train'].control_tasks())[0])[0].get(),\n"
        "          'final': get_cards(resumed['join'].task)[0].get()}"
    )
    assert found["ended"] == "True"
    assert found["attempts"] == ["0", "1"]
    assert str(STEPS) in found["live"]
    assert "Finished" in found["final"]


@contextlib.contextmanager
def _metadata_service(place: Place) -> Iterator[str]:
    """URL of a metadata service, which keeps what it is told in a folder of the place.

    It gives the tasks of other nodes numbers in place of their names, so that Metaflow cannot render their cards.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    folder = place.folder / "service"
    command = [sys.executable, "-m", "metaflow_local_service.daemon", "--port", str(address[1])]
    process = subprocess.Popen([*command, "--metaflow-root", str(folder), "--idle-timeout", "600"])
    try:
        wait_for(lambda: process.poll() is not None or _listens(address), seconds=30)
        assert process.poll() is None, "it ended"
        yield f"http://127.0.0.1:{address[1]}"
    finally:
        process.terminate()
        process.wait()


def _listens(address: tuple[str, int]) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(address) == 0


def look_at_copy_and_prune(place: Place) -> None:
    """What the command line does to a job on S3, with an upload in its way that somebody gave up."""
    s3 = boto3.client("s3")
    s3.create_multipart_upload(Bucket=BUCKET, Key=f"convoy/{JOB}/shards/given-up/00000.000.bin")
    commands = [
        ("list",),
        ("show", JOB),
        ("tail", JOB),
        ("logs", JOB),
        ("checkpoints", "list", TRAINING),
        ("checkpoints", "verify", TRAINING),
        ("checkpoints", "copy", TRAINING, f"s3://{BUCKET}/convoy/copies/{JOB}"),
        ("checkpoints", "prune", TRAINING, "--keep-last", "1"),
        ("rewind", JOB, "--to", str(STEPS)),
        ("export", JOB, str(place.folder / "exported"), "--to", "hf"),
    ]
    _succeed(place.run(sys.executable, "-c", COMMANDS, json.dumps(commands)))


COMMANDS = """
import json
import sys
from convoy.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""
"""In one process: each takes as long to start as all take to be done."""
SCRIPT = """
import sys
from convoy.config.data import FilesCorpus
from convoy.data.documents import Documents
from convoy.data.sources import list_files
from convoy.storage import StoreUnavailable, open_store
bucket = sys.argv[1]
store = open_store(f"s3://{bucket}/convoy/large")
for _ in range(2):
    try:
        print(len(store.put("shards/a", memoryview(bytes(12 << 20)), 1 << 20)))
    except StoreUnavailable as error:
        print(error)
print(store.create("once", b""), store.create("once", b""))
for path, kind in ("corpus/part/*.txt", "text"), ("corpus/lines/a.jsonl", "jsonl"), ("corpus/lines", "jsonl"):
    corpus = FilesCorpus(kind="files", path=f"s3://{bucket}/{path}", format=kind)
    print(sum(1 for _ in Documents(corpus, list_files(corpus), 0.5)))
"""


def store_large_objects_and_read_corpora(place: Place) -> None:
    """A part of a checkpoint that needs a multipart upload, twice, so that the second one is refused; and corpora named
    by a glob and a file, and of JSON lines."""
    _put_corpus()
    lines = "\n".join(json.dumps({"text": f"the lazy dog {i}"}) for i in range(4))
    boto3.client("s3").put_object(Bucket=BUCKET, Key="corpus/lines/a.jsonl", Body=lines.encode())
    done = _succeed(place.run(sys.executable, "-c", SCRIPT, BUCKET))
    late = f"s3://{BUCKET}/convoy/large/shards/a: an object of that name is there already"
    assert done.stdout.splitlines() == ["12", late, "True False", "8", "4", "4"]


def submit_a_gang_and_kill_it(place: Place) -> None:
    """A gang of two machines on AWS Batch, ended by Metaflow's `batch kill`."""
    cluster = {"backend": "batch", "nodes": 2, "instance_type": "p4d.24xlarge", "queue": f"{NAME}-p4d",
               "retries": 0}  # fmt: skip
    machines = json.dumps({"root": f"s3://{BUCKET}/convoy", "cluster": cluster})
    flow = [sys.executable, GANG_FLOW, "--config-value", "machines", machines]
    process = place.start(*flow, "run", "--nodes", "2")
    with _killed_at_last(process):
        _await_running_job(f"{NAME}-p4d", process)
        killed = _succeed(place.run(*flow, "batch", "kill"))
        printed = "".join(process.communicate(timeout=120))
    assert "Killing AWS Batch job" in killed.stdout + killed.stderr, killed.stdout + killed.stderr
    assert process.returncode != 0, printed
    assert not boto3.client("batch").list_jobs(jobQueue=f"{NAME}-p4d", jobStatus="RUNNING")["jobSummaryList"]


def run_the_scheduled_benchmark(place: Place) -> None:
    """What the scheduled task runs, up to its first task on the CPU queue. SIGTERM ends it, as Batch would."""
    config = yaml.safe_load((REPOSITORY / "configs" / "bench" / "p4d.yaml").read_text())
    config["run"]["root"] = f"s3://{BUCKET}/convoy"
    config["run"]["cluster"]["queue"] = f"{NAME}-p4d"
    words = ["--job", "scheduled-benchmark", "--root", f"s3://{BUCKET}/convoy"]
    process = place.start(CONVOY, "run", BENCHMARK_FLOW, *words, "--", "--config-value", "bench", json.dumps(config))
    with _killed_at_last(process):
        _await_running_job(f"{NAME}-cpu", process)
        process.send_signal(signal.SIGTERM)
        printed = "".join(process.communicate(timeout=120))
    assert process.returncode == 128 + signal.SIGTERM, printed
    assert not boto3.client("batch").list_jobs(jobQueue=f"{NAME}-cpu", jobStatus="RUNNING")["jobSummaryList"]


TRAIN = {"train": (train_drain_and_resume, look_at_copy_and_prune)}
SAMPLED = {
    "large": (store_large_objects_and_read_corpora,),
    "batch": (submit_a_gang_and_kill_it,),
    "schedule": (run_the_scheduled_benchmark,),
}
RUNS = TRAIN | SAMPLED
LOCAL = ("train", "large")
"""The runs whose processes all do what tasks do."""


def test_training_asks_for_what_is_recorded(
    policies: Policies, requests: dict[str, list[Request]], tmp_path: Path
) -> None:
    compare_with_recorded("train", requests, tmp_path)


@pytest.mark.sampled(len(SAMPLED))
@pytest.mark.parametrize("name", SAMPLED)
def test_a_run_asks_for_what_is_recorded(
    name: str, queues: None, requests: dict[str, list[Request]], tmp_path: Path
) -> None:
    compare_with_recorded(name, requests, tmp_path)


def compare_with_recorded(name: str, requests: dict[str, list[Request]], tmp_path: Path) -> None:
    """Record the calls of a run anew."""
    recording = Recording.at(tmp_path / "recording")
    before = _keys()
    place = Place(tmp_path, recording.environment | ENVIRONMENT)
    for run in RUNS[name]:
        run(place)
    calls = recording.calls()
    counts = Counter(f"{call.service}:{call.operation}" for call in calls)
    print(f"{len(calls)} calls: {', '.join(f'{operation} {count}' for operation, count in sorted(counts.items()))}")
    lines = {_line(request) for call in calls for request in iam_requests(call, ACCOUNT)}
    recorded = {_line(request) for request in requests.get(name, ())}
    assert sorted(lines - recorded) == [], f"not in {RECORDED.name}"
    if in_full():
        assert sorted(recorded - lines) == [], f"no longer asked for, but in {RECORDED.name}"
    puts = ("PutObject", "CompleteMultipartUpload", "CopyObject")
    written = {call.parameters["Key"] for call in recording.begun_calls() if call.operation in puts}
    assert written, "nothing was recorded"
    assert sorted(_keys() - before - written) == [], "written by a process that was not recorded"


def _put_corpus() -> None:
    """Eight files of text."""
    for i in range(8):
        text = f"the quick brown fox {i} " * 400
        boto3.client("s3").put_object(Bucket=BUCKET, Key=f"corpus/part/{i}.txt", Body=text.encode())


def _keys() -> set[str]:
    """Of the objects in the bucket, without the corpora that the tests put there."""
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = {item["Key"] for page in pages for item in page.get("Contents", ())}
    return {key for key in keys if not key.startswith("corpus/")}


def _await_running_job(queue: str, process: "subprocess.Popen[str]") -> None:
    batch = boto3.client("batch")

    def running() -> bool:
        assert process.poll() is None, "".join(process.communicate())
        return bool(batch.list_jobs(jobQueue=queue, jobStatus="RUNNING")["jobSummaryList"])

    wait_for(running, pause=0.2)


@contextlib.contextmanager
def _killed_at_last(process: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()


def _succeed(done: "subprocess.CompletedProcess[str]") -> "subprocess.CompletedProcess[str]":
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_each_request_is_allowed_by_the_policies_of_who_makes_it(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    assert requests.keys() == RUNS.keys()
    refused = {
        f"{name}: {_line(request)}"
        for name, asked in requests.items()
        for request in asked
        if policies.decide(request, as_task=name in LOCAL) != "allow"
    }
    assert sorted(refused) == []


def test_a_gang_that_is_submitted_needs_the_tasks_policy_and_that_of_starting_runs(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    for name in RUNS.keys() - set(LOCAL):
        refused = {request.action for request in requests[name] if policies.decide(request, as_task=True) != "allow"}
        assert {"batch:SubmitJob", "iam:PassRole"} <= refused
        assert not [action for action in refused if action.startswith("s3:")]


def test_each_right_is_used_by_a_recorded_request_or_listed_with_its_reason(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    everything = list(chain.from_iterable(requests.values()))
    unused = set()
    for document in (policies.task, policies.submit, policies.submit_kubernetes):
        for statement in document["Statement"]:
            for action in statement["Action"]:
                for resource in statement["Resource"]:
                    right = {**document, "Statement": [statement | {"Action": action, "Resource": resource}]}
                    if not any(decide(request, [right]) == "allow" for request in everything):
                        unused.add((action, resource))
    assert unused == UNUSED.keys()


def test_no_right_has_a_wildcard_in_its_action_and_only_what_has_no_resource_is_for_all(policies: Policies) -> None:
    statements = [s for each in (policies.task, policies.submit, policies.submit_kubernetes) for s in each["Statement"]]
    assert not [action for statement in statements for action in statement["Action"] if "*" in action]
    for_all = {action for statement in statements if "*" in statement["Resource"] for action in statement["Action"]}
    assert all(action.startswith(("batch:Describe", "batch:List")) for action in for_all)


def test_the_role_of_tasks_has_the_task_policy_alone_and_only_ecs_gives_it_to_tasks_of_this_account(
    policies: Policies,
) -> None:
    assert policies.attached == [policies.task]
    own, other = {"aws:SourceAccount": ACCOUNT}, {"aws:SourceAccount": "210987654321"}
    for principal, values, decision in (
        ("ecs-tasks.amazonaws.com", own, "allow"),
        ("ecs-tasks.amazonaws.com", other, "implicit deny"),
        ("ec2.amazonaws.com", own, "implicit deny"),
        (f"arn:aws:iam::{ACCOUNT}:role/other", own, "implicit deny"),
    ):
        request = Request("sts:AssumeRole", TASK_ROLE, values, principal)
        assert decide(request, [], [policies.trust]) == decision, (principal, values)


def test_without_tls_the_bucket_refuses_what_it_else_allows(policies: Policies) -> None:
    for allowed in _s3("GetObject", f"{BUCKET}/convoy/a"), _s3("ListBucket", BUCKET, prefix="convoy/"):
        assert policies.decide(allowed, as_task=True) == "allow"
        plain = replace(allowed, context={**allowed.context, "aws:SecureTransport": "false"})
        assert policies.decide(plain, as_task=True) == "explicit deny"


def _s3(action: str, path: str, **values: str) -> Request:
    context = {f"s3:{name}": value for name, value in values.items()} | {"aws:SecureTransport": "true"}
    return Request(f"s3:{action}", f"arn:aws:s3:::{path}", context)


def _batch(action: str, name: str, region: str = REGION, account: str = ACCOUNT) -> Request:
    return Request(f"batch:{action}", f"arn:aws:batch:{region}:{account}:{name}")


def _pass(role: str, service: str = "ecs-tasks.amazonaws.com") -> Request:
    return Request("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{role}", {"iam:PassedToService": service})


@pytest.mark.parametrize(
    "request_",
    [
        *(_s3(action, "other/convoy/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}-other/convoy/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        _s3("ListBucket", "other", prefix="convoy/"),
        _s3("ListBucketMultipartUploads", "other"),
        *(_s3(action, f"{BUCKET}/other/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}/convoy-other/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}/corpus/a") for action in ("PutObject", "DeleteObject", "AbortMultipartUpload")),
        *(_s3("ListBucket", BUCKET, prefix=prefix) for prefix in ("other/", "con", "convoy-other/")),
        *(_s3(action, BUCKET) for action in ("DeleteBucket", "PutBucketPolicy", "PutEncryptionConfiguration",
                                             "PutBucketPublicAccessBlock", "PutLifecycleConfiguration")),
        *(_s3(action, f"{BUCKET}/convoy/a") for action in ("PutObjectAcl", "BypassGovernanceRetention")),
        _batch("SubmitJob", "job-queue/other"),
        _batch("SubmitJob", f"job-queue/{NAME}other"),
        _batch("SubmitJob", f"job-queue/{NAME}-p4d", region="eu-west-1"),
        _batch("SubmitJob", f"job-queue/{NAME}-p4d", account="210987654321"),
        _batch("SubmitJob", "job-definition/other:1"),
        _batch("RegisterJobDefinition", "job-definition/other"),
        _batch("DeregisterJobDefinition", "job-definition/metaflow_1:1"),
        _batch("TerminateJob", "job/1", account="210987654321"),
        _batch("UpdateJobQueue", f"job-queue/{NAME}-p4d"),
        _batch("UpdateComputeEnvironment", f"compute-environment/{NAME}"),
        _batch("TagResource", f"job-queue/{NAME}-p4d"),
        _pass(f"{NAME}-machine"),
        _pass(f"{NAME}-task-other"),
        _pass(f"{NAME}-task", service="ec2.amazonaws.com"),
        Request("iam:PutRolePolicy", TASK_ROLE),
        Request("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/other"),
        Request("logs:GetLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:other:log-stream:s"),
        Request("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{NAME}"),
        Request("ec2:RunInstances", "*"),
    ],
    ids=lambda request: f"{request.action} {request.resource.partition(':::')[2] or request.resource}",
)  # fmt: skip
def test_who_starts_runs_is_denied_other_buckets_prefixes_queues_and_roles(
    policies: Policies, request_: Request
) -> None:
    assert policies.decide(request_, as_task=False) == "implicit deny"


def test_on_kubernetes_only_the_cluster_is_described_and_no_other(policies: Policies) -> None:
    for cluster, decision in (f"{NAME}-k8s", "allow"), (NAME, "implicit deny"):
        request = Request("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{cluster}")
        assert decide(request, [policies.submit_kubernetes]) == decision
    assert decide(_batch("SubmitJob", f"job-queue/{NAME}-p4d"), [policies.submit_kubernetes]) == "implicit deny"
