"""What a kept configuration tells of whether another one can continue its job."""

from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import check_same_data, check_same_model

FILES = {"data": {"corpus": {"kind": "files", "path": "/corpus"}}}
SHARDS = {"data": {"corpus": {"kind": "shards", "path": "/shards", "vocab_size": 500}}}
CUSTOM = {"model": {"build": "a.b:c", "vocab_size": 4096, "max_sequence_length": 256}}


def kept(tree: dict[str, Any]) -> dict[str, Any]:
    return resolve(tree, {}).model_dump(mode="json")


def changed(base: dict[str, Any], over: dict[str, Any]) -> RunConfig:
    return resolve(base, over)


@pytest.mark.parametrize("base", [{}, FILES, SHARDS, CUSTOM])
def test_the_same_configuration_goes_on(base: dict[str, Any]) -> None:
    check_same_data("a", kept(base), changed(base, {}))
    check_same_model("a", kept(base), changed(base, {}))


@pytest.mark.parametrize(
    ("base", "over", "told"),
    [
        ({}, {"sequence_length": 128}, "data.sequence_length = 128: job a was started with 256"),
        ({}, {"respect_documents": True}, "data.respect_documents = true: job a was started with false"),
        ({}, {"validation_fraction": 0.1}, "data.validation_fraction = 0.1: job a was started with 0.05"),
        ({}, {"tokenizer": {"vocab_size": 300}}, "data.tokenizer.vocab_size = 300: job a was started with 4096"),
        ({}, {"tokenizer": {"kind": "bytes"}}, "data.tokenizer.kind = bytes: job a was started with bpe"),
        ({}, {"corpus": {"kind": "synthetic"}}, "data.corpus.kind = synthetic: job a was started with stdlib"),
        (FILES, {"corpus": {"format": "jsonl"}}, "data.corpus.format = jsonl: job a was started with text"),
    ],
)
def test_other_sequences_are_refused_with_the_key_and_both_values(
    base: dict[str, Any], over: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_same_data("a", kept(base), changed(base, {"data": over}))
    assert str(refused.value) == f"{told}; keep that, or name a new job"


@pytest.mark.parametrize(
    ("base", "over"),
    [
        (FILES, {"corpus": {"path": "/elsewhere"}}),
        (FILES, {"corpus": {"suffixes": [".text"]}}),
        ({}, {"cache": "/cache"}),
        (SHARDS, {"tokenizer": {"kind": "bytes"}}),
    ],
)
def test_what_may_lead_to_the_same_content_is_left_to_the_fingerprint(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    check_same_data("a", kept(base), changed(base, {"data": over}))


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"n_layers": 5}, "model.n_layers = 5: job a was started with 4"),
        ({"tied_embeddings": False}, "model.tied_embeddings = false: job a was started with true"),
        (CUSTOM["model"], "model = custom: job a was started with tiny"),
    ],
)
def test_weights_that_do_not_fit_are_refused(over: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_same_model("a", kept({}), changed({}, {"model": over}))
    assert str(refused.value) == f"{told}; keep that, or name a new job"


def test_name_and_dropout_of_a_model_may_change() -> None:
    check_same_model("a", kept({}), changed({}, {"model": {"name": "other", "dropout": 0.1}}))


def test_a_key_that_an_older_version_did_not_have_is_no_difference() -> None:
    old = kept({})
    del old["data"]["respect_documents"], old["model"]["rope_theta"]
    check_same_data("a", old, changed({}, {"data": {"respect_documents": True}}))
    check_same_model("a", old, changed({}, {}))
