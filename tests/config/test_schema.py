"""The tree of keys, and pydantic's locations in it."""

from typing import Any

import pytest
from pydantic import ValidationError

from convoy.config.data import BpeTokenizer, FilesCorpus
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.config.schema import classes_at, field_at, leaves, locate
from convoy.config.train import TrainConfig


def location_of(tree: dict[str, Any]) -> tuple[int | str, ...]:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(tree)
    return caught.value.errors()[0]["loc"]


@pytest.mark.parametrize(
    ("tree", "keys", "inside"),
    [
        ({"train": {"steps": 0}}, ("train", "steps"), TrainConfig),
        ({"trane": 1}, ("trane",), RunConfig),
        ({"model": {"n_layers": 0}}, ("model", "n_layers"), TransformerConfig),
        ({"model": {"transformer": 0}}, ("model", "transformer"), TransformerConfig),
        ({"model": {"build": "a:b"}}, ("model", "vocab_size"), CustomModelConfig),
        ({"data": {"corpus": {"kind": "files"}}}, ("data", "corpus", "path"), FilesCorpus),
        ({"data": {"corpus": {"kind": "files", "path": "/x", "files": 1}}}, ("data", "corpus", "files"), FilesCorpus),
        ({"data": {"tokenizer": {"kind": "bpe", "vocab_size": 1}}}, ("data", "tokenizer", "vocab_size"), BpeTokenizer),
    ],
)
def test_a_location_is_told_in_the_keys_a_user_writes(
    tree: dict[str, Any], keys: tuple[str, ...], inside: type
) -> None:
    found, classes = locate(RunConfig, location_of(tree))
    assert found == keys
    assert list(classes.values()) == [inside]


def test_a_place_in_a_list_keeps_its_number() -> None:
    location = location_of({"evaluation": {"prompts": ["a", 5]}})
    assert locate(RunConfig, location)[0] == ("evaluation", "prompts", "1")


def test_the_field_of_a_location_is_the_one_of_the_chosen_class() -> None:
    field = field_at(RunConfig, location_of({"model": {"build": "no form"}}))
    assert field is CustomModelConfig.model_fields["build"]
    assert field_at(RunConfig, ("nothing",)) is None


@pytest.mark.parametrize(
    ("keys", "tags"),
    [
        ((), [""]),
        (("train",), ["TrainConfig"]),
        (("model",), ["transformer", "custom"]),
        (("data", "corpus"), ["stdlib", "files", "hf", "shards", "synthetic"]),
        (("data", "tokenizer"), ["bpe", "bytes", "file"]),
        (("train", "steps"), []),
        (("nothing", "here"), []),
    ],
)
def test_the_classes_of_a_key_are_told_apart_by_their_tags(keys: tuple[str, ...], tags: list[str]) -> None:
    assert list(classes_at(RunConfig, keys)) == tags


def test_the_leaves_are_all_plain_values_of_all_classes() -> None:
    found = {".".join(keys) for keys in leaves(RunConfig)}
    assert {"root", "train.steps", "model.n_layers", "model.build", "data.corpus.eos_id", "schedule.kind"} <= found
    assert not {"train", "model", "data.corpus"} & found
