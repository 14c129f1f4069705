"""`convoy infra connect`: a stack's values reach a preset, whose comments stay, and Metaflow's profile; what does not
fit is refused, and nothing is written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from convoy.cli import infra
from convoy.config.errors import ConfigError
from convoy.config.loader import config_file
from convoy.config.yaml_text import parse_yaml
from convoy.infra import stack as stacks
from convoy.infra.connect import connect, parse_config_text, read_config_text
from convoy.infra.profile import check_profile, profile_path, read_settings
from convoy.infra.stack import Stack, read_stack
from convoy.infra.yaml_edit import set_values
from tests.cli import assert_refused, convoy
from tests.infra.batch_account import ACCOUNT, BUCKET, REGION, ROLE, TYPE, BatchAwsAccount, client, metadata_service
from tests.infra.moto_batch import as_aws_validates

PROFILE = {"METAFLOW_DEFAULT_DATASTORE": "s3", "METAFLOW_BATCH_JOB_QUEUE": "convoy-cpu"}

BATCH: dict[str, Any] = {
    "stack": "convoy", "backend": "batch", "account": ACCOUNT, "region": "eu-west-1", "root": f"s3://{BUCKET}/convoy",
    "bucket": BUCKET, "image": "registry/convoy:1", "metaflow": PROFILE, "iam_role": ROLE, "host_volumes": ["/fsx"],
    "pools": [
        {"instance_type": TYPE, "market": "on_demand", "max_nodes": 4, "queue": "convoy-p5"},
        {"instance_type": "p4d.24xlarge", "market": "capacity_block", "max_nodes": 2, "queue": "convoy-p4d"},
    ],
}  # fmt: skip

KUBERNETES: dict[str, Any] = BATCH | {
    "backend": "kubernetes", "namespace": "metaflow", "service_account": "tasks",
    "persistent_volume_claims": {"fsx": "/fsx"},
    "pools": [
        {
            "instance_type": TYPE, "market": "spot", "max_nodes": 4,
            "node_selector": {"karpenter.sh/capacity-type": "spot"},
            "tolerations": [{"key": "convoy/spot", "operator": "Exists"}],
        },
    ],
}  # fmt: skip


def comments(text: str) -> list[str]:
    """Of each line that has one. The presets have no `#` elsewhere."""
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


def changes(preset: str, stack: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The preset, what is made of it, and the keys of `cluster:` whose values differ."""
    before = read_config_text(preset)
    after = parse_config_text("my.yaml", connect(before, Stack.model_validate(stack)))
    was, now = (each.config.cluster.model_dump(mode="json") for each in (before, after))
    return before.text, after.text, {key: value for key, value in now.items() if was[key] != value}


def test_a_batch_preset_gets_the_stack_s_values_and_keeps_its_comments() -> None:
    before, after, changed = changes("custom-30b-p5", BATCH)
    assert changed == {
        "region": "eu-west-1", "image": "registry/convoy:1", "queue": "convoy-p5", "iam_role": ROLE,
        "host_volumes": ["/fsx"],
    }  # fmt: skip
    assert comments(after) == comments(before)
    assert f"\nroot: s3://{BUCKET}/convoy\n" in after  # no quotes that the preset has not
    assert "  queue: convoy-p5                   # job queue" in after  # the comment is where it was
    tree = parse_yaml(after)
    assert tree["root"] == f"s3://{BUCKET}/convoy"
    assert tree["data"]["corpus"]["path"] == f"s3://{BUCKET}/corpus/"
    assert list(tree) == list(parse_yaml(before))
    untouched = [line for line in before.splitlines() if line in after.splitlines()]
    assert (
        len(before.splitlines()) - len(untouched) == 6
    )  # those of the keys above that the preset has, and two buckets


def test_a_kubernetes_preset_gets_its_own_keys() -> None:
    before, after, changed = changes("gpt-7b-p5", KUBERNETES)
    assert changed == {
        "region": "eu-west-1", "image": "registry/convoy:1", "namespace": "metaflow", "service_account": "tasks",
        "node_selector": {"karpenter.sh/capacity-type": "spot"},
        "tolerations": [{"key": "convoy/spot", "operator": "Exists"}], "persistent_volume_claims": {"fsx": "/fsx"},
    }  # fmt: skip
    assert comments(after) == comments(before)


FSX = {"gib": 4800, "mb_per_second_per_tib": 250}


def test_the_stack_s_file_system_is_named_so_that_its_cost_counts() -> None:
    for preset, stack in (("custom-30b-p5", BATCH), ("gpt-7b-p5", KUBERNETES)):
        before, after, changed = changes(preset, stack | {"file_system": FSX})
        assert changed["file_system"] == FSX | {"price": None}
        assert comments(after) == comments(before)
    _, after, changed = changes("p5", KUBERNETES | {"file_system": FSX})
    assert parse_yaml(after)["run"]["cluster"]["file_system"] == FSX


def test_a_preset_s_price_of_a_file_system_stays_and_so_does_one_that_the_stack_lacks(tmp_path: Path) -> None:
    own = {"gib": 1200, "price": {"usd_per_gib_month": 0.21, "date": "2026-11-09", "source": "contract"}}
    preset = tmp_path / "own.yaml"
    text = config_file("custom-30b-p5", "train").read_text()
    preset.write_text(text.replace("cluster:\n", f"cluster:\n  file_system: {json.dumps(own)}\n"))
    _, _, changed = changes(str(preset), BATCH | {"file_system": FSX})
    assert changed["file_system"] == FSX | {"price": own["price"]}
    for lacking in ({}, {"file_system": None}):
        _, _, changed = changes(str(preset), BATCH | lacking)
        assert "file_system" not in changed


def test_a_benchmark_s_run_is_connected() -> None:
    before, after, changed = changes("p5", KUBERNETES)
    assert changed["namespace"] == "metaflow"
    assert comments(after) == comments(before)
    assert parse_yaml(after)["run"]["root"] == f"s3://{BUCKET}/convoy"
    assert "cluster" not in parse_yaml(after)


MISFITS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (
        "gpt-7b-p5", BATCH,
        ("cluster.backend = kubernetes: the stack convoy is for batch; set cluster.backend = batch, "
         "cluster.market = on_demand or capacity_block"),
    ),
    (
        "custom-30b-p5", KUBERNETES,
        "cluster.backend = batch: the stack convoy is for kubernetes; set cluster.backend = kubernetes",
    ),
    (
        "cpu-smoke", BATCH,
        ("cluster.backend = local: the stack convoy is for batch; set cluster.backend = batch, "
         "cluster.instance_type, cluster.nodes"),
    ),
    (
        "custom-30b-p5", BATCH | {"pools": BATCH["pools"][1:]},
        f"cluster.instance_type = {TYPE}: the stack convoy has p4d.24xlarge capacity_block (at most 2)",
    ),
    ("llama-13b-p5", BATCH, f"cluster.market = capacity_block: the stack convoy has {TYPE} on_demand (at most 4)"),
    (
        "custom-30b-p5", BATCH | {"pools": [BATCH["pools"][0] | {"max_nodes": 3}]},
        f"cluster.nodes = 4: the stack convoy has {TYPE} on_demand (at most 3); raise max_nodes and apply it",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("preset", "stack", "line"), MISFITS)
def test_a_preset_that_does_not_fit_the_stack_is_refused(preset: str, stack: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        connect(read_config_text(preset), Stack.model_validate(stack))
    assert str(error.value) == line


def test_keys_of_the_other_backend_are_named(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    text = config_file("gpt-7b-p5", "train").read_text()
    preset.write_text(text.replace("tolerations: []", "tolerations: [{key: spot, operator: Exists}]"))
    with pytest.raises(ConfigError, match=r"cluster\.tolerations = \[\]$"):
        connect(read_config_text(str(preset)), Stack.model_validate(BATCH))


def test_reserved_machines_come_before_those_on_demand_while_they_are_enough() -> None:
    pools = [
        {"instance_type": TYPE, "market": market, "max_nodes": most, "queue": market}
        for market, most in (("on_demand", 8), ("reservation", 4))
    ]
    stack = Stack.model_validate(BATCH | {"pools": pools})
    cluster = read_config_text("custom-30b-p5").config.cluster
    assert stack.pool_for(cluster).queue == "reservation"
    assert stack.pool_for(cluster.model_copy(update={"nodes": 5})).queue == "on_demand"
    assert stack.pool_for(cluster.model_copy(update={"market": "reserved"})).queue == "reservation"


OWN_TEXT = """\
# top
root: s3://YOUR-BUCKET/x   # the root

cluster:
  queue:      # nothing yet
  image: "a # b"  # quoted
  tolerations:  # several
    # of the pool
    - key: a
      operator: Exists
    - {key: b}   # last
  nodes: 2
# after
data: {corpus: {kind: files, path: 's3://YOUR-BUCKET/c'}, sequence_length: 8}
train:
  steps: 3
"""


def test_values_are_set_in_any_style_of_yaml() -> None:
    values: dict[tuple[str, ...], Any] = {
        ("cluster", "queue"): "convoy-p5", ("cluster", "image"): "x:1", ("cluster", "tolerations"): [{"key": "c"}],
        ("cluster", "region"): "eu-west-1", ("data", "packing"): False, ("train", "lr", "base"): 0.5,
    }  # fmt: skip
    text = set_values(OWN_TEXT, values, ("YOUR-BUCKET", "mine"))
    tree = parse_yaml(text)
    assert tree == {
        "root": "s3://mine/x",
        "cluster": {
            "queue": "convoy-p5", "image": "x:1", "tolerations": [{"key": "c"}], "nodes": 2, "region": "eu-west-1",
        },
        "data": {"corpus": {"kind": "files", "path": "s3://mine/c"}, "sequence_length": 8, "packing": False},
        "train": {"steps": 3, "lr": {"base": 0.5}},
    }  # fmt: skip
    for comment in (
        "# top",
        "# the root",
        "# nothing yet",
        "# quoted",
        "# several",
        "# of the pool",
        "# last",
        "# after",
    ):
        assert text.count(comment) == 1, comment


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@given(old=values, new=values, style=st.sampled_from([True, False, None]))
def test_any_value_replaces_any_other(old: Any, new: Any, style: bool | None) -> None:
    """Or the text is refused; no other value ever changes."""
    import yaml

    text = yaml.safe_dump({"a": {"b": old, "c": 1}, "d": [2]}, default_flow_style=style)
    before = parse_yaml(text)
    try:
        after = parse_yaml(set_values(text, {("a", "b"): new, ("a", "e"): new}, ("never", "x")))
    except ConfigError as error:
        assert "set by hand: a.b, a.e" in str(error)  # noqa: PT017
    else:
        assert after == {"a": {**before["a"], "b": new, "e": new}, "d": [2]}


def test_anchors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set by hand: b\.x"):
        set_values("a: &one {x: 1}\nb: *one\n", {("b", "x"): 2}, ("never", "x"))


def test_the_profile_with_other_content_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = profile_path("convoy", {"METAFLOW_HOME": str(tmp_path)})
    assert path == tmp_path / "config_convoy.json"
    check_profile(path, PROFILE, "convoy")
    path.write_text(json.dumps(PROFILE))
    check_profile(path, PROFILE, "convoy")
    path.write_text(json.dumps({"METAFLOW_DEFAULT_DATASTORE": "local", "METAFLOW_USER": "me"}))
    with pytest.raises(ConfigError) as error:
        check_profile(path, PROFILE, "convoy")
    assert str(error.value) == (
        f"{path}: has other content than the stack convoy: "
        "METAFLOW_BATCH_JOB_QUEUE = not set, not convoy-cpu in the stack; "
        "METAFLOW_DEFAULT_DATASTORE = local, not s3 in the stack; "
        "METAFLOW_USER = me, not set in the stack; move it away"
    )
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"config_convoy\.json: cannot be read as JSON"):
        check_profile(path, PROFILE, "convoy")


def test_settings_are_those_of_the_profile_under_environment_variables(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PROFILE))
    environ = {"METAFLOW_HOME": str(tmp_path), "METAFLOW_BATCH_JOB_QUEUE": "mine"}
    settings = read_settings(environ)
    assert (settings["DEFAULT_DATASTORE"], settings["BATCH_JOB_QUEUE"]) == ("s3", "mine")
    with pytest.raises(ConfigError, match=r"^METAFLOW_PROFILE = other: no file "):
        read_settings(environ | {"METAFLOW_PROFILE": "other"})


def terraform(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `terraform` that does this."""
    folder.mkdir()
    (folder / "terraform").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "terraform").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.processes
def test_the_stack_is_read_from_terraform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"convoy": {"sensitive": False, "value": BATCH}, "usd_per_hour": {"value": {}}})
    (tmp_path / "answer.json").write_text(answer)
    terraform(tmp_path / "bin", f'echo "$@" > {tmp_path}/words; cat {tmp_path}/answer.json', monkeypatch)
    assert read_stack(tmp_path) == Stack.model_validate(BATCH)
    assert (tmp_path / "words").read_text() == f"-chdir={tmp_path} output -json -no-color\n"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("echo '{}'", "{}: this stack is not applied; run: terraform -chdir={} apply"),
        ('echo \'{"convoy": {"value": {}}}\'', "{}: output convoy: stack: Field required; apply the stack again"),
        ("echo; echo '╷'; echo '│ Error: Backend initialization required'; exit 1) >&2 && (exit 1",
         "terraform -chdir={} output -json -no-color: Error: Backend initialization required"),
        ("echo no", "terraform -chdir={} output -json -no-color: the answer is not JSON"),
    ],
)  # fmt: skip
def test_a_stack_that_cannot_be_read_is_one_line(
    script: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terraform(tmp_path / "bin", f"({script})", monkeypatch)
    assert_refused(
        line.replace("{}", str(tmp_path)), "infra", "connect", tmp_path, "custom-30b-p5", "--output", "x.yaml"
    )


def test_no_folder_and_no_terraform_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("custom-30b-p5", "--output", tmp_path / "my.yaml")
    assert_refused("terraform: not on the PATH; install version 1.11 or newer", "infra", "connect", tmp_path, *words)
    nowhere = tmp_path / "nowhere"
    line = f"{nowhere}: no such folder; name one that holds a stack, such as infra/aws-batch"
    assert_refused(line, "infra", "connect", nowhere, *words)


@pytest.fixture
def applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchAwsAccount]:
    """A stack that Terraform describes, in an account that has it, and a home of one's own."""
    with mock_aws(), as_aws_validates(), metadata_service() as url:
        made = BatchAwsAccount(url)
        pool = {"instance_type": TYPE, "market": "on_demand", "max_nodes": 4, "queue": "convoy-gpu"}
        described = made.stack(backend="batch", pools=[pool], iam_role=ROLE).model_dump(mode="json")
        monkeypatch.setattr(stacks, "_terraform_output", lambda _: {"convoy": {"value": described}})
        monkeypatch.setattr(infra, "boto3_client", client)
        monkeypatch.setenv("METAFLOW_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        monkeypatch.delenv("METAFLOW_PROFILE", raising=False)
        with made.replies.given():
            yield made


def test_connect_writes_both_files_checks_and_says_what_is_next(applied: BatchAwsAccount, tmp_path: Path) -> None:
    output, profile = tmp_path / "my.yaml", tmp_path / "home" / "config_convoy.json"
    words = ("infra", "connect", tmp_path, "custom-30b-p5", "--output", output)
    done = convoy(*words)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == f"wrote {profile} and {output}"
    assert lines[-1] == f"next: METAFLOW_PROFILE=convoy python flows/train_flow.py --config run {output} run"
    assert all(line.startswith("ok ") for line in lines[1:-2])
    assert lines[-2] == f"{len(lines) - 3} ok, 0 missing, 0 warning"
    assert json.loads(profile.read_text()) == applied.profile
    assert read_config_text(str(output)).config.cluster.queue == "convoy-gpu"
    assert convoy(*words).exit_code == 0  # again, with the same content


def test_connect_reports_what_is_missing(applied: BatchAwsAccount, tmp_path: Path) -> None:
    client("s3").delete_bucket_policy(Bucket=BUCKET)
    done = convoy("infra", "connect", tmp_path, "custom-30b-p5", "--output", tmp_path / "my.yaml")
    assert done.exit_code == 1
    (missing,) = [line for line in done.output.splitlines() if line.startswith("missing")]
    assert missing == (
        "missing  bucket TLS: no policy; wanted: a policy that denies s3:* without TLS; "
        "to fix it, apply the stack again, or add the policy"
    )


def test_check_of_the_written_file_may_be_json(
    applied: BatchAwsAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "my.yaml"
    assert convoy("infra", "connect", tmp_path, "custom-30b-p5", "--output", output).exit_code == 0
    monkeypatch.setenv("METAFLOW_PROFILE", "convoy")
    done = convoy("infra", "check", output, "--json")
    assert done.exit_code == 0
    assert {each["status"] for each in json.loads(done.output)} == {"ok"}
    applied.batch.update_job_queue(jobQueue="convoy-gpu", state="DISABLED")
    done = convoy("infra", "check", output, "--json")
    assert done.exit_code == 1
    (missing,) = [each for each in json.loads(done.output) if each["status"] == "missing"]
    assert (missing["name"], missing["seen"]) == ("queue", "convoy-gpu: DISABLED, VALID")


def test_what_depends_on_something_missing_is_counted(applied: BatchAwsAccount, tmp_path: Path) -> None:
    applied.resources["launchTemplate"] = None
    done = convoy("infra", "connect", tmp_path, "custom-30b-p5", "--output", tmp_path / "my.yaml")
    assert "1 missing, 0 warning, 10 not checked, because they depend on something missing" in done.output


@pytest.mark.parametrize("other", ["output", "profile", "account", "region", "credentials"])
def test_nothing_is_written_where_something_is_refused(
    other: str, applied: BatchAwsAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, profile = tmp_path / "my.yaml", tmp_path / "home" / "config_convoy.json"
    profile.parent.mkdir()
    if other == "output":
        output.write_text("root: mine\n")
        line = f"--output {output}: already there, with other content; name another file"
    elif other == "profile":
        profile.write_text("{}")
        line = f"{profile}: has other content than the stack convoy: "
    elif other == "account":
        monkeypatch.setenv("MOTO_ACCOUNT_ID", "999999999999")
        line = f"AWS credentials: belong to account 999999999999; must be {ACCOUNT}; set AWS_PROFILE"
    elif other == "region":
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        line = f"AWS region: eu-west-1; must be {REGION}, as cluster.region; set AWS_DEFAULT_REGION"
    else:
        from botocore.exceptions import NoCredentialsError

        def nobody(service: str, region: str) -> Any:
            raise NoCredentialsError

        monkeypatch.setattr(infra, "boto3_client", nobody)
        line = "AWS credentials: none found; `aws configure` keeps them, or set AWS_PROFILE"
    before = {path: path.read_text() for path in (output, profile) if path.exists()}
    done = convoy("infra", "connect", tmp_path, "custom-30b-p5", "--output", output)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"convoy: {line}")
    assert {path: path.read_text() for path in (output, profile) if path.exists()} == before


def test_what_needs_no_account_is_refused(tmp_path: Path) -> None:
    line = "cluster.backend = local: needs no account; must be batch or kubernetes to be checked"
    assert_refused(line, "infra", "check", "cpu-smoke")


def test_a_bucket_that_is_not_filled_in_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METAFLOW_HOME", str(tmp_path))
    done = convoy("infra", "check", "custom-30b-p5")
    assert done.exit_code == 2
    assert done.stderr.startswith("convoy: root = s3://YOUR-BUCKET/convoy: YOUR-BUCKET is no bucket")
