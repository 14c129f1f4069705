"""The words of a flow's command line, and Config parsers: plain JSON, or one line and exit code 2."""

import json
import shlex

import pytest

from convoy.launch.parse import (
    job_words,
    option_word_counts,
    parse_overrides,
    parse_run,
    same_command,
    words_around_run,
)


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


@pytest.mark.parametrize(
    ("parse", "text", "line"),
    [
        (parse_run, "trian: {steps: 3}", 'convoy: trian = {"steps": 3}: unknown key'),
        (parse_run, "train: {steps: 0}", "convoy: train.steps = 0: must be at least 1"),
        (parse_run, "[1, 2]", "convoy: the configuration must be a mapping of keys to values, not: [1, 2]"),
        (parse_overrides, '{"train.steps": ', "convoy: override"),
        (parse_overrides, "train.steps=x", "convoy: train.steps = x: must be an integer"),
        # What no base can make right.
        (parse_overrides, "data.corpsu.path=/a", "convoy: data.corpsu"),
        (parse_overrides, "data.sequence_lenght=3", "convoy: data.sequence_lenght = 3: unknown key"),
        (parse_overrides, "cluster.modes=2", "convoy: cluster.modes = 2: unknown key"),
    ],
)
def test_what_is_wrong_is_one_line(parse: object, text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(parse, text, capsys).startswith(line)


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


VALUES = {"--config": 2, "--config-value": 2, "--with": 1, "--metadata": 1, "--quiet": 0}


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        ("", "", ""),
        ("run", "", ""),
        ("--config run a.yaml", "--config run a.yaml", ""),
        ("--config run a.yaml run --max-workers 2", "--config run a.yaml", "--max-workers 2"),
        ("--config run run run run", "--config run run", "run"),
        ("--quiet run --tag a", "--quiet", "--tag a"),
        ("--with run run --tag a", "--with run", "--tag a"),
        ("--with=retry run --tag a", "--with=retry", "--tag a"),
        ("--config=run a.yaml run --tag a", "--config=run a.yaml", "--tag a"),
        ("--unknown run --tag a", "--unknown", "--tag a"),
    ],
)
def test_the_words_before_run_are_metaflow_s_own(words: str, before: str, after: str) -> None:
    assert words_around_run(words.split(), VALUES) == (before.split(), after.split())


def test_metaflow_says_how_many_words_follow_its_options() -> None:
    values = option_word_counts()
    assert {name: values[name] for name in VALUES} == VALUES
    assert (values["--no-pylint"], values["--datastore"], values["--not-quiet"]) == (0, 1, 0)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", []),
        ("--max-workers 2 --tag a", []),
        ("run --job blue", ["--job blue"]),
        ("run --job=blue", ["--job=blue"]),
        ("run --tag job:blue --tag b", ["job:blue"]),
        ("run --tag=job:blue", ["--tag=job:blue"]),
        ("run --job", ["--job "]),
    ],
)
def test_words_that_name_a_job_are_found(words: str, named: list[str]) -> None:
    assert job_words(words.split()) == named


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("b.py run", "python b.py run"),
        ("b.py --config bench my.yaml run --max-workers 1", "python b.py --config bench my.yaml run"),
        ("b.py --config=bench my.yaml run", "python b.py --config=bench my.yaml run"),
        ("b.py --quiet --with retry --config run run run --tag --config", "python b.py --config run run run"),
        ("b.py --metadata=a-secret --with=--config run", "python b.py run"),
        ("b.py --with --config run", "python b.py run"),
    ],
)
def test_a_command_line_is_told_with_its_configuration_and_no_other_option(words: str, line: str) -> None:
    assert same_command(words.split(), VALUES, {"A_SECRET": "x"}) == line


def test_a_shell_takes_the_told_command_as_it_was() -> None:
    words = ["b.py", "--config-value", "set", "models=[tiny] 'run.data.corpus={kind: synthetic}'", "run"]
    assert shlex.split(same_command(words, VALUES, {})) == ["python", *words]


def test_a_configuration_in_metaflow_s_variables_is_told_too() -> None:
    line = same_command(["b.py", "run"], VALUES, {"METAFLOW_FLOW_CONFIG_VALUE": '{"set": "models=[tiny]"}'})
    assert shlex.split(line) == ["env", 'METAFLOW_FLOW_CONFIG_VALUE={"set": "models=[tiny]"}', "python", "b.py", "run"]
