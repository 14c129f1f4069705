"""What is no file of claims is refused with one line that tells what would be right."""

from pathlib import Path

import pytest

from convoy.audit.audit import audit
from convoy.audit.claims import KEYS, read_claims
from convoy.config.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "must be a mapping of keys to values, not: null"),
        ("- 7B", 'must be a mapping of keys to values, not: ["7B"]'),
        ("model: [7B", "is not YAML: line 1"),
        ("page: costs: a table", "needs quotes"),
        ("model: 7B\nmodel: 13B", "appears twice"),
        ("thruput: 145,267 tokens/s", "thruput = 145,267 tokens/s: unknown key; did you mean throughput?"),
        ("hours: 57", "hours = 57: unknown key; write it as time, e.g. 57 h"),
        ("Steps: 3\nsteps: 4", "steps = 4: steps also appears; give one key a list instead"),
        ("cost_per_million_tokens: $2", "unknown key; write it as cost_per_tokens"),
        ("collectives: [{operation: all_redact}]", "collectives[1].operation = all_redact: must be 'all_reduce'"),
        ("links: [{scope: sideways}]", "links[1].scope = sideways: must be 'inter_node' or 'intra_node'"),
        ("shares: [62 %, 38 %]", "unknown key; it is not checked any more: leave it out"),
        ("runs: [{thruput: 3}]", "runs[1].thruput = 3: unknown key; did you mean throughput?"),
        ("save_time: 3 s", "save_time = 3 s: unknown key; it is a key of checkpoints"),
        ("links: [{throughput: 3}]", "links[1].throughput = 3: unknown key; it is a key of runs, not of links"),
        ("time: 57 parsecs", "time = 57 parsecs: must be a time with its unit"),
        ("runs:\n- time: soon", "runs[1].time = soon: must begin with a number"),
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
        ("runs: [{id: a}, {id: a}]", "runs.id = a: appears twice"),
        ("checkpoints: [{id: a, size: 3 GB}, {id: a, size: 4 GB}]", "checkpoints.id = a: appears twice"),
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
        ("instance: p5.48xlarge x 4", "instance", "p5.48xlarge"),
    ],
)
def test_words_are_read_as_the_page_writes_them(text: str, key: str, value: str) -> None:
    assert read_claims(text, "claims.yaml").top.word(key) == value


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        ("Sequence length: 8K", "sequence_length", ["8K"]),
        ("MFU: 40 %", "mfu", ["40 %"]),
        ("instance: p5.48xlarge x 4", "nodes", ["4"]),
        ("instance: 4x p4d.24xlarge (8 A100 each)", "nodes", ["4"]),
        ("instance: 4 × p4d.24xlarge\nnodes: 8", "nodes", ["8", "4"]),
        ("instance: 4 × p4d.24xlarge\nnodes: 4", "nodes", ["4"]),
    ],
)
def test_other_words_for_a_key_are_read(text: str, key: str, told: list[str]) -> None:
    assert [figure.text for figure in read_claims(text, "claims.yaml").top.figures(key)] == told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("interval: 500 s", "interval = 500 s: unknown key; it is a key of checkpoints"),
        ("links: [{gpus: 8 per node}]", "links[1].gpus = 8 per node: unknown key; it is a key of runs, not of links"),
        ("links: [{gpus: 32 × A100-40}]", "links[1].gpus = 32 × A100-40: unknown key; it is a key of runs"),
        ("checkpoints: [{gpus: 8 per node}]", "checkpoints[1].gpus = 8 per node: unknown key; it is a key of runs"),
        ("checkpoints: [{gpus: 8 A100}]", "checkpoints[1].gpus = 8 A100: unknown key; it is a key of runs"),
        ("collectives: [{interval: 3 s}]", "collectives[1].interval = 3 s: unknown key; it is a key of check"),
    ],
)
def test_a_key_that_nobody_wrote_is_never_complained_of(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_claims(text, "claims.yaml")
    assert line in str(caught.value)
    assert "more)" not in str(caught.value)


def test_a_link_is_of_a_type_of_machines_however_many_there_are() -> None:
    (link,) = read_claims("links: [{instance: 4 × p4d.24xlarge, bandwidth: 380 GB/s}]", "claims.yaml").parts
    assert link.word("instance") == "p4d.24xlarge"


@pytest.mark.parametrize("section", KEYS)
def test_every_key_is_documented(section: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "claims.md").read_text()
    for key in KEYS[section]:
        assert f"| `{key}` |" in text


def test_the_documented_example_is_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    found = audit(read_claims(example, "docs"))
    assert not found.consistent
    assert len([each for each in found.findings if each.kind in ("contradiction", "impossible")]) == 7
