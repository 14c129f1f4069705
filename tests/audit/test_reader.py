"""What is no file of claims is refused with one line that tells what would be right."""

from pathlib import Path

import pytest

from convoy.audit.audit import audit
from convoy.audit.claims import CheckpointClaims, Claims, CollectiveClaims, LinkClaims, RunClaims
from convoy.audit.reader import read_claims
from convoy.config.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "must be a mapping of keys to values, not: null"),
        ("- 7B", 'must be a mapping of keys to values, not: ["7B"]'),
        ("model: [7B", "is not YAML: line 1"),
        ("page: costs: a table", "needs quotes"),
        ("model: 7B\nmodel: 13B", "is given twice"),
        ("thruput: 145,267 tokens/s", "thruput = 145,267 tokens/s: unknown key; did you mean throughput?"),
        ("shares: [62 %, 38 %]", "unknown key; it is not checked any more: leave it out"),
        ("runs: [{thruput: 3}]", "runs[1].thruput = 3: unknown key; did you mean throughput?"),
        ("save_time: 3 s", "save_time = 3 s: unknown key; it is a key of checkpoints"),
        ("links: [{throughput: 3}]", "links[1].throughput = 3: unknown key; it is a key of runs, not of links"),
        ("time: 57 parsecs", "time = 57 parsecs: must be a time with its unit"),
        ("runs:\n- time: soon", "runs[1].time = soon: must begin with a number"),
        ("hours: 57\ntime: 2 d", "time = 2 d: time is given, too; one key may have a list"),
        ("gpus: 8 nodes x 8 A100", "gpus = 8 nodes x 8 A100: must be a whole number"),
        ("precision: int3", "precision = int3: must be 'bf16', 'fp16', 'fp8', 'tf32' or 'fp32'"),
        ("runs: [{id: a}, {id: b, relative_to: c}]", "runs.relative_to = c: no run has this id"),
        ("runs: [{gpus: 16,384}]", "runs[1]: a figure with a comma needs quotes within {…}: …,384"),
        ("throughput: [3,700 tokens/s]", "a figure with a comma needs quotes in a list, '3,700 tokens/s'"),
        ("compute: 1e400", "compute = 1e400: must be a number of this world"),
        ("interruptions: 3 per day", "interruptions = 3 per day: must be a whole number"),
        ("gpus: 2 x 8 A100", "gpus = 2 x 8 A100: must be a whole number"),
        ("batch_size: 512", "batch_size = 512: unknown key"),
        ("checkpoints: [{contents: everything}]", "contents = everything: must be 'weights', 'training_state'"),
        ("runs: [{id: a}, {id: a}]", "runs.id = a: is given twice"),
        ("checkpoints: [{id: a, size: 3 GB}, {id: a, size: 4 GB}]", "checkpoints.id = a: is given twice"),
    ],
)
def test_a_mistake_is_told_in_a_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_claims(text, "claims.yaml")
    told = str(caught.value)
    assert told.startswith("claims.yaml")
    assert line in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("strategy: ZeRO-3", "strategy", "zero3"),
        ("strategy: TP8 + PP12 + ZeRO-1", "strategy", "3d"),
        ("strategy: FSDP with hybrid sharding", "strategy", "hsdp"),
        ("precision: FP8 mixed precision (BF16 master)", "precision", "fp8"),
        ("recomputation: yes", "recomputation", ""),
        ("gpus: 992 80GB A100 GPUs", "gpu", "80GB A100 GPUs"),
        ("strategy: NO_SHARD", "strategy", "ddp"),
        ("strategy: SHARD_GRAD_OP", "strategy", "zero2"),
        ("gpus: 16k H100", "gpu", "H100"),
        ("instance: p5.48xlarge x 4", "instance", "p5.48xlarge"),
        ("instance: 4 p5.48xlarge instances", "instance", "p5.48xlarge"),
        ("hardware: 8x A100-80GB", "gpu", "A100-80GB"),
    ],
)
def test_words_are_read_as_the_page_writes_them(text: str, key: str, value: str) -> None:
    assert getattr(read_claims(text, "claims.yaml"), key) == value


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        ("seq_len: 2048", "sequence_length", ["2048"]),
        ("num_gpus: 64", "gpus", ["64"]),
        ("tokens_per_day: 62B", "throughput", ["62B tokens/day"]),
        ("throughput: 718k tokens/s\ntokens_per_day: 62B", "throughput", ["718k tokens/s", "62B tokens/day"]),
        ("Sequence length: 8K", "sequence_length", ["8K"]),
        ("MFU: 40 %", "mfu", ["40 %"]),
        ("tokens/s/GPU: 3,700", "throughput_per_gpu", ["3,700"]),
        ("gpus: 8 GPUs/node", "gpus_per_node", ["8 GPUs/node"]),
        ("instance: p5.48xlarge x 4", "nodes", ["4"]),
        ("instance: 4x p4d.24xlarge (8 A100 each)", "nodes", ["4"]),
        ("instance: 4 × p4d.24xlarge\nnodes: 8", "nodes", ["8", "4"]),
        ("instance: 4 × p4d.24xlarge\nnodes: 4", "nodes", ["4"]),
        ("recovered: 12/12", "interruptions", ["12"]),
        ("recovered: 12 of 14\ninterruptions: 13", "interruptions", ["13", "14"]),
    ],
)
def test_other_words_for_a_key_are_read(text: str, key: str, told: list[str]) -> None:
    assert [figure.text for figure in getattr(read_claims(text, "claims.yaml"), key)] == told


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("bf16 weights", "weights"),
        ("weights only, without optimizer", "weights"),
        ("full checkpoint with optimizer states", "training_state"),
        ("LoRA adapters", "adapters"),
    ],
)
def test_what_a_checkpoint_holds_may_be_told_in_words(text: str, contents: str) -> None:
    assert read_claims(f"checkpoints: [{{contents: '{text}'}}]", "claims.yaml").checkpoints[0].contents == contents


def test_a_model_of_nothing_is_read() -> None:
    assert audit(read_claims("{parameters: 0B, gpu: A100, throughput_per_gpu: 40 tokens/s}", "x")).references == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("collectives: [{operation: all_redact}]", "collectives[1].operation = all_redact: did you mean all_reduce?"),
        ("links: [{scope: sideways}]", "links[1].scope = sideways: must be inter_node or intra_node"),
    ],
)
def test_an_operation_that_there_is_not_is_told_in_a_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        audit(read_claims(text, "claims.yaml"))
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("interval: every 500 steps", "interval = every 500 steps: unknown key; it is a key of checkpoints"),
        ("links: [{gpus: 8 per node}]", "links[1].gpus = 8 per node: unknown key; it is a key of runs, not of links"),
        ("links: [{gpus: 32 × A100-40}]", "links[1].gpus = 32 × A100-40: unknown key; it is a key of runs"),
        ("links: [{recovered: 12/12}]", "links[1].recovered = 12/12: unknown key; it is a key of runs"),
        ("checkpoints: [{gpus: 8 per node}]", "checkpoints[1].gpus = 8 per node: unknown key; it is a key of runs"),
        ("checkpoints: [{gpus: 8 A100}]", "checkpoints[1].gpus = 8 A100: unknown key; it is a key of runs"),
        ("collectives: [{interval: 3 steps}]", "collectives[1].interval = 3 steps: unknown key; it is a key of check"),
        ("collectives: [{recovered: 1 of 2}]", "collectives[1].recovered = 1 of 2: unknown key; it is a key of runs"),
    ],
)
def test_a_key_that_nobody_wrote_is_never_complained_of(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_claims(text, "claims.yaml")
    assert line in str(caught.value)
    assert "more)" not in str(caught.value)


def test_a_link_is_of_a_type_of_machines_however_many_there_are() -> None:
    (link,) = read_claims("links: [{instance: 4 × p4d.24xlarge, bandwidth: 380 GB/s}]", "claims.yaml").links
    assert link.instance == "p4d.24xlarge"


@pytest.mark.parametrize("section", [RunClaims, CollectiveClaims, LinkClaims, CheckpointClaims])
def test_every_key_is_documented(section: type[Claims]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "claims.md").read_text()
    for key, field in section.model_fields.items():
        assert f"| `{key}` |" in text
        assert field.description
        assert field.description.replace("\n", " ") in text


def test_the_documented_example_is_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    found = audit(read_claims(example, "docs"))
    assert not found.consistent
    assert len([each for each in found.findings if each.kind in ("contradiction", "impossible")]) == 7
