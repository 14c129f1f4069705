"""What a list of trackers may hold."""

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.trackers import TrackerConfig


def test_each_tracker_is_one_key() -> None:
    trackers = [{"mlflow": "file:///runs"}, {"wandb": "team/stdlib"}, {"tensorboard": "board"}]
    found = resolve({"trackers": trackers}, {}).trackers
    assert [(t.kind, t.target) for t in found] == [
        ("mlflow", "file:///runs"), ("wandb", "team/stdlib"), ("tensorboard", "board"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trackers", "line"),
    [
        ([{"comet": "x"}], "trackers.0.comet: must be one tracker, of mlflow, wandb, tensorboard, with its target"),
        ([{"mlflow": "a", "wandb": "b"}], "trackers.0.mlflow, wandb: must be one tracker, of "),
        ([{}], "trackers.0.null: must be one tracker, of "),
        ([{"wandb": ""}], "trackers.0.wandb = '': must not be empty"),
        ({"mlflow": "x"}, 'trackers = {"mlflow": "x"}: must be a list'),
        ([{"tensorboard": "s3://bucket/boards"}], "trackers.0.tensorboard = s3://bucket/boards: must be a folder"),
    ],
)
def test_anything_else_is_refused_in_one_line(trackers: object, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({"trackers": trackers}, {})
    assert str(error.value).startswith(line)


URI = "https://me:hunter2@tracking"


@pytest.mark.parametrize(
    "trackers",
    [
        [{"mlflow": URI}], [{"mlflw": URI}], {"mlflow": URI}, URI, [URI], [{"mlflow": [URI]}],
        [{"mlflow": "https://me:hunter2/b@tracking"}], [{"mlflow": "https://me:hunter2#b@tracking"}],
    ],
)  # fmt: skip
def test_a_password_is_refused_and_not_shown(trackers: object) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({"trackers": trackers}, {})
    assert "hunter2" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_user_alone_is_no_password() -> None:
    assert TrackerConfig(mlflow="https://me@tracking").target == "https://me@tracking"
