"""Config parsers: plain JSON, or one line and exit code 2."""

import json

import pytest

from convoy.launch.parse import parse_overrides, parse_run


def refused(parse: object, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(text)  # type: ignore[operator]
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return str(line)


def test_both_parsers_give_plain_json() -> None:
    assert json.loads(json.dumps(parse_run("model: tiny\ntrain: {steps: 3}")))["train"] == {"steps": 3}
    assert parse_overrides("train.steps=3 model.n_layers=2") == {"train": {"steps": 3}, "model": {"n_layers": 2}}
    assert parse_overrides("") == parse_run("") == {}


def test_overrides_may_be_a_json_object_with_dotted_or_nested_keys() -> None:
    words = parse_overrides("train.steps=3 model.name='a b' data.corpus.kind=stdlib")
    dotted = {"train.steps": 3, "model.name": "a b", "data.corpus": {"kind": "stdlib"}}
    assert parse_overrides(json.dumps(dotted)) == words
    assert parse_overrides(json.dumps({"train": {"steps": 3}})) == {"train": {"steps": 3}}


def test_half_a_json_object_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(parse_overrides, '{"train.steps": ', capsys).startswith("convoy: override")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("trian: {steps: 3}", 'convoy: trian = {"steps": 3}: unknown key; did you mean train?'),
        ("train: {steps: 0}", "convoy: train.steps = 0: must be at least 1"),
        ("[1, 2]", "convoy: the configuration must be a mapping of keys to values, not: [1, 2]"),
    ],
)
def test_a_bad_base_is_one_line(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(parse_run, text, capsys).startswith(line.split(";")[0])


def test_a_bad_override_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(parse_overrides, "train.steps=x", capsys) == "convoy: train.steps = x: must be an integer"


@pytest.mark.parametrize(
    "words",
    [
        "data.corpus.path=s3://bucket/corpus",  # right on a base of kind files
        "data.corpus.field=body",
        "data.tokenizer.path=/tokenizer.json",
        "model.args={width:\\ 3}",
        "data.sequence_length=4096",  # right on a base with a longer model
        "train.global_batch=1",  # right on a base of one rank
    ],
)
def test_what_the_base_may_make_right_is_let_through(words: str) -> None:
    assert parse_overrides(words)


@pytest.mark.parametrize("words", ["data.corpsu.path=/a", "data.sequence_lenght=3", "cluster.modes=2"])
def test_what_no_base_can_make_right_is_not(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown key" in refused(parse_overrides, words, capsys)
