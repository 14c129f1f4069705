"""Which moments may be reported."""

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig, training_hash


@pytest.mark.parametrize("text", ["notify: {on: [failed, finished]}", 'notify:\n  "on":\n  - failed\n  - finished'])
def test_on_is_a_name_though_yaml_1_1_takes_it_for_true(text: str) -> None:
    assert resolve(read_run(text), {}).notify.on == ("failed", "finished")
    assert resolve({}, read_overrides("notify.on=[failed,finished]")).notify.on == ("failed", "finished")


def test_an_unknown_moment_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"^notify\.on\.0 = finishd: must be one of .*; did you mean finished\?"):
        resolve({"notify": {"on": ["finishd"]}}, {})


def test_who_watches_makes_no_other_training() -> None:
    watched = resolve({"notify": {"on": ["failed"]}, "trackers": [{"wandb": "x"}]}, {})
    assert training_hash(watched) == training_hash(RunConfig())


@pytest.mark.parametrize(
    "notify", [{"target": "slack://T/hunter2"}, {"secret": "mailtos://me:hunter2@host"}, {"on": ["json://hunter2"]},
               "slack://T/hunter2"]
)  # fmt: skip
def test_a_target_is_refused_wherever_it_stands_and_not_shown(notify: object) -> None:
    with pytest.raises(ConfigError, match=r"^notify\.\w+: must not hold a target.*; set CONVOY_NOTIFY$") as error:
        resolve({"notify": notify}, {})
    assert "hunter2" not in str(error.value)


def test_a_secret_of_azure_may_be_an_address() -> None:
    source = "az-key-vault.https://vault.vault.azure.net/secrets/convoy"
    assert resolve({"notify": {"secret": source}}, {}).notify.secret == source
