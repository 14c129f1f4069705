"""Every way to get a configuration wrong, and the one line that says so."""

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.job.record import check_name

KINDS = "stdlib, files, hf, shards, synthetic"
CUSTOM = "model.build=pkg.mod:build model.vocab_size=5000 model.max_sequence_length=512"

COMPLAINTS = {
    # unknown keys
    "train.stepz=5": "train.stepz = 5: unknown key; did you mean train.steps?",
    "trian.steps=5": 'trian = {"steps": 5}: unknown key; did you mean train?',
    "steps=5": "steps = 5: unknown key; did you mean train.steps?",
    "stepz=5": "stepz = 5: unknown key; did you mean train.steps?",
    "train.lr=1": "train.lr = 1: unknown key; did you mean optimizer.lr?",
    "train.every_steps=1": (
        "train.every_steps = 1: unknown key; did you mean evaluation.every_steps or checkpoint.every_steps?"
    ),
    "report.xyzzy=1": "report.xyzzy = 1: unknown key; known: card_refresh_seconds",
    "data.corpus.path=/x": ("data.corpus.path = /x: unknown key; a key of files, hf, shards, not of stdlib"),
    "data.corpus.kind=hf data.corpus.pth=/x": (
        "data.corpus.pth = /x: unknown key; did you mean data.corpus.path? (and 1 more)"
    ),
    f"{CUSTOM} model.n_layers=3": "model.n_layers = 3: unknown key; a key of transformer, not of custom",
    # types
    "train.steps=many": "train.steps = many: must be an integer",
    "train.steps=1.5": "train.steps = 1.5: must be an integer",
    "train.steps=": "train.steps = null: must be an integer",
    "train.steps.x=5": 'train.steps = {"x": 5}: must be an integer',
    "optimizer.lr=fast": "optimizer.lr = fast: must be a number",
    "train.compile=maybe": "train.compile = maybe: must be true or false",
    "root=5": "root = 5: must be text; put it in quotes",
    "train=5": "train = 5: must be a mapping of keys to values",
    "data.corpus=5": "data.corpus = 5: must be a mapping of keys to values",
    "cluster.node_selector=5": "cluster.node_selector = 5: must be a mapping of keys to values",
    "cluster.node_selector.zone=1": "cluster.node_selector.zone = 1: must be text; put it in quotes",
    "cluster.tolerations='[{key: 5}]'": "cluster.tolerations.0.key = 5: must be text; put it in quotes",
    "evaluation.prompts=5": "evaluation.prompts = 5: must be a list",
    "evaluation.prompts=[a,5]": "evaluation.prompts.1 = 5: must be text; put it in quotes",
    "optimizer.betas=[0.9,a]": "optimizer.betas.1 = a: must be a number",
    "optimizer.betas=[0.9,0.9,0.9]": "optimizer.betas = [0.9, 0.9, 0.9]: must be a list of 2, not 3",
    "optimizer.betas=[0.9]": "optimizer.betas.1: required, but missing",
    # ranges
    "train.steps=0": "train.steps = 0: must be at least 1",
    "cluster.retries=9": "cluster.retries = 9: must be at most 4",
    "optimizer.lr=0": "optimizer.lr = 0: must be more than 0",
    "data.validation_fraction=1.5": "data.validation_fraction = 1.5: must be below 1",
    "model.d_model=4": "model.d_model = 4: must be at least 8",
    "data.tokenizer.vocab_size=100": "data.tokenizer.vocab_size = 100: must be at least 257",
    # choices
    "train.param_dtype=fp16": "train.param_dtype = fp16: must be one of auto, bf16, fp32; did you mean bf16?",
    "cluster.backend=slurm": "cluster.backend = slurm: must be one of local, batch, kubernetes",
    "schedule.kind=cosin": "schedule.kind = cosin: must be one of cosine, linear, constant; did you mean cosine?",
    "data.corpus.kind=filez": f"data.corpus.kind = filez: must be one of {KINDS}; did you mean files?",
    "data.corpus.kind=5": f"data.corpus.kind = 5: must be one of {KINDS}",
    "data.tokenizer.kind=bytez": ("data.tokenizer.kind = bytez: must be one of bpe, bytes, file; did you mean bytes?"),
    # what is missing
    "data.corpus.kind=files": "data.corpus.path: required, but missing",
    "data.corpus.kind=files data.corpus.path=gs://b/c": (
        "data.corpus.path = gs://b/c: not read from gs://; must be a local path, or of kind files on s3://"
    ),
    "model.build=pkg.mod:build": "model.vocab_size: required, but missing",
    "model.build=pkg.mod:build model.task=module": (
        "model.task = module: needs data.build, which gives the batches that the module takes"
    ),
    "data.build=pkg.mod:data": "data.build = pkg.mod:data: needs model.build with model.task: module",
    "model.build=pkg.mod:build model.task=module data.build=pkg.mod:data model.vocab_size=3": (
        "model.vocab_size = 3: only with task: tokens"
    ),
    "model.build=pkg.mod:build model.task=module data.build=pkg.mod:data data.packing=false": (
        "data.packing: not with build = pkg.mod:data, which gives the samples themselves"
    ),
    "data.unit=images": "data.unit = images: only with build",
    "model.build=pkg.mod:build model.vocab_size=300": "model.max_sequence_length: required, but missing",
    "model.build=nothing model.vocab_size=5000 model.max_sequence_length=256": (
        "model.build = nothing: must have the form package.module:function"
    ),
    # several at once
    "train.steps=0 train.seed=-1 optimizer.lr=x": "train.steps = 0: must be at least 1 (and 2 more)",
    # fields that must agree
    "model.n_heads=5": "model.n_heads = 5: must divide d_model, 192",
    "model.n_kv_heads=2": "model.n_kv_heads = 2: must divide n_heads, 3",
    "model.positions=rotary model.n_heads=64": "model.n_heads = 64: rotary positions need an even d_model / n_heads",
    "optimizer.betas=[0.9,1.5]": "optimizer.betas = [0.9, 1.5]: each must be at least 0 and below 1",
    "parallel.shard_size=4": "parallel.shard_size = 4: only with strategy: hsdp, not fsdp",
    "data.respect_documents=true data.corpus.kind=synthetic": (
        "data.respect_documents = true: the synthetic corpus names no eos_id"
    ),
    "data.corpus.kind=shards data.corpus.path=x data.corpus.vocab_size=50 data.corpus.eos_id=50": (
        "data.corpus.eos_id = 50: must be below vocab_size, 50"
    ),
    "data.packing=false data.corpus.kind=synthetic": "data.packing = false: the synthetic corpus names no eos_id",
    "data.packing=false data.respect_documents=true": (
        "data.respect_documents = true: without packing no sequence has more than one document"
    ),
    "parallel.wrap=linear train.activation_checkpointing=selective": (
        "parallel.wrap = linear: not with train.activation_checkpointing: selective; full works"
    ),
    "data.sequence_length=512": "data.sequence_length = 512: must be at most model.max_sequence_length, 256",
    "model.vocab_size=512": "model.vocab_size = 512: must be at least the tokenizer's vocabulary, 4096",
    # overrides that are none
    "train.steps": (
        "override 'train.steps': must have the form key=value, e.g. train.steps=200; quote values with spaces"
    ),
    "train..steps=5": (
        "override 'train..steps=5': must have the form key=value, e.g. train.steps=200; quote values with spaces"
    ),
    "=5": "override '=5': must have the form key=value, e.g. train.steps=200; quote values with spaces",
    "train.steps=[1": (
        "train.steps = [1: must be a YAML value (line 1, column 3: expected ',' or ']', but got '<stream end>'); "
        "quote text with special signs"
    ),
    "model.name='it": 'overrides "model.name=\'it": no closing quotation',
    "budget.max_hours=1:30": "budget.max_hours = 1:30: must be a number",
    "train.global_batch=2000000": "train.global_batch = 2000000: must be at most 1048576",
    f"model.n_layers={'9' * 400}": f"model.n_layers = {'9' * 57}...: must be at most 9223372036854775807",
    "cluster.price.usd_per_hour=1e308 cluster.price.date=2026-11-01": (
        "cluster.price.usd_per_hour = 1e+308: must be at most 1000000"
    ),
}


@pytest.mark.parametrize(("overrides", "line"), COMPLAINTS.items())
def test_a_bad_override_is_told_in_one_line(overrides: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, read_overrides(overrides))
    assert str(caught.value) == line


FILES = {
    "train: {steps: 0}": "train.steps = 0: must be at least 1",
    "trane: {steps: 1}": 'trane = {"steps": 1}: unknown key; did you mean train?',
    "train:": "train = null: must be a mapping of keys to values",
    "model: [tiny]": 'model = ["tiny"]: must be a mapping of keys to values',
    "1: x": "1 = 1: must be named by text; put the key in quotes",
    "- a": 'the configuration must be a mapping of keys to values, not: ["a"]',
    "just text": "the configuration must be a mapping of keys to values, not: just text",
    "a: [1": "the configuration is not YAML: line 1, column 6: expected ',' or ']', but got '<stream end>'",
    "train:\n  steps: 5\n   seed: 1": (
        "the configuration is not YAML: line 3, column 8: mapping values are not allowed here"
    ),
    "train: {steps: 5}\ntrain: {seed: 1}": (
        "the configuration is not YAML: line 2, column 1: the key 'train' appears twice"
    ),
    "a: *nope": "the configuration is not YAML: line 1, column 4: found undefined alias 'nope'",
    "a: &x [*x]": "the configuration is not YAML: Circular reference detected",
    "? [a]\n: 5": "the configuration is not YAML: line 1, column 3: found unhashable key",
}


@pytest.mark.parametrize(("text", "line"), FILES.items())
def test_a_bad_file_is_told_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(read_run(text), {})
    assert str(caught.value) == line


def test_a_file_that_would_run_code_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"line 1, column 7: could not determine a constructor"):
        read_run("root: !!python/object/apply:os.getcwd []")


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, {"train": {"steps": "x" * 500}})
    assert str(caught.value) == f"train.steps = {'x' * 57}...: must be an integer"


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028", "\x1b[2J"])
def test_what_would_break_the_line_is_escaped(end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_name(f"a{end}b")
    assert str(caught.value).startswith(f"job = a{end!r}b: must begin with".replace("'", ""))
    assert len(str(caught.value).splitlines()) == 1
