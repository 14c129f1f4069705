"""docs/reference/checkpoint-format.md is true: Convoy reads its writer's checkpoints, and its reader reads Convoy's."""

import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from convoy.checkpoint import Checkpoints
from convoy.checkpoint.commits import read_commit, read_part
from convoy.checkpoint.format import Commit, PartRecord, TensorShard
from convoy.job.generations import rewind
from convoy.storage import open_store
from tests.checkpoint.torchless import TinyState, form, newest, part_bytes

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
