"""Runs whose AWS calls are recorded, each what one person or machine does with the stack's bucket and queues."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import boto3
import yaml

from convoy.job.heartbeat import live_mark
from convoy.job.lineage import read_history
from convoy.job.record import job_store
from tests.flows.places import CONVOY, FLOW, REPOSITORY, SMOKE, Place, agent_pid, wait_for

NAME, ACCOUNT, REGION = "least", "123456789012", "us-east-1"
BUCKET = f"{NAME}-{ACCOUNT}-{REGION}"
TASK_ROLE = f"arn:aws:iam::{ACCOUNT}:role/{NAME}-task"
IMAGE = "registry.example/convoy:1"
GANG_FLOW = REPOSITORY / "tests" / "flows" / "gang_flow.py"
BENCHMARK_FLOW = FLOW.with_name("benchmark_flow.py")
JOB, STEPS = "blue", 40

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


def _put_corpus() -> None:
    """Eight files of text."""
    for i in range(8):
        text = f"the quick brown fox {i} " * 400
        boto3.client("s3").put_object(Bucket=BUCKET, Key=f"corpus/part/{i}.txt", Body=text.encode())


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


TRAIN = {"train": (train_drain_and_resume, look_at_copy_and_prune)}
SAMPLED = {
    "large": (store_large_objects_and_read_corpora,),
    "batch": (submit_a_gang_and_kill_it,),
    "schedule": (run_the_scheduled_benchmark,),
}
RUNS = TRAIN | SAMPLED
LOCAL = ("train", "large")
"""The runs whose processes all do what tasks do."""
