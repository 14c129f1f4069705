"""A commit as a Hugging Face folder: the same logits there."""

from pathlib import Path

import pytest
import torch

from convoy.checkpoint.format import DamagedCommitError
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.job.events.registry import ExportFailed
from convoy.job.lineage import CommitRef
from convoy.job.record import MODEL_MARKER, is_exported, model_prefix
from convoy.model.transformer import Transformer
from convoy.training.export import export_commit, export_to_folder, is_exportable, read_commit_weights
from tests.model.models import theirs
from tests.training.job import GPT, LLAMA, Job, tiny

SHAPES = {"gpt": GPT, "llama": LLAMA}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Trained on two ranks, with commits at 3 and 6, and exported at the end."""
    made = {}
    for name, shape in SHAPES.items():
        config = tiny(model=shape, train={"steps": 6}, checkpoint={"every_steps": 3, "export_model": True})
        made[name] = Job(str(tmp_path_factory.mktemp(name)), config)
        made[name].run(2)
    return made


def logits(job: Job, step: int, tokens_bs: torch.Tensor) -> torch.Tensor:
    """Of our model with a commit's weights."""
    config = job.config.model
    assert isinstance(config, TransformerConfig)
    model = Transformer(config).eval()
    model.load_state_dict(read_commit_weights([job.store], CommitRef(generation=1, step=step), config))
    with torch.no_grad():
        found: torch.Tensor = model(tokens_bs)
    return found


def their_logits(folder: Path, tokens_bs: torch.Tensor) -> torch.Tensor:
    model = theirs(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found: torch.Tensor = model(tokens_bs).logits
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHAPES)
def test_transformers_computes_the_same_from_the_exported_folder(name: str, jobs: dict[str, Job]) -> None:
    job = jobs[name]
    tokens_bs = torch.randint(257, (2, 13), generator=torch.Generator().manual_seed(1))

    folder = Path(job.store.uri) / "model" / "000001-000000006"

    assert torch.allclose(their_logits(folder, tokens_bs), logits(job, 6, tokens_bs), atol=1e-4)


def test_an_older_commit_is_exported_by_its_step(jobs: dict[str, Job], tmp_path: Path) -> None:
    job = jobs["gpt"]
    tokens_bs = torch.arange(10).unsqueeze(0)

    ref = export_to_folder(job.root, job.name, job.config.model_dump(mode="json"), tmp_path / "out", step=5)

    assert ref == CommitRef(generation=1, step=3)
    assert torch.allclose(their_logits(tmp_path / "out", tokens_bs), logits(job, 3, tokens_bs), atol=1e-4)
    assert not torch.allclose(logits(job, 3, tokens_bs), logits(job, 6, tokens_bs), atol=1e-4)


def test_what_cannot_be_exported_is_refused_in_one_line(jobs: dict[str, Job], tmp_path: Path) -> None:
    job, plain = jobs["gpt"], jobs["gpt"].config.model_dump(mode="json")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    with pytest.raises(ConfigError, match="no checkpoint at or below step 2"):
        export_to_folder(job.root, job.name, plain, tmp_path / "out", step=2)
    with pytest.raises(ConfigError, match="no checkpoint"):
        export_to_folder(job.root, "no-job", plain, tmp_path / "out", step=None)
    with pytest.raises(ConfigError, match="must be empty or absent"):
        export_to_folder(job.root, job.name, plain, tmp_path / "full", step=None)


def test_only_shapes_that_transformers_knows_are_exportable(jobs: dict[str, Job], tmp_path: Path) -> None:
    custom = CustomModelConfig(build="a:b", vocab_size=5, max_sequence_length=9)
    assert is_exportable(TransformerConfig())
    assert not is_exportable(custom)
    assert not is_exportable(TransformerConfig(norm="rmsnorm"))
    with pytest.raises(ConfigError, match=r"model\.build = a:b: a custom model has no Hugging Face form"):
        export_commit([jobs["gpt"].store], CommitRef(generation=1, step=6), custom, tmp_path, None, None)


def test_a_damaged_commit_is_not_exported(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 2}))
    job.run(1)
    store = job.store
    name = next(n for n in store.sizes(job.commit().prefix) if n.endswith(".bin"))
    store.write(name, store.read(name)[:-1])

    with pytest.raises(DamagedCommitError):
        export_to_folder(job.root, job.name, job.config.model_dump(mode="json"), tmp_path / "out", step=None)


def test_failing_to_export_fails_nothing(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 2}, checkpoint={"export_model": True}))
    Path(job.store.uri).mkdir()
    (Path(job.store.uri) / "model").write_text("in the way")

    assert job.run(2) == [False, False]

    assert job.steps_committed() == [2]
    assert [e.step for e in job.events(ExportFailed)] == [2]


def test_a_half_written_model_is_none_and_the_next_generation_makes_up_for_it(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 2}, checkpoint={"export_model": True}))
    job.run(1)
    ref = job.commit().ref
    assert is_exported(job.store, ref)
    job.store.delete(model_prefix(ref) + MODEL_MARKER)
    assert not is_exported(job.store, ref)

    job.run(1)  # nothing is left to train

    assert is_exported(job.store, ref)
    assert job.steps_committed() == [2]
