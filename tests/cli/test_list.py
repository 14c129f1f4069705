"""`convoy list`, and the job that a command takes where none is named."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from convoy.job.events.registry import Event, ScriptStep
from convoy.job.heartbeat import LiveMarker
from convoy.job.lineage import CommitRef, Generation, generation_name
from convoy.job.record import SCRIPT_DATA, JobRecord
from convoy.storage import Store, open_store
from tests.cli import assert_refused, convoy
from tests.report.analysis.test_ledger import SPOT, preempted_job
from tests.report.synthetic import Log, failed_job, finished_job, restarted_job, running_job, write_log


def a_job(
    store: Store,
    events: Sequence[Event] = (),
    created: float = 1_800_000_000.0,
    started: float = 0.0,
    fingerprint: str = "f",
) -> None:
    """A job of 170 steps as a run leaves it. started: when its newest gang formed, after `created`."""
    name = store.uri.rpartition("/")[2]
    record = JobRecord(
        job=name, created=created, seed=0, global_batch=8, fingerprint=fingerprint, model="tiny", steps=170
    )
    store.create("JOB.json", record.model_dump_json().encode())
    for number in sorted({e.generation for e in events}):
        generation = Generation(
            generation=number, parent=None, formation="f", nodes=2, world_size=2, config_hash="",
            created=created + started + number,
        )  # fmt: skip
        store.create(generation_name(number), generation.model_dump_json().encode())
    write_log(store, events)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Jobs that stand in every way, the later ones made earlier; and a folder that is no job."""
    tmp_path = tmp_path_factory.mktemp("root")
    jobs = {
        "finished": finished_job(),
        "failed": failed_job(),
        "restarted": restarted_job(),
        "training": running_job(),
        "on-spot": preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT})[:-2],
    }
    for i, (name, events) in enumerate(jobs.items()):
        a_job(open_store(str(tmp_path / name)), events, created=1_800_000_000.0 - 100 * i)
    a_job(open_store(str(tmp_path / "just-made")), created=1_700_000_000.0)
    (tmp_path / "empty-record").mkdir()
    (tmp_path / "empty-record" / "JOB.json").write_bytes(b"")
    a_job(open_store(str(tmp_path / "lost-record")), running_job())
    (tmp_path / "lost-record" / "JOB.json").unlink()
    (tmp_path / "no-job").mkdir()
    with LiveMarker(open_store(str(tmp_path / "training")), "training", "TrainFlow/1"):
        yield tmp_path


def test_a_row_tells_how_each_job_stands_and_the_last_started_comes_first(root: Path) -> None:
    done = convoy("list", "--root", root)
    assert done.exit_code == 0
    header, *rows = (line.split() for line in done.stdout.splitlines())
    assert header == ["Job", "State", "Step", "Age", "Cost"]
    assert [row[:5] for row in rows] == [
        ["finished", "finished", "170", "of", "170"],
        ["failed", "failed", "120", "of", "170"],
        ["restarted", "finished", "170", "of", "170"],
        ["training", "running", "90", "of", "170"],
        ["on-spot", "lost", "10", "of", "170"],
        ["just-made", "not", "started", "0", "of"],
        ["empty-record", "damaged", "—"],
        ["lost-record", "damaged", "—"],
        ["empty-record:", "JOB.json:", "the", "file:", "Invalid"],
        ["lost-record:", "JOB.json", "is", "missing"],
    ]
    assert rows[4][-2:] == ["180.00", "USD"]
    assert rows[0][-1] == "—"


@pytest.mark.parametrize("job", ["finished", "failed", "restarted", "training", "on-spot"])
def test_the_state_is_the_word_of_convoy_show(root: Path, job: str) -> None:
    told = {line["job"]: line["state"] for line in json.loads(convoy("list", "--root", root, "--json").stdout)}
    assert f"{told[job].capitalize()} ·" in convoy("show", job, "--root", root).stdout


def test_json_has_whole_names_and_plain_numbers(root: Path) -> None:
    lines = json.loads(convoy("list", "--root", root, "--json").stdout)
    on_spot = next(line for line in lines if line["job"] == "on-spot")
    assert on_spot == {
        "job": "on-spot", "state": "lost", "problem": "", "created": 1_799_999_600.0, "started": 1_799_999_601.0,
        "step": 10, "steps": 170, "usd": 180.0,
    }  # fmt: skip


def test_a_script_has_no_number_of_steps_to_take(tmp_path: Path) -> None:
    log = Log()
    log.start()
    log.add(ScriptStep(step=12, seconds=1.0), rank=0)
    a_job(open_store(str(tmp_path / "script")), log.events, fingerprint=SCRIPT_DATA)
    assert convoy("list", "--root", tmp_path).stdout.splitlines()[1].split()[:3] == ["script", "lost", "12"]
    assert " of " not in convoy("list", "--root", tmp_path).stdout
    shown = convoy("show", "script", "--root", tmp_path).stdout
    assert "170" not in shown
    assert "500" not in shown


def test_a_damaged_heartbeat_is_none(root: Path) -> None:
    (root / "on-spot" / "LIVE.json").write_bytes(b"")
    try:
        assert convoy("show", "on-spot", "--root", root).exit_code == 0
        told = {line["job"]: line["state"] for line in json.loads(convoy("list", "--root", root, "--json").stdout)}
        assert told["on-spot"] == "lost"
    finally:
        (root / "on-spot" / "LIVE.json").unlink()


def test_a_root_without_jobs_says_so_in_one_line(tmp_path: Path) -> None:
    for empty in (tmp_path, tmp_path / "nowhere"):
        done = convoy("list", "--root", empty)
        assert (done.exit_code, done.stdout) == (0, f"There are no jobs under {empty}.\n")
    assert convoy("list", "--root", tmp_path, "--json").stdout == "[]\n"


def test_jobs_in_a_bucket_are_listed_by_their_folders(s3_uri: str) -> None:
    for name in ("a", "b"):
        a_job(open_store(f"{s3_uri}/{name}"), running_job(5))
    done = convoy("list", "--root", s3_uri, "--json")
    assert sorted((line["job"], line["step"]) for line in json.loads(done.stdout)) == [("a", 5), ("b", 5)]


def test_without_a_job_the_one_that_started_last_is_taken_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_job(open_store(str(tmp_path / "gone-on")), finished_job(), created=1_700_000_000.0, started=200_000_000.0)
    a_job(open_store(str(tmp_path / "younger")), failed_job(), created=1_800_000_000.0)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "JOB.json").write_bytes(b"{}")
    named = f"convoy: job gone-on, the newest one under {tmp_path}\n"
    for words in (["show"], ["show", "--json"], ["tail"], ["logs"]):
        done = convoy(*words, "--root", tmp_path)
        assert (done.exit_code, done.stderr) == (0, named), words
        assert done.stdout == convoy(words[0], "gone-on", *words[1:], "--root", tmp_path).stdout
    exported: list[tuple[str, Path]] = []

    def export_to_folder(_: str, job: str, __: object, folder: Path, ___: object) -> CommitRef:
        exported.append((job, folder))
        return CommitRef(generation=0, step=85)

    monkeypatch.setitem(sys.modules, "convoy.training.export", SimpleNamespace(export_to_folder=export_to_folder))
    done = convoy("export", tmp_path / "hf", "--to", "hf", "--root", tmp_path)
    assert (done.exit_code, done.stderr, exported) == (0, named, [("gone-on", tmp_path / "hf")])


def test_a_command_without_a_job_where_there_is_none_says_so(tmp_path: Path) -> None:
    for words in (["show"], ["tail"], ["logs"], ["export", "--to", "hf", "folder"]):
        assert_refused(f"JOB: there is no job under {tmp_path}", *words, "--root", tmp_path)


def test_export_refuses_a_job_without_a_folder(root: Path) -> None:
    line = "FOLDER: missing after the name of a job, finished"
    assert_refused(line, "export", "finished", "--to", "hf", "--root", root)


def test_a_damaged_record_is_one_line_where_its_job_is_named(root: Path) -> None:
    line = f"job = empty-record: {root}/empty-record/JOB.json is damaged: it is not the record of a job"
    assert_refused(line, "show", "empty-record", "--root", root)


@pytest.mark.parametrize("config", ["[1, 2]", "null", '{"train": [1]}', '{"train": {"steps": "many"}}'])
def test_a_job_whose_configuration_is_damaged_is_one_line_of_the_list(config: str, tmp_path: Path) -> None:
    a_job(open_store(str(tmp_path / "whole")), finished_job())
    store = open_store(str(tmp_path / "damaged"))
    a_job(store, finished_job())
    (name,) = store.sizes("generations/")
    ran_with = Generation.model_validate_json(store.read(name)).model_copy(update={"config_hash": "abc"})
    store.write(name, ran_with.model_dump_json().encode())
    store.write("configs/abc.json", config.encode())
    listed = convoy("list", "--root", tmp_path).output.splitlines()[1:3]
    assert sorted(line.split()[:2] for line in listed) == [["damaged", "damaged"], ["whole", "finished"]]
    shown = convoy("show", "damaged", "--root", tmp_path)
    assert (shown.exit_code, len(shown.output.splitlines())) == (2, 1)


@pytest.mark.parametrize("created", ["NaN", "-Infinity", "1e300", "-1"])
def test_a_job_that_was_made_at_no_time_is_damaged(created: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a"))
    a_job(store)
    store.write("JOB.json", store.read("JOB.json").replace(b"1800000000.0", created.encode()))
    assert convoy("list", "--root", tmp_path).output.splitlines()[2].startswith("a: JOB.json: created")
