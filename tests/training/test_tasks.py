"""A user's own module and dataset: losses of a bare loop, exact resume, each sample once an epoch."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from convoy.data.sampler import PADDING, epochs_and_samples, plan_step
from convoy.job.events.registry import Evaluated, ModelBuilt, StepDone
from convoy.training.batch import Batch
from convoy.training.datasets import KeyedSamples, even_passes
from convoy.training.optimizer import learning_rate
from convoy.training.step import Stepper
from tests.model.user_task import Samples, classifier
from tests.ranks import RankFailedError
from tests.training.engines.test_engines import ENGINES, Name
from tests.training.faults import before_step, die_at
from tests.training.job import Fault, Job, differing, tiny

STEPS = 6

OWN = "tests.model.user_task"


Keys = dict[str, Any]


def a_job(root: Path, name: Name = "fsdp", *, model: Keys | None = None, data: Keys | None = None, **train: Any) -> Job:
    sizes = {"steps": STEPS, "global_batch": 7, "micro_batch": 2, "log_every_steps": 1, "loss_chunk_tokens": 0}
    own = {"build": OWN + ":classifier", "task": "module", "args": {"returns": "weighted"}}
    source = {"build": OWN + ":samples", "unit": "points"}
    return Job(
        str(root),
        tiny(
            model=own | (model or {}),
            data=source | (data or {}),
            train=sizes | train,
            optimizer={"lr": 2e-2},
            checkpoint={"every_steps": 2},
            engine=ENGINES[name],
        ),
    )


def plain_training(job: Job, returns: str) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step as a bare torch loop has them, in one pass over the global batch."""
    config, train = job.config, job.config.train
    torch.manual_seed(train.seed)
    module = classifier(returns)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in module.parameters() if p.ndim >= 2], "weight_decay": config.optimizer.weight_decay},
            {"params": [p for p in module.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=config.optimizer.betas,
        eps=config.optimizer.eps,
    )
    dataset, results = KeyedSamples(Samples(50), train.seed), []
    for step in range(train.steps):
        epochs, indices = epochs_and_samples(step * train.global_batch, train.global_batch, 50, train.seed)
        keys = list(zip(epochs.tolist(), indices.tolist(), strict=True))
        returned = module(**default_collate(dataset.__getitems__(keys)))
        loss = returned[0] / returned[1] if returns == "weighted" else returned
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), train.clip_norm or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, train.steps, config.optimizer, config.schedule)
        optimizer.step()
        results.append((float(loss.detach()), float(norm)))
    return results


@pytest.mark.parametrize(
    ("name", "world", "returns"),
    [
        ("fsdp", 1, "mean"),
        ("fsdp", 2, "weighted"),
        ("fsdp", 3, "dict"),
        ("accelerate", 2, "weighted"),
        ("zero1", 2, "mean"),
        ("zero2", 3, "weighted"),
        ("zero3", 2, "weighted"),
    ],
)
def test_losses_and_gradient_norms_are_those_of_a_bare_loop(
    tmp_path: Path, name: Name, world: int, returns: str
) -> None:
    job = a_job(tmp_path, name, model={"args": {"returns": returns}}, clip_norm=0.3)
    assert job.run(world) == [False] * world
    found = [(each.loss, each.grad_norm) for each in job.events(StepDone)]
    expected = plain_training(job, "mean" if returns == "dict" else returns)
    assert len(found) == STEPS
    for (loss, norm), (plain_loss, plain_norm) in zip(found, expected, strict=True):
        assert loss == pytest.approx(plain_loss, rel=2e-6)
        assert norm == pytest.approx(plain_norm, rel=2e-5)


def test_what_is_counted_and_evaluated_are_the_users_samples(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.run(2)
    assert {each.tokens for each in job.events(StepDone)} == {7}
    before, after = job.events(Evaluated)
    assert (before.tokens, before.bits_per_byte) == (5, None)
    assert after.loss < before.loss
    (built,) = job.events(ModelBuilt)
    assert built.unit == "points"
    products = 8 * 12 + 12 * 12 + 12 * 3
    # Forward and twice as much backward, but that no gradient of the first layer's input is computed.
    assert built.flops_per_token == 2 * (3 * products - 8 * 12)


def test_a_dataset_with_nothing_held_out_is_not_evaluated(tmp_path: Path) -> None:
    job = a_job(tmp_path, data={"args": {"held_out": 0}})
    assert job.run(1) == [False]
    assert job.events(Evaluated) == []


@pytest.mark.parametrize("name", ["fsdp", "accelerate", "zero2"])
def test_a_module_with_batch_normalisation_that_is_killed_resumes_to_the_bit(tmp_path: Path, name: Name) -> None:
    model = {"args": {"returns": "mean", "norm": True}}
    train = {"global_batch": 9, "micro_batch": 3}
    whole, cut = (a_job(tmp_path / each, name, model=model, data={"workers": 1}, **train) for each in ("whole", "cut"))
    whole.run(2)
    cut.run(2, die_at(3, ranks=[0, 1]), may_die=True)
    cut.run(2)
    assert len(cut.events(StepDone)) > STEPS
    assert "model.module.layers.0.1.running_mean" in whole.state()
    assert differing(whole.state(), cut.state()) == []


@pytest.mark.parametrize("name", ["fsdp", "accelerate", "zero2"])
def test_batch_normalisation_trains_in_bf16_and_keeps_its_statistics_in_fp32(tmp_path: Path, name: Name) -> None:
    model = {"args": {"returns": "mean", "norm": True}}
    job = a_job(tmp_path, name, model=model, param_dtype="bf16", global_batch=8)
    assert job.run(2) == [False, False]
    assert job.state()["model.module.layers.0.1.running_mean"].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_engines_save_frozen_weights_and_replaced_buffers_for_each_other_and_key_all_randomness(
    tmp_path: Path, dtype: str
) -> None:
    model = {"build": OWN + ":counting", "args": {}}
    whole, cut = (a_job(tmp_path / each, model=model, param_dtype=dtype) for each in ("whole", "cut"))
    whole.run(2)
    name = "model.module.layers.0.0.weight"
    assert whole.state()[name].dtype == torch.float32
    partitioned = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    engines = [{"name": "deepspeed", "settings": partitioned}, *(ENGINES[each] for each in ("zero1", "fsdp", "zero3"))]
    for leg, engine in enumerate(engines, 1):
        cut.run(2, engine=engine, train={"steps": leg + 2}, schedule={"decay_steps": STEPS})
        assert torch.equal(cut.state()[name], whole.state()[name])
    rounding = 2e-6 if dtype == "fp32" else 1e-2
    assert cut.losses() == pytest.approx(whole.losses(), rel=rounding)
    assert torch.equal(cut.state()["model.module.seen"], whole.state()["model.module.seen"])


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [("fsdp", "fsdp"), ("fsdp", "ddp"), ("accelerate", "fsdp"), ("zero1", "fsdp"), ("zero3", "fsdp")],
)
def test_a_step_without_any_weight_applies_no_gradient(tmp_path: Path, engine: Name, strategy: str) -> None:
    model, data = {"args": {"returns": "masked"}}, {"args": {"held_out": 0}}
    job = a_job(tmp_path, engine, model=model, data=data, global_batch=4, micro_batch=4, clip_norm=0.1)
    assert job.run(1, parallel={"strategy": strategy}) == [False]
    losses = job.losses()
    assert (losses.count(0.0), len(losses)) == (1, STEPS)


def test_a_users_function_may_wait_for_all_ranks(tmp_path: Path) -> None:
    job = a_job(tmp_path, model={"build": OWN + ":classifier_after_all_ranks", "args": {}})
    assert job.run(2) == [False, False]
    (built,) = job.events(ModelBuilt)
    assert built.flops_per_token


def test_ddp_refuses_a_step_that_leaves_a_parameter_out(tmp_path: Path) -> None:
    own = {"build": OWN + ":conditional", "args": {}}
    job = a_job(tmp_path, model=own, data={"args": {"held_out": 0}}, micro_batch=7)
    with pytest.raises(RankFailedError, match=r"strategy = ddp: .*extra\.\w+ has no gradient in this step; fsdp"):
        job.run(1, parallel={"strategy": "ddp"})


def test_a_buffer_that_a_forward_makes_is_refused(tmp_path: Path) -> None:
    job = a_job(tmp_path, model={"build": OWN + ":late", "args": {}})
    with pytest.raises(RankFailedError, match="late: buffer late was None, and is a tensor after a forward"):
        job.run(1)


def note_indices(folder: Path) -> Fault:
    """Each rank notes in `folder/<step>-<rank>` the samples of weight that it takes."""

    def fault(rank: int) -> None:
        def note(_: Stepper, step: int, batches: Sequence[Batch]) -> None:
            taken = [int(i) for batch in batches for i in batch.inputs[0]["index"][: batch.weight]]
            (folder / f"{step}-{rank}").write_text(" ".join(map(str, taken)))

        folder.mkdir(exist_ok=True)
        before_step(note)

    return fault


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.sampled(2)]) for seed in (1, 2))]
)
def test_each_sample_is_used_once_an_epoch_whatever_is_killed_on_any_number_of_ranks(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    size, batch, epochs = draw.randint(9, 15), draw.randint(4, 7), 2
    steps = -(-epochs * size // batch)
    data = {"args": {"size": size}, "workers": draw.randint(0, 2)}
    job = a_job(tmp_path / "job", data=data, steps=steps, global_batch=batch, micro_batch=draw.randint(1, 3))
    done = 0
    while done < steps:
        world, until = draw.randint(1, 4), draw.randint(done + 1, steps)
        folder = tmp_path / "noted"
        for old in folder.glob("*"):  # of steps that are taken again, perhaps by fewer ranks
            if int(old.name.partition("-")[0]) >= done:
                old.unlink()
        noted, dying = note_indices(folder), die_at(until, ranks=list(range(world)))
        job.run(world, lambda rank: (noted(rank), dying(rank)), may_die=True, prompt=False)  # noqa: B023
        done = max(job.steps_committed(), default=0)
    taken = [
        (step, int(index))
        for step in range(steps)
        for file in folder.glob(f"{step}-*")
        for index in file.read_text().split()
    ]
    order = [index for _, index in taken]
    assert len(order) == steps * batch
    counts = Counter(order)
    assert set(counts) == set(range(size))
    whole_epochs = steps * batch // size
    assert set(counts.values()) <= {whole_epochs, whole_epochs + 1}


def test_a_ranks_samples_are_spread_evenly_over_its_passes() -> None:
    plan = plan_step(0, 1, 2, 9, 3, 50, seed=0)
    assert [micro.samples.tolist().count(PADDING) for micro in plan] == [0, 2]
    first, second = even_passes(plan)
    assert (first.rows, second.rows) == (2, 2)
    keys = [(e, s) for m in plan for e, s in zip(m.epochs.tolist(), m.samples.tolist(), strict=True) if s != PADDING]
    assert first.keys + second.keys == keys


def test_a_pass_without_samples_repeats_one_of_no_weight() -> None:
    only = even_passes(plan_step(0, 6, 7, 8, 1, 50, seed=0))
    assert [(each.rows, len(each.keys)) for each in only] == [(1, 1), (0, 1)]
    assert only[0].keys == only[1].keys


@pytest.mark.processes
def test_a_samples_randomness_does_not_depend_on_who_reads_it_and_differs_by_epoch() -> None:
    keyed = KeyedSamples(Samples(20), 3)
    keys = [(epoch, index) for epoch in (0, 1) for index in (4, 9, 2)]
    here = keyed.__getitems__(keys)
    loader = DataLoader(keyed, batch_sampler=[[key] for key in reversed(keys)], num_workers=2)
    elsewhere = list(loader)[::-1]
    for one, other in zip(here, elsewhere, strict=True):
        assert torch.equal(one["points"], other["points"][0])
    assert not torch.equal(here[0]["points"], here[3]["points"])


def test_a_dataset_of_another_size_is_refused_when_a_job_continues(tmp_path: Path) -> None:
    def build_smaller(_: int) -> None:
        import tests.model.user_task as own

        own.samples = lambda split: Samples(49)  # type: ignore[assignment]

    job = a_job(tmp_path)
    job.run(1, train={"steps": 2})
    with pytest.raises(RankFailedError, match=r"ConfigError: data: its fingerprint is \w+-49, the job .* \w+-50"):
        job.run(1, build_smaller)


BAD: dict[str, tuple[Keys, Keys, str]] = {
    "no loss": (
        {"args": {"returns": "logits"}},
        {},
        r"model.build = .*:classifier: the module's forward returned a tensor of shape \(2, 3\): must return the mean",
    ),
    "no gradient": ({"args": {"returns": "detached"}}, {}, "the loss of the module's forward has no gradient"),
    "no length": (
        {},
        {"build": OWN + ":without_length"},
        "returned a _NoLength for train without __len__",
    ),
    "another name": ({}, {"args": {"name": "digits"}}, "data.args = .'name': 'digits'.: .*:samples does not take"),
    "nothing": ({}, {"build": OWN + ":nothing"}, "returned None for train: must be a Dataset"),
    "empty": ({}, {"args": {"size": 0}}, "returned no samples for train"),
    "other arguments": (
        {},
        {"args": {"sizes": 3}},
        "data.args = .'sizes': 3.: .*:samples does not take",
    ),
    "no tensors": (
        {},
        {"collate": OWN + ":names"},
        "data.collate = .*:names: returned a dict",
    ),
    "other parts of a batch": (
        {"build": OWN + ":of_images", "args": {}},
        {},
        r"the module's forward takes \(images\), and a batch has points, label, weight, index: missing a required",
    ),
    "other sizes": (
        {},
        {"build": OWN + ":other_samples_on_rank_1"},
        "returned 50 samples to train on and 50 held out on rank 0, and 51 samples and 51 on rank 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_trained_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    model, data, message = BAD[case]
    job = a_job(tmp_path, model=model, data=data)
    with pytest.raises(RankFailedError, match=f"ConfigError: .*{message}"):
        job.run(2 if case == "other sizes" else 1)
