"""`convoy checkpoints ...` on jobs in a folder and on S3."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mypy_boto3_s3 import S3Client

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import encode_commit
from convoy.checkpoint.verify.commit import verify_commit, verify_part
from convoy.checkpoint.verify.marks import mark_damaged, read_damage, suspect, verified_in
from convoy.config.checkpoint import StoreConfig
from convoy.job.generations import form_generation, rewind
from convoy.job.heartbeat import LiveMarker
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, parse_commits
from convoy.job.record import RECORD
from convoy.storage import Store, open_store
from tests.checkpoint.torchless import TinyState, form, restored
from tests.cli import assert_refused, convoy
from tests.conftest import S3Server

STATE = TinyState(sizes=(5000, 3000))
checkpoints = partial(convoy, "checkpoints")


@pytest.fixture
def job(store_uri: str) -> Store:
    """A job with checkpoints of steps 10, 20 and 30."""
    return with_checkpoints(open_store(store_uri))


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return with_checkpoints(open_store(str(tmp_path / "blue")))


def with_checkpoints(store: Store, *tiers: Store) -> Store:
    form(store, *tiers)
    for step in (10, 20, 30):
        STATE.save(store, step)
    return store


def ref(step: int, generation: int = 1) -> CommitRef:
    return CommitRef(generation=generation, step=step)


def spoil(store: Store, step: int) -> None:
    (name,) = (name for name in store.sizes(f"shards/{ref(step).stem}/") if name.endswith("00001.000.bin"))
    store.write(name, store.read(name)[:-1])


def steps(store: Store) -> list[int]:
    return sorted(found.step for found in parse_commits(store.sizes("commits/")))


def answer(*words: str | Path, exit_code: int = 0) -> dict[str, Any]:
    done = checkpoints(*words, "--json")
    assert done.exit_code == exit_code, done.output
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


def refused(line: str, *words: str | Path) -> None:
    assert_refused(line, "checkpoints", *words)


def test_list_tells_what_is_known_of_each_checkpoint(job: Store) -> None:
    verify_commit(job, ref(10))
    verify_part(job, ref(20), 1)
    mark_damaged(job, ref(30), "a flipped bit")
    with lease(job, ref(20)):
        told = answer("list", job.uri)
        shown = checkpoints("list", job.uri).stdout
    assert told["uri"] == job.uri
    rows = {row["step"]: row for row in told["checkpoints"]}
    assert [(row["verified"], row["verified_parts"], row["counts"]) for row in rows.values()] == [
        (True, 2, True),
        (False, 1, True),
        (False, 0, False),
    ]
    assert (rows[10]["parts"], rows[10]["bytes"], rows[30]["damage"]) == (2, 8000, "a flipped bit")
    assert [row["in_use"] for row in rows.values()] == [False, True, False]
    lines = shown.splitlines()
    assert lines[0].split() == ["Step", "Generation", "Size", "Saved", "(UTC)", "State"]
    assert [line.strip().rpartition("  ")[2] for line in lines[1:4]] == [
        "verified",
        "1 of 2 parts verified, in use",
        "damaged",
    ]
    assert lines[4:] == ["step 30 of generation 1: a flipped bit"]


def test_list_shows_what_a_rewind_left_behind_as_not_counting(local: Store) -> None:
    rewind(local, 15)
    told = answer("list", local.uri)
    assert [row["counts"] for row in told["checkpoints"]] == [True, False, False]
    assert checkpoints("list", local.uri).stdout.count("not on the lineage") == 2


def test_list_shows_a_commit_that_cannot_be_read(local: Store) -> None:
    local.write(ref(20).name, b"garbage")
    row = answer("list", local.uri)["checkpoints"][1]
    assert (row["bytes"], row["damage"]) == (None, None)
    assert row["problem"].endswith("7 bytes that are not a commit")


def test_a_commit_that_names_files_elsewhere_is_not_one_and_what_is_there_stays(local: Store, tmp_path: Path) -> None:
    folder, victim = tmp_path / "blue" / "shards" / ref(20).stem, tmp_path / "victim"
    (folder / "a").rename(victim)
    commit = read_commit(local, ref(20)).model_copy(update={"attempt": "../../../victim"})
    local.write(ref(20).name, encode_commit(commit))
    theirs = sorted(path.name for path in victim.iterdir())
    told = "blue/commits/000001-000000020.json: is not a commit: attempt: '../../../victim' is not the name of one file"
    for words in (["list", local.uri], ["copy", local.uri, tmp_path / "deep" / "er" / "to"], ["verify", local.uri]):
        assert told in checkpoints(*words).stdout
    local.delete(f"damaged/{ref(20).stem}.json")  # which keeps a commit from being pruned before its time
    assert [gone["step"] for gone in answer("prune", local.uri, "--keep-last", "1")["commits"]] == [10, 20]
    assert sorted(path.name for path in victim.iterdir()) == theirs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blue", "deep", "victim"]
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["to"]


def test_a_uri_without_a_job_is_refused_in_one_line(tmp_path: Path) -> None:
    line = f"uri = {tmp_path}: holds no job's checkpoints; it must be the URI of one job on one tier"
    for words in (["list", tmp_path], ["verify", tmp_path], ["prune", tmp_path], ["copy", tmp_path, tmp_path / "to"]):
        refused(line, *words)


def test_a_job_that_has_saved_nothing_yet_is_no_error(tmp_path: Path) -> None:
    form(open_store(str(tmp_path)))
    assert checkpoints("list", tmp_path).stdout == "no checkpoints yet\n"
    assert checkpoints("verify", tmp_path).stdout == "no checkpoints that count\n"
    assert answer("verify", tmp_path)["checkpoints"] == []


def test_an_outage_is_one_line_and_exit_code_1(s3_uri: str, s3_server: S3Server) -> None:
    s3_server.stop()
    done = checkpoints("list", s3_uri)
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("convoy: s3://")


def test_verify_reads_all_that_count_back_and_marks_them(job: Store) -> None:
    done = checkpoints("verify", job.uri)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "step 30 of generation 1: 8.00 kB, every byte is right"
    assert verified_in(job) == {ref(10), ref(20), ref(30)}


def test_verify_finds_damage_marks_it_and_goes_on(job: Store) -> None:
    spoil(job, 20)
    told = answer("verify", job.uri, exit_code=1)
    found = {row["step"]: row["error"] for row in told["checkpoints"]}
    assert (found[10], found[30]) == (None, None)
    assert "00001.000.bin: 2999 bytes, the commit says 3000" in found[20]
    evidence = read_damage(job, ref(20))
    assert evidence is not None
    assert evidence.error == found[20]
    again = checkpoints("verify", job.uri)
    assert (again.exit_code, again.stderr) == (1, "convoy: 1 of 3 checkpoints: see above\n")
    told = next(line for line in again.stdout.splitlines() if line.startswith("step 20 of"))
    assert told.startswith(f"step 20 of generation 1: found damaged before, by {evidence.host} on 2")
    assert told.count("00001.000.bin: 2999 bytes, the commit says 3000") == 2  # then, and now
    row = answer("verify", job.uri, "--reinstate", exit_code=1)["checkpoints"][1]
    assert "; here too: " in row["error"]
    assert read_damage(job, ref(20)) is not None


def test_verify_of_a_checkpoint_that_was_marked_by_mistake_tells_so_and_reinstates_it_when_asked(job: Store) -> None:
    mark_damaged(job, ref(20), "the checksum of chunk 0 does not match", host="bad")
    done = checkpoints("verify", job.uri, "--step", "20")
    assert done.exit_code == 1
    assert "found damaged before, by bad on " in done.stdout
    assert "the checksum of chunk 0 does not match; here every byte is right: --reinstate has it count" in done.stdout
    assert read_damage(job, ref(20)) is not None

    (row,) = answer("verify", job.uri, "--step", "20", "--reinstate")["checkpoints"]

    assert (row["bytes"], row["error"]) == (8000, None)
    assert (row["evidence"]["host"], row["evidence"]["error"]) == ("bad", "the checksum of chunk 0 does not match")
    assert (read_damage(job, ref(20)), verified_in(job)) == (None, {ref(20)})
    assert answer("verify", job.uri, "--reinstate")["checkpoints"][1] == {
        "generation": 1,
        "step": 20,
        "bytes": 8000,
        "error": None,
    }


def test_list_tells_which_hosts_suspect_a_checkpoint_until_it_is_verified(local: Store) -> None:
    verify_commit(local, ref(20))
    suspect(local, ref(20), 1, "a flipped bit", "node-7")
    row = answer("list", local.uri)["checkpoints"][1]
    assert (row["suspected_by"], row["verified"], row["counts"]) == (["node-7"], False, True)
    assert "suspected by node-7" in checkpoints("list", local.uri).stdout
    checkpoints("verify", local.uri, "--step", "20")
    assert answer("list", local.uri)["checkpoints"][1]["verified"]


def test_verify_of_one_step_reads_only_that(local: Store) -> None:
    spoil(local, 20)
    assert answer("verify", local.uri, "--step", "30")["checkpoints"] == [
        {"generation": 1, "step": 30, "bytes": 8000, "error": None}
    ]
    assert verified_in(local) == {ref(30)}
    refused("--step 25: must be the step of a checkpoint that counts: 10, 20, 30", "verify", local.uri, "--step", "25")


def test_prune_keeps_the_newest_verified_ones(local: Store) -> None:
    assert answer("prune", local.uri, "--keep-last", "1")["commits"] == []  # none was read back
    verify_commit(local, ref(20))
    dry = answer("prune", local.uri, "--keep-last", "1", "--dry-run")
    assert (dry["commits"], dry["dry_run"], steps(local)) == ([{"generation": 1, "step": 10}], True, [10, 20, 30])
    done = checkpoints("prune", local.uri, "--keep-last", "1")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "step 10 of generation 1"
    assert done.stdout.splitlines()[1].startswith("1 checkpoint, 0 unfinished saves, ")
    assert steps(local) == [20, 30]


def test_prune_keeps_what_the_job_was_configured_to_keep(local: Store) -> None:
    local.create("configs/h.json", b'{"checkpoint": {"retention": {"keep_last": 2, "keep_every_steps": null}}}')
    form_generation(local, formation="f", nodes=1, world_size=1, config_hash="h", rendezvous="")
    checkpoints("verify", local.uri)
    assert [found["step"] for found in answer("prune", local.uri, "--dry-run")["commits"]] == [10]
    assert answer("prune", local.uri, "--dry-run", "--keep-every", "10")["commits"] == []
    assert [found["step"] for found in answer("prune", local.uri, "--keep-last", "1")["commits"]] == [10, 20]


def test_prune_must_be_told_what_to_keep_where_nothing_else_tells(local: Store) -> None:
    line = f"--keep-last: required: nothing at {local.uri} says how many to keep"
    refused(line, "prune", local.uri, "--keep-every", "10")
    assert steps(local) == [10, 20, 30]


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--root", "TIER"]], ids=["plainly", "dry run", "as its root"])
def test_prune_of_a_further_tier_needs_the_root(tmp_path: Path, options: list[str]) -> None:
    root, tier = open_store(str(tmp_path / "root")), open_store(str(tmp_path / "tier"))
    with_checkpoints(root, tier)
    checkpoints("copy", root.uri, tier.uri)
    checkpoints("verify", tier.uri)
    rewind(root, 10)  # of which the tier does not know: there, 10 is of no use any more
    options = [option.replace("TIER", tier.uri) for option in options]
    with LiveMarker(root, "blue", "TrainFlow/1"):
        refused(
            f"--root: required, and must be the job's first tier; {tier.uri} is a further one, which does not "
            "record whether the job is running, nor every rewind",
            *("prune", tier.uri, "--keep-last", "1", *options),
        )
        live = checkpoints("prune", tier.uri, "--keep-last", "1", "--root", root.uri)
    assert (live.exit_code, "run TrainFlow/1 on " in live.stderr) == (2, True)
    assert steps(tier) == [10, 20, 30]
    assert answer("prune", tier.uri, "--root", root.uri, "--keep-last", "1")["commits"] == []
    assert answer("prune", root.uri, "--dry-run", "--keep-last", "1")["commits"] == []


def test_copy_copies_what_counts_once(job: Store, tmp_path: Path) -> None:
    job.create(RECORD, b"{}")
    target = open_store(str(tmp_path / "copy"))
    first, second = checkpoints("copy", job.uri, target.uri), checkpoints("copy", job.uri, target.uri)
    assert first.stdout.splitlines()[0] == "step 30 of generation 1: 8.00 kB copied"
    assert second.stdout.splitlines()[0] == "step 30 of generation 1: is there"
    for step in (10, 20, 30):
        assert restored(target, ref(step)) == [STATE.data(writer, step) for writer in range(2)]
    assert target.read(RECORD) == b"{}"


def test_copy_copies_the_good_ones_and_tells_of_the_damaged_one(local: Store, tmp_path: Path) -> None:
    spoil(local, 20)
    told = answer("copy", local.uri, tmp_path / "copy", exit_code=1)
    assert [(row["step"], row["bytes"], row["error"] is None) for row in told["checkpoints"]] == [
        (30, 8000, True),
        (20, 0, False),
        (10, 8000, True),
    ]
    assert steps(open_store(str(tmp_path / "copy"))) == [10, 30]


def test_a_job_that_runs_is_neither_pruned_nor_copied_onto(local: Store, tmp_path: Path) -> None:
    target = open_store(str(tmp_path / "target"))
    for store, words in ((local, ["prune", local.uri]), (target, ["copy", local.uri, target.uri])):
        with LiveMarker(store, "blue", "TrainFlow/1"):
            done = checkpoints(*words)
        assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
        assert "run TrainFlow/1 on " in done.stderr
    assert target.sizes("commits/") == {}


def test_copy_onto_another_job_is_refused(local: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "red"))
    local.create(RECORD, b"blue")
    other.create(RECORD, b"red")
    done = checkpoints("copy", local.uri, other.uri)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.endswith("it holds another job\n")


def test_copy_onto_a_copy_that_went_on_by_itself_is_refused_in_one_line(local: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    checkpoints("copy", local.uri, other.uri)
    for store in (local, other):
        form(store)
    STATE.save(local, 40, generation=2)
    done = checkpoints("copy", local.uri, other.uri)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"convoy: {other.uri}/generations/000002.json: differs from {local.uri}/generations/")
    assert steps(other) == [10, 20, 30]


@pytest.fixture
def elsewhere(s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URI on an S3-compatible store of which the environment does not tell."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return s3_uri


def test_each_command_reaches_the_endpoint_that_it_is_given(elsewhere: str, s3_endpoint: str, tmp_path: Path) -> None:
    with_checkpoints(open_store(elsewhere, StoreConfig(endpoint_url=s3_endpoint)))
    at = ("--endpoint-url", s3_endpoint)
    assert len(answer("list", elsewhere, *at)["checkpoints"]) == 3
    assert len(answer("verify", elsewhere, *at)["checkpoints"]) == 3
    assert len(answer("copy", elsewhere, tmp_path / "copy", *at)["checkpoints"]) == 3
    assert len(answer("prune", elsewhere, "--keep-last", "1", *at)["commits"]) == 2


def test_an_endpoint_that_is_no_url_is_refused_in_one_line(elsewhere: str) -> None:
    line = "--endpoint-url s3.example.com: must be a URL, such as https://s3.example.com"
    refused(line, "list", elsewhere, "--endpoint-url", "s3.example.com")


def test_copies_are_put_where_and_as_the_job_was_configured(
    local: Store, elsewhere: str, s3_endpoint: str, s3_client: S3Client
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/some-key"
    how = {"endpoint_url": s3_endpoint, "sse_kms_key_id": key, "storage_class": "STANDARD_IA"}
    local.create("configs/h.json", json.dumps({"checkpoint": {"store": how}}).encode())
    form_generation(local, formation="f", nodes=1, world_size=1, config_hash="h", rendezvous="")

    answer("copy", local.uri, elsewhere)

    bucket, _, prefix = elsewhere.removeprefix("s3://").partition("/")
    found = s3_client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    heads = {item["Key"]: s3_client.head_object(Bucket=bucket, Key=item["Key"]) for item in found}
    assert {head.get("SSEKMSKeyId") for head in heads.values()} == {key}
    kept = {name: head.get("StorageClass", "STANDARD") for name, head in heads.items()}
    assert {kept[name] for name in kept if name.endswith(".bin")} == {"STANDARD_IA"}
    assert {kept[name] for name in kept if "/commits/" in name} == {"STANDARD"}
