"""Variables are judged by the versions and the machine that are known, and by nothing else."""

import itertools
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from pydantic import ValidationError

from convoy.catalog import load_table
from convoy.catalog.instances import instance_names
from convoy.config.errors import ConfigError
from convoy.network.variables import (
    EFA,
    Stack,
    VariableFinding,
    check_variables,
    network_rules,
    parse_environment,
    plain_version,
)

NEW = Stack(nccl="2.27.7", ofi="1.16.3", libfabric="2.1.0", instance="p5.48xlarge")
OLD = Stack(nccl="2.10.3", ofi="1.5.0", libfabric="1.17.1", instance="p4d.24xlarge")


def judged(stack: Stack, **environ: str) -> dict[str, str]:
    """Severity by variable, of what is certain."""
    found = check_variables(environ, stack).findings
    return {each.variable: each.severity for each in found if not each.depends_on}


def test_nothing_needs_to_be_set_for_current_versions() -> None:
    assert check_variables({}, NEW).findings == ()


def test_what_old_versions_need_is_obsolete_or_harmful_with_new_ones() -> None:
    preset = {"FI_EFA_USE_DEVICE_RDMA": "1", "FI_PROVIDER": "efa", "NCCL_PROTO": "simple"}
    assert judged(OLD) == dict.fromkeys(preset, "missing")
    assert judged(OLD, **preset) == {}
    assert judged(NEW, **preset) == {
        "NCCL_PROTO": "harmful", "FI_EFA_USE_DEVICE_RDMA": "obsolete", "FI_PROVIDER": "obsolete",
    }  # fmt: skip
    assert judged(NEW.model_copy(update={"instance": "p4d.24xlarge"}), NCCL_PROTO="simple") == {
        "NCCL_PROTO": "obsolete"
    }


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("NCCL_NET", "Socket", "harmful"),
        ("NCCL_NET", "AWS Libfabric", None),
        ("FI_PROVIDER", "tcp", "harmful"),
        ("FI_EFA_USE_DEVICE_RDMA", "off", "harmful"),
        ("RDMAV_HUGEPAGES_SAFE", "1", "harmful"),
        ("NCCL_MIN_NCHANNELS", "16", "harmful"),
        ("NCCL_BUFFSIZE", "8388608", "obsolete"),
        ("NCCL_BUFFSIZE", "4194304", "harmful"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo,veth", None),
        ("NCCL_SOCKET_IFNAME", "lo", "harmful"),
        ("FI_EFA_USE_HUGE_PAGE", "0", None),
        ("NCCL_DEBUG", "INFO", None),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", "obsolete"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", None),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "harmful"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", None),
        ("PATH", "/bin", None),
    ],
)
def test_a_value_is_judged_for_p5_with_current_versions(name: str, value: str, severity: str | None) -> None:
    assert judged(NEW, **{name: value}).get(name) == severity


def test_data_corruption_on_p4d_is_harmful_unless_the_protocol_is_excluded() -> None:
    p4d = Stack(instance="p4d.24xlarge")
    assert judged(p4d, NCCL_PROTO="LL128,Simple") == {"NCCL_PROTO": "harmful"}
    assert judged(p4d, NCCL_PROTO="^LL128") == {}


def test_a_machine_without_rdma_must_not_require_it() -> None:
    assert judged(Stack(instance="g5.48xlarge"), FI_EFA_USE_DEVICE_RDMA="1") == {"FI_EFA_USE_DEVICE_RDMA": "harmful"}


def test_what_depends_on_an_unknown_version_is_reported_as_such_and_is_no_failure() -> None:
    report = check_variables({"NCCL_ALGO": "Ring"}, Stack(ofi="1.16.3"))
    (found,) = [each for each in report.findings if each.variable == "NCCL_ALGO"]
    assert found.depends_on == ("NCCL >=2.21", "on p5.48xlarge, p5e.48xlarge, p5en.48xlarge, p6-b200.48xlarge")
    assert (found.severity, report.harmful) == ("harmful", False)
    assert check_variables({"NCCL_ALGO": "Ring"}, NEW).harmful


def test_a_known_version_outside_of_the_range_settles_it() -> None:
    report = check_variables({"NCCL_ALGO": "Ring"}, Stack(nccl="2.20.5"))
    assert [each for each in report.findings if each.variable == "NCCL_ALGO"] == []


def test_a_misspelt_variable_is_unknown_and_the_right_name_is_suggested() -> None:
    (found,) = check_variables({"NCCL_MIN_CHANNELS": "4"}, NEW).findings
    assert (found.severity, found.reason) == ("unknown", "NCCL does not read it; did you mean NCCL_MIN_NCHANNELS?")


def test_a_variable_of_another_nccl_is_unknown_to_this_one() -> None:
    names = {"NCCL_IB_ADDR_RANGE": "10.0.0.0/8", "NCCL_AGG_CHANNEL_SIZE": "1"}
    found = {each.variable: each.reason for each in check_variables(names, Stack(nccl="2.20.5")).findings}
    assert found["NCCL_IB_ADDR_RANGE"] == "NCCL 2.20.5 does not read it; 2.21.5 to 2.30.7 do."
    assert found["NCCL_AGG_CHANNEL_SIZE"] == "NCCL 2.20.5 does not read it; 2.10.3 to 2.19.4 do."
    assert judged(Stack(nccl="2.99.0"), **names) == {}


def test_names_of_nccl_s_tests_and_plugins_are_not_unknown() -> None:
    assert judged(NEW, NCCL_TESTS_MIN_BW="1", NCCL_SHARP_DISABLE="1", NCCL_VERSION="2.27.7") == {}


def after(environ: dict[str, str], finding: VariableFinding) -> dict[str, str]:
    """The environment once the finding's line was run."""
    changed = dict(environ)
    for line in finding.fix.split(";"):
        words = shlex.split(line)
        if words[0] == "unset":
            changed.pop(words[1])
        else:
            name, _, value = words[1].partition("=")
            changed[name] = changed[value[1:]] if value.startswith("$") else value
    return changed


VERSIONS = {
    "nccl": ["2.10.3", "2.18.3", "2.20.5", "2.27.7"],
    "ofi": ["1.5.0", "1.6.0", "1.7.4", "1.12.1", "1.16.3", "1.20.0"],
    "libfabric": ["1.17.1", "1.18.2", "1.19.1", "2.1.0"],
}
VARIABLES = sorted({rule.variable.replace("*", "FORK_SAFE") for rule in network_rules()})


@given(
    stack=st.builds(Stack, **{name: st.sampled_from(known) for name, known in VERSIONS.items()},
                    instance=st.sampled_from(instance_names())),
    environ=st.dictionaries(st.sampled_from(VARIABLES),
                            st.sampled_from(["0", "1", "simple", "LL", "efa", "Socket", "lo", "8388608"])),
)  # fmt: skip
def test_running_the_fixes_ends_with_nothing_to_fix(stack: Stack, environ: dict[str, str]) -> None:
    for _ in range(60):
        findings = check_variables(environ, stack).findings
        if not findings:
            return
        assert all(not each.depends_on for each in findings)
        environ = after(environ, findings[0])
    pytest.fail(f"{findings[0]} comes back")


def test_each_rule_can_apply_and_says_why_and_since_when() -> None:
    known = load_table("nccl_variable_names")["variables"]
    machines = instance_names()
    for rule in network_rules():
        assert rule.source.startswith("https://")
        assert rule.reason.endswith(".")
        assert (rule.wanted is not None) == (rule.severity == "missing")
        assert not rule.machines or any(rule.depends_on(Stack(instance=name)) is not None for name in machines)
        assert all(pattern == EFA or re.search(r"\d", pattern) for pattern in rule.machines)
        assert all(SpecifierSet(text) for text in rule.versions.values())
        assert not rule.variable.startswith("NCCL_") or rule.severity == "obsolete" or rule.variable in known


def test_every_span_of_names_lies_within_the_versions_that_were_read() -> None:
    table = load_table("nccl_variable_names")
    order = [tuple(map(int, version.split("."))) for version in itertools.chain(*table["variables"].values())]
    assert min(order) == tuple(map(int, table["first"].split(".")))
    assert max(order) == tuple(map(int, table["last"].split(".")))


@pytest.mark.parametrize(
    ("text", "plain"),
    [("2.27.7-1+cuda12.8", "2.27.7"), ("v1.16.3-aws", "1.16.3"), ("1.22.0amzn1.0", "1.22.0"), ("1.7", "1.7")],
)
def test_versions_are_taken_as_their_packages_write_them(text: str, plain: str) -> None:
    assert plain_version(text) == plain


@pytest.mark.parametrize("text", ["", "2", "new", "2.x", "2..7", "2.27.7 and more", "9" * 5000 + ".1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="must be a version such as"):
        Stack(nccl=text)


def test_a_file_is_read_as_env_prints_it_and_as_a_shell_script_writes_it() -> None:
    text = """#!/bin/bash
# export NCCL_ALGO=Ring
set -e
export NCCL_DEBUG=INFO   # noisy
export FI_PROVIDER="efa" NCCL_PROTO='simple'
declare -x GLOO_SOCKET_IFNAME="eth0"
NCCL_NET=AWS Libfabric
NCCL_SOCKET_IFNAME="en"
OWNER=it's mine
export OTHER
export NCCL_BUFFSIZE=1
unset NCCL_BUFFSIZE
torchrun --nnodes=2 train.py
"""
    assert parse_environment(text, "job.sh") == {
        "NCCL_DEBUG": "INFO", "FI_PROVIDER": "efa", "NCCL_PROTO": "simple", "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_NET": "AWS Libfabric", "NCCL_SOCKET_IFNAME": "en", "OWNER": "it's mine",
    }  # fmt: skip


@given(st.dictionaries(st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,9}\Z"), st.from_regex(r"\A[a-z0-9,^:/= ]{1,9}[a-z]\Z"),
                       min_size=1))  # fmt: skip
def test_quoted_exports_read_back_equal(environ: dict[str, str]) -> None:
    text = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items())
    assert parse_environment(text, "f") == environ


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "f: no line sets a variable; lines must be NAME=VALUE or export NAME=VALUE"),
        ("\x7fELF\x02", "f: no line sets a variable; lines must be NAME=VALUE or export NAME=VALUE"),
        ("A=1\nexport B='x", "f: line 2: a quotation does not end"),
    ],
)
def test_a_file_that_sets_nothing_is_refused(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        parse_environment(text, "f")
