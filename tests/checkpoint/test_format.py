"""What a commit says is what was written, or it is not read at all."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.format import (
    CHUNK_BYTES,
    FILE_BYTES,
    Commit,
    DamagedCommitError,
    Digest,
    Progress,
    SamplerPosition,
    TensorInfo,
    file_name,
    parsed,
    part_name,
    sealed,
    shards_prefix,
)
from convoy.config.errors import ConfigError
from convoy.config.json_text import canonical_json
from convoy.job.lineage import CommitRef
from tests.campaign import examples

pytestmark = pytest.mark.campaign

COMMIT = Commit(
    job="job",
    generation=3,
    step=1200,
    attempt="s-0001",
    parent=CommitRef(generation=2, step=1000),
    world_size=2,
    mesh={"shard": 2},
    parts={part_name(0): Digest(bytes=100, crc32c=17), part_name(1): Digest(bytes=99, crc32c=18)},
    files={file_name(0, 0): Digest(bytes=CHUNK_BYTES + 1, crc32c=1), file_name(1, 0): Digest(bytes=7, crc32c=2)},
    tensors={"model.w": TensorInfo(dtype="float32", shape=[2, 3])},
    progress=Progress(step=1200, tokens=10**12, seconds=0.1 + 0.2),
    sampler=SamplerPosition(seed=1, next_sample=4800),
    rng={"model": "keyed", "seed": 1},
    fingerprint="f",
    data_id="d",
    config_hash="c",
    versions={"torch": "2.13.0"},
    created=1763716000.1234567,
)
RAW = sealed(COMMIT)


def again_sealed(**changed: object) -> bytes:
    """The commit's object with other fields, and the checksum that belongs to them."""
    content = json.loads(RAW) | changed
    del content["checksum"]
    return json.dumps(content | {"checksum": hashlib.sha256(canonical_json(content).encode()).hexdigest()}).encode()


def test_a_sealed_commit_is_read_as_it_was() -> None:
    commit = parsed(RAW, "it")
    assert commit.model_copy(update={"checksum": ""}) == COMMIT
    assert sealed(commit) == RAW


def test_a_commit_knows_its_name_its_shards_and_its_bytes() -> None:
    assert COMMIT.ref.name == "commits/000003-000001200.json"
    assert COMMIT.shards == shards_prefix(3, 1200, "s-0001") == "shards/000003-000001200/s-0001/"
    assert COMMIT.bytes == CHUNK_BYTES + 8


def test_a_file_of_the_greatest_length_is_within_s3_s_ten_thousand_parts() -> None:
    assert FILE_BYTES // CHUNK_BYTES <= 10_000


@examples(300)
@given(st.integers(0, len(RAW) * 8 - 1))
def test_any_flipped_bit_is_damage(bit: int) -> None:
    changed = bytearray(RAW)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedCommitError, match="it: "):
        parsed(bytes(changed), "it")


@examples(100)
@given(st.integers(0, len(RAW) - 1))
def test_a_cut_commit_is_damage(length: int) -> None:
    with pytest.raises(DamagedCommitError):
        parsed(RAW[:length], "it")


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{}", b'"text"', b"\xff\xfe", b'{"format": 2}'])
def test_what_is_no_commit_is_damage(raw: bytes) -> None:
    with pytest.raises(DamagedCommitError, match=f"it: {len(raw)} bytes that are not a commit"):
        parsed(raw, "it")


@pytest.mark.parametrize("field", ["generation", "step", "attempt", "parts", "files", "sampler", "created"])
def test_a_commit_whose_content_was_edited_is_damage(field: str) -> None:
    content = json.loads(RAW)
    content[field] = None
    with pytest.raises(DamagedCommitError, match="does not match its content"):
        parsed(json.dumps(content).encode(), "it")


def test_a_commit_with_a_field_too_many_is_damage() -> None:
    with pytest.raises(DamagedCommitError, match="does not match its content"):
        parsed(json.dumps(json.loads(RAW) | {"more": 1}).encode(), "it")


def test_a_newer_format_is_refused_with_one_line_and_is_no_damage() -> None:
    with pytest.raises(ConfigError, match=r"^commit = it: has format 3; this version of Convoy reads format 2$"):
        parsed(again_sealed(format=3, files="in a way that this version does not know"), "it")


def test_the_first_format_is_refused_with_one_line_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"^commit = it: has format 1, of Convoy 0\.1, .*name a new job$"):
        parsed(again_sealed(format=1, parameters={"w": [2]}), "it")
