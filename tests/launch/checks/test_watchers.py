"""What trackers and notifications need before a run starts."""

import pytest

from convoy.config.errors import PrerequisiteMissing
from convoy.config.loader import resolve
from convoy.launch.checks import watchers
from convoy.launch.checks.watchers import check_notify, check_trackers
from convoy.launch.decorators import step_decorators

ON = {"on": ["failed"]}
CLUSTER = {"backend": "batch", "instance_type": "p4d.24xlarge"}


def test_nobody_to_notify_is_one_line() -> None:
    check_notify(resolve({}, {}), {})
    check_notify(resolve({"notify": ON}, {}), {"CONVOY_NOTIFY": "json://host"})
    with pytest.raises(PrerequisiteMissing, match=r"^CONVOY_NOTIFY: not set, and notify\.on needs a target"):
        check_notify(resolve({"notify": ON}, {}), {})


def test_a_cluster_needs_a_secret_which_the_steps_then_get() -> None:
    without = resolve({"notify": ON, "cluster": CLUSTER}, {})
    with pytest.raises(PrerequisiteMissing, match=r"^notify\.secret: not set"):
        check_notify(without, {"CONVOY_NOTIFY": "json://host"})
    named = resolve({"notify": {**ON, "secret": "aws-secrets-manager.convoy"}, "cluster": CLUSTER}, {})
    check_notify(named, {})
    decorators = step_decorators(named)
    for step in (decorators.gang, decorators.ordinary):
        assert ("secrets", {"sources": ["aws-secrets-manager.convoy"]}) in step
    assert "secrets" not in {decorator.name for decorator in step_decorators(without).gang}


def test_a_tracker_without_its_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "find_spec", lambda name: None)
    config = resolve({"trackers": [{"wandb": "stdlib"}]}, {})
    with pytest.raises(PrerequisiteMissing) as error:
        check_trackers(config)
    line = "trackers.wandb: wandb is not installed: pip install 'metaflow-convoy[wandb]'"
    assert str(error.value) == line
    check_trackers(resolve({"trackers": [{"wandb": "stdlib"}], "cluster": CLUSTER}, {}))
