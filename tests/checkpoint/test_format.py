"""What a commit says is what was written, or it is not read at all; and docs/reference/checkpoint-format.md is true."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint import Checkpoints
from convoy.checkpoint.commits import read_commit, read_part
from convoy.checkpoint.format import (
    CHUNK_BYTES,
    FILE_BYTES,
    Commit,
    DamagedCommitError,
    Digest,
    PartRecord,
    Progress,
    SamplerPosition,
    TensorInfo,
    TensorShard,
    encode_commit,
    file_name,
    parse_commit,
    part_record_name,
    shards_prefix,
)
from convoy.config.errors import ConfigError
from convoy.config.json_text import canonical_json
from convoy.job.generations import rewind
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from tests.campaign import examples
from tests.checkpoint.torchless import TinyState, form, newest, part_bytes

pytestmark = pytest.mark.campaign

COMMIT = Commit(
    job="job",
    generation=3,
    step=1200,
    attempt="s-0001",
    parent=CommitRef(generation=2, step=1000),
    world_size=2,
    mesh={"shard": 2},
    parts={part_record_name(0): Digest(bytes=100, crc32c=17), part_record_name(1): Digest(bytes=99, crc32c=18)},
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
RAW = encode_commit(COMMIT)


def again_sealed(**changed: object) -> bytes:
    """The commit's object with other fields, and the checksum that belongs to them."""
    content = json.loads(RAW) | changed
    del content["checksum"]
    return json.dumps(content | {"checksum": hashlib.sha256(canonical_json(content).encode()).hexdigest()}).encode()


def test_a_sealed_commit_is_read_as_it_was() -> None:
    commit = parse_commit(RAW, "it")
    assert commit.model_copy(update={"checksum": ""}) == COMMIT
    assert encode_commit(commit) == RAW


def test_a_commit_knows_its_name_its_shards_and_its_bytes() -> None:
    assert COMMIT.ref.name == "commits/000003-000001200.json"
    assert COMMIT.prefix == shards_prefix(3, 1200, "s-0001") == "shards/000003-000001200/s-0001/"
    assert COMMIT.bytes == CHUNK_BYTES + 8


def test_a_file_of_the_greatest_length_is_within_s3_s_ten_thousand_parts() -> None:
    assert FILE_BYTES // CHUNK_BYTES <= 10_000


@examples(300)
@given(st.integers(0, len(RAW) * 8 - 1))
def test_any_flipped_bit_is_damage_unless_it_says_the_same(bit: int) -> None:
    changed = bytearray(RAW)
    changed[bit // 8] ^= 1 << bit % 8
    if json.loads(RAW) == _content(changed):  # in a digit beyond a float's precision
        assert parse_commit(bytes(changed), "it") == parse_commit(RAW, "it")
        return
    with pytest.raises(DamagedCommitError, match="it: "):
        parse_commit(bytes(changed), "it")


def _content(raw: bytearray) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return None


@examples(100)
@given(st.integers(0, len(RAW) - 1))
def test_a_cut_commit_is_damage(length: int) -> None:
    with pytest.raises(DamagedCommitError):
        parse_commit(RAW[:length], "it")


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{}", b'"text"', b"\xff\xfe", b'{"format": 2}'])
def test_what_is_no_commit_is_damage(raw: bytes) -> None:
    with pytest.raises(DamagedCommitError, match=f"it: {len(raw)} bytes that are not a commit"):
        parse_commit(raw, "it")


@pytest.mark.parametrize("field", ["generation", "step", "attempt", "parts", "files", "sampler", "created"])
def test_a_commit_whose_content_was_edited_is_damage(field: str) -> None:
    content = json.loads(RAW)
    content[field] = None
    with pytest.raises(DamagedCommitError, match="does not match its content"):
        parse_commit(json.dumps(content).encode(), "it")


def test_a_commit_with_a_field_too_many_is_damage() -> None:
    with pytest.raises(DamagedCommitError, match="does not match its content"):
        parse_commit(json.dumps(json.loads(RAW) | {"more": 1}).encode(), "it")


def test_a_newer_format_is_refused_with_one_line_and_is_no_damage() -> None:
    with pytest.raises(ConfigError, match=r"^commit = it: has format 3; this version of Convoy reads format 2$"):
        parse_commit(again_sealed(format=3, files="in a way that this version does not know"), "it")


def test_the_first_format_is_refused_with_one_line_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"^commit = it: has format 1, of Convoy 0\.1, .*name a new job$"):
        parse_commit(again_sealed(format=1, parameters={"w": [2]}), "it")


DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "checkpoint-format.md").read_text()


def block(title: str) -> str:
    match = re.search(rf'```\w+ title="{title}"\n(.*?)```', DOCUMENT, re.DOTALL)
    assert match is not None
    return match[1]


def code(title: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(block(title), names)
    return names


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A job as the document's own writer leaves it."""
    code("writer")["example"](tmp_path)
    return tmp_path


def test_convoy_reads_what_the_documents_writer_wrote(example: Path) -> None:
    store = open_store(str(example))
    ref = newest(store)
    assert ref is not None
    commit = read_commit(store, ref)
    w = numpy.arange(8, dtype="float32").tobytes()
    assert part_bytes(store, commit, 0) == w[:16] + bytes(48) + (1200).to_bytes(8, "little")
    assert part_bytes(store, commit, 1) == w[16:]
    assert [value.value for value in read_part(store, commit, 0).values] == [4800]


def test_a_training_loop_restores_what_the_documents_writer_wrote_and_goes_on(example: Path) -> None:
    state: Any = {"model": {"w": torch.zeros(4, 2)}, "optimizer": {"step": torch.tensor(0)}, "next": 0}
    with Checkpoints(str(example), verify=False) as checkpoints:
        restored = checkpoints.restore(state)
        assert restored is not None
        assert (restored.step, state["next"], int(state["optimizer"]["step"])) == (1200, 4800, 1200)
        assert state["model"]["w"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        checkpoints.save(1300, state).wait()
    reader = code("reader")
    path = reader["newest"](example)
    assert path.name == "000002-000001300.json"
    tensors, values = reader["read"](example, path)
    assert tensors["model.w"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert values == [{"name": "next", "value": 4800}]


def test_the_documents_reader_reads_what_convoy_wrote(tmp_path: Path) -> None:
    store, state, reader = open_store(str(tmp_path)), TinyState(chunk_bytes=1024), code("reader")
    first = form(store)
    state.save(store, 10, generation=first)
    state.save(store, 30, generation=first)
    rewind(store, 10)
    state.save(store, 20, generation=form(store))
    path = reader["newest"](tmp_path)
    assert path.name == "000003-000000020.json"
    tensors, values = reader["read"](tmp_path, path)
    assert tensors["w"].tobytes() == state.data(0, 20) + state.data(1, 20)
    assert values == [{"name": "step", "value": 20}]


def test_the_documents_reader_uses_no_flipped_bit(example: Path) -> None:
    reader = code("reader")
    (file,) = example.glob("shards/*/*/00001.000.bin")
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(AssertionError):
        reader["read"](example, reader["newest"](example))


def test_the_example_shows_what_its_code_writes(example: Path) -> None:
    commit = block("commit")
    assert json.loads(commit) == json.loads((example / "commits/000001-000001200.json").read_bytes())
    part = json.loads(next(example.glob("shards/*/*/part-00000.json")).read_bytes())
    assert json.loads(block("part")) == part
    for line in block("files").splitlines():
        if line.endswith(".bin"):
            (data,) = (path.read_bytes() for path in example.glob(f"shards/*/*/{line}"))
        else:
            start, _, row = line.partition("  ")
            assert data[int(start, 16) :][:16] == bytes.fromhex(row)


@pytest.mark.parametrize("model", [Commit, PartRecord, TensorShard])
def test_the_document_names_every_field(model: type[Commit] | type[PartRecord] | type[TensorShard]) -> None:
    assert [name for name in model.model_fields if f"`{name}`" not in DOCUMENT] == []
