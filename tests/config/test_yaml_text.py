"""YAML as people mean it."""

import datetime

import pytest
import yaml

from convoy.config.yaml_text import YamlError, parse_yaml


@pytest.mark.parametrize("text", ["1e-3", "3e4", "+2.5E-1", "-1e+2", ".5e1", "1.e1"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    assert parse_yaml(text) == float(text)


@pytest.mark.parametrize("text", ["e5", "1e", "1e5x", "1-e5"])
def test_what_only_looks_like_one_is_text(text: str) -> None:
    assert parse_yaml(text) == text


def test_a_date_is_text() -> None:
    assert parse_yaml("day: 2026-11-20") == {"day": "2026-11-20"}


@pytest.mark.parametrize("text", ["1:30", "120:00", "-1:30", "1:30:00.5"])
def test_a_time_is_text_and_no_number_in_sixties(text: str) -> None:
    assert parse_yaml(f"hours: {text}") == {"hours": text}


def test_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(YamlError, match=r"^nested too deep$"):
        parse_yaml("[" * 200_000 + "]" * 200_000)


def test_the_loader_of_other_programs_is_left_alone() -> None:
    parse_yaml("2026-11-20")
    assert yaml.safe_load("[2026-11-20, 1e-3]") == [datetime.date(2026, 11, 20), "1e-3"]


@pytest.mark.parametrize("text", ["a: 1\na: 2", "b: {a: 1, a: 1}", "- {a: 1, 'a': 2}"])
def test_a_key_given_twice_is_refused(text: str) -> None:
    with pytest.raises(YamlError, match="the key 'a' is given twice"):
        parse_yaml(text)


def test_a_key_may_be_given_once_in_each_mapping() -> None:
    assert parse_yaml("a: {a: 1}\nb: {a: 2}") == {"a": {"a": 1}, "b": {"a": 2}}


def test_merge_keys_and_anchors_work() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}"
    assert parse_yaml(text)["other"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("text", ["!!set {a}", "!!binary aGk=", "&x [*x]", "!!python/name:os.system ''", "a: b: c"])
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(YamlError):
        parse_yaml(text)
