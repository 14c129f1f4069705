"""Where the command `run` stands among the words of a flow's command line, and which of them are told."""

import shlex

import pytest

from convoy.launch.parse import around_run, command_line, job_words, values_of_options

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
    assert around_run(words.split(), VALUES) == (before.split(), after.split())


def test_metaflow_says_how_many_words_follow_its_options() -> None:
    values = values_of_options()
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
    assert command_line(words.split(), VALUES, {"A_SECRET": "x"}) == line


def test_a_shell_takes_the_told_command_as_it_was() -> None:
    words = ["b.py", "--config-value", "set", "models=[tiny] 'run.data.corpus={kind: synthetic}'", "run"]
    assert shlex.split(command_line(words, VALUES, {})) == ["python", *words]


def test_a_configuration_in_metaflow_s_variables_is_told_too() -> None:
    line = command_line(["b.py", "run"], VALUES, {"METAFLOW_FLOW_CONFIG_VALUE": '{"set": "models=[tiny]"}'})
    assert shlex.split(line) == ["env", 'METAFLOW_FLOW_CONFIG_VALUE={"set": "models=[tiny]"}', "python", "b.py", "run"]
