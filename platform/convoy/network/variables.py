"""Rules for the network stack's environment variables that are harmful, obsolete or missing for versions or a machine.

The rules are dated facts of `catalog/network_variable_rules.json`; `catalog/nccl_variable_names.json` has the names
that each version of NCCL reads. A rule that needs a version which is not known is reported as depending on it.
"""

import contextlib
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import date
from fnmatch import fnmatchcase
from typing import Literal, get_args

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field, field_validator

from convoy.catalog import load_table
from convoy.catalog.instances import instance
from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError, name_hint

Software = Literal["nccl", "ofi", "libfabric"]
SOFTWARE: dict[Software, str] = {"nccl": "NCCL", "ofi": "aws-ofi-nccl", "libfabric": "libfabric"}

Severity = Literal["harmful", "missing", "obsolete", "unknown"]
"""unknown: NCCL does not read a variable of this name. From the most to the least severe."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

EFA = "efa"
"""Value in a rule's machines for every instance type with an Elastic Fabric Adapter."""

OTHERS = r"NCCL_(TESTS|OFI|SHARP|IBEXT|FASTRAK|GPUDIRECTTCPX|DYNAMIC_CHUNK_SIZE|SOCKET_DYNAMIC)\w*|NCCL_VERSION"
"""Names that nccl-tests, plugins and container images use, and NCCL does not."""


class Stack(FrozenConfig):
    """Versions of the software below PyTorch, and the machine; None: not known."""

    nccl: str | None = None
    ofi: str | None = None
    """aws-ofi-nccl."""
    libfabric: str | None = None
    instance: str | None = None
    """EC2 instance type of the catalog."""

    @field_validator("nccl", "ofi", "libfabric", mode="after")
    @classmethod
    def _check_version(cls, text: str | None) -> str | None:
        return None if text is None else plain_version(text)

    @field_validator("instance", mode="after")
    @classmethod
    def _check_instance(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                instance(name)
            except ConfigError as error:
                raise ValueError(str(error).removeprefix("cluster.instance_type = ")) from None
        return name

    def version(self, software: Software) -> str | None:
        """Version of a piece of software; None: not known."""
        version: str | None = getattr(self, software)
        return version


class Rule(FrozenConfig):
    """A rule: the conditions under which a variable is harmful, obsolete or missing, and the reason."""

    variable: str
    """Its name, or a pattern such as `RDMAV_*`."""
    severity: Literal["harmful", "missing", "obsolete"]
    wanted: str | None = None
    """The value that a missing variable needs."""
    replacement: str | None = None
    """The variable that replaces an obsolete one and takes its value."""
    values: tuple[str, ...] = ()
    """Patterns of the values to which the rule applies, in lower case; none: any value. For a missing variable: values
    that are as good as the wanted one."""
    unless: tuple[str, ...] = ()
    """Patterns of values to which the rule does not apply."""
    versions: dict[Software, str] = {}
    """Version ranges of the software to which the rule applies, in the notation of pip."""
    machines: tuple[str, ...] = ()
    """Patterns of EC2 types, or `efa`; none: any machine."""
    reason: str
    source: str
    """URL."""
    date: date
    """Day on which the source was read."""

    def matches(self, environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
        """Names and values of the variables to which the rule applies. A missing one has the value None, or another
        value than the wanted one."""
        if self.wanted is not None:
            value = environ.get(self.variable)
            fine = value is not None and value.strip().lower() in (self.wanted, *self.values)
            return [] if fine else [(self.variable, value)]
        names = (name for name in environ if fnmatchcase(name, self.variable))
        return [(name, environ[name]) for name in sorted(names) if self._concerns(environ[name].strip().lower())]

    def _concerns(self, value: str) -> bool:
        wanted = not self.values or any(fnmatchcase(value, pattern) for pattern in self.values)
        return wanted and not any(fnmatchcase(value, pattern) for pattern in self.unless)

    def depends_on(self, stack: Stack) -> tuple[str, ...] | None:
        """The unknown facts on which it depends whether the rule applies; empty: it applies; None: it does not."""
        unknown = []
        for software, wanted in self.versions.items():
            known = stack.version(software)
            if known is None:
                unknown.append(f"{SOFTWARE[software]} {wanted}")
            elif Version(known) not in SpecifierSet(wanted):
                return None
        if self.machines and stack.instance is None:
            machines = ", ".join("a machine with EFA" if name == EFA else name for name in self.machines)
            unknown.append(f"on {machines}")
        elif stack.instance is not None and self.machines and not self._concerns_machine(stack.instance):
            return None
        return tuple(unknown)

    def _concerns_machine(self, name: str) -> bool:
        has_efa = instance(name).efa_interfaces > 0
        return any(has_efa if pattern == EFA else fnmatchcase(name, pattern) for pattern in self.machines)


class VariableFinding(FrozenConfig):
    """A problem of one variable."""

    variable: str
    value: str | None
    """Value of the variable; None: it is not set."""
    severity: Severity
    depends_on: tuple[str, ...]
    """The unknown facts that must be true for the finding to hold; empty: it holds."""
    reason: str
    fix: str
    """The shell command that fixes it."""
    source: str
    """URL."""
    date: date
    """Day on which the source was read."""


class EnvironmentReport(FrozenConfig):
    """The problems of an environment's variables."""

    stack: Stack
    findings: tuple[VariableFinding, ...] = Field(default=())
    """The most severe first."""

    @property
    def harmful(self) -> bool:
        """Whether any variable is certain to be harmful."""
        return any(finding.severity == "harmful" and not finding.depends_on for finding in self.findings)


def network_rules() -> list[Rule]:
    """All rules of the catalog."""
    table = load_table("network_variable_rules")
    return [Rule.model_validate({**row, "source": table["sources"][row["source"]]}) for row in table["rules"]]


def check_variables(environ: Mapping[str, str], stack: Stack) -> EnvironmentReport:
    """Find the harmful, obsolete, missing and unknown variables of an environment.

    Only the most severe of the certain findings about a variable is reported. A finding that depends on unknown facts
    is reported unless another finding about the variable is certain.
    """
    found = [*_rule_findings(environ, stack), *_unknown_names(environ, stack)]
    found.sort(key=lambda finding: (bool(finding.depends_on), SEVERITIES.index(finding.severity), finding.variable))
    reported: list[VariableFinding] = []
    certain: set[str] = set()
    for finding in found:
        if finding.variable not in certain:
            reported.append(finding)
        if not finding.depends_on:
            certain.add(finding.variable)
    return EnvironmentReport(stack=stack, findings=tuple(reported))


def _rule_findings(environ: Mapping[str, str], stack: Stack) -> Iterable[VariableFinding]:
    for rule in network_rules():
        unknown = rule.depends_on(stack)
        if unknown is None:
            continue
        for name, value in rule.matches(environ):
            yield VariableFinding(
                variable=name, value=value, severity=rule.severity, depends_on=unknown, reason=rule.reason,
                fix=_fix(name, rule), source=rule.source, date=rule.date,
            )  # fmt: skip


def _fix(name: str, rule: Rule) -> str:
    if rule.wanted is not None:
        return f"export {name}={shlex.quote(rule.wanted)}"
    if rule.replacement is not None:
        return f'export {rule.replacement}="${name}"; unset {name}'
    return f"unset {name}"


def _unknown_names(environ: Mapping[str, str], stack: Stack) -> Iterable[VariableFinding]:
    """Names that begin with NCCL_ and that NCCL does not read; those that a rule explains are left out."""
    table = load_table("nccl_variable_names")
    explained = [rule.variable for rule in network_rules()]
    for name, value in sorted(environ.items()):
        if not name.startswith("NCCL_") or re.fullmatch(OTHERS, name):
            continue
        if any(fnmatchcase(name, pattern) for pattern in explained):
            continue
        reason = _why_unread(name, stack.nccl, table["variables"], table["first"], table["last"])
        if reason is not None:
            yield VariableFinding(
                variable=name, value=value, severity="unknown", depends_on=(), reason=reason, fix=f"unset {name}",
                source=table["source"], date=table["date"],
            )  # fmt: skip


def _why_unread(name: str, nccl: str | None, spans: Mapping[str, list[str]], first: str, last: str) -> str | None:
    """The reason why NCCL does not read a variable; None: it does, or the catalog does not cover the version."""
    if name not in spans:
        hint = name_hint(name, spans)
        return f"NCCL does not read it; {hint if hint.startswith('did') else 'a plugin of your own may'}"
    if nccl is None or not Version(first) <= Version(nccl) <= Version(last):
        return None
    since, until = (Version(version) for version in spans[name])
    if since <= Version(nccl) <= until:
        return None
    return f"NCCL {nccl} does not read it; {since} to {until} do."


def plain_version(text: str) -> str:
    """The numbers of a version: `2.27.7-1+cuda12.8`, `v1.16.3-aws` and `1.22.0amzn1.0` are 2.27.7, 1.16.3 and 1.22.0.
    Raises ValueError if there are fewer than two."""
    match = re.fullmatch(r"v?(\d{1,6}(?:\.\d{1,6}){1,3})(?:[-+~a-z].*)?", text.strip())
    if match is None:
        raise ValueError(f"{text}: must be a version such as 2.27.7")
    return match[1]


def parse_environment(text: str, name: str) -> dict[str, str]:
    """The variables that a file sets: lines `NAME=VALUE` as `env` prints them, or a shell script's.

    name: of the file, for errors. Lines of other kinds are passed over, and `unset NAME` is obeyed. Nothing is
    expanded: `$HOME` stays as it is. Raises ConfigError if no line sets a variable, or if a quotation does not end.
    """
    found: dict[str, str] = {}
    assignments = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = re.match(r"\s*(export|declare -x|typeset -x|unset)\s+(.*)", line)
        if words is None:
            pairs = [_env_line(line)]
        elif words[1] == "unset":
            for gone in _words(words[2], f"{name}: line {number}"):
                found.pop(gone, None)
            continue
        else:
            pairs = [_assignment(word) for word in _words(words[2], f"{name}: line {number}")]
        for pair in filter(None, pairs):
            found[pair[0]] = pair[1]
            assignments += 1
    if not assignments:
        raise ConfigError(f"{name}: no line sets a variable; lines must be NAME=VALUE or export NAME=VALUE")
    return found


def _env_line(line: str) -> tuple[str, str] | None:
    """A line of `env`, whose value extends to its end, or an assignment of a shell script."""
    pair = _assignment(line.strip())
    if pair is None:
        return None
    name, value = pair
    if value.startswith(("'", '"')):
        with contextlib.suppress(ValueError):  # env quotes nothing: an apostrophe may be the value's own
            return name, shlex.split(value, comments=True)[0]
    return name, re.split(r"\s+#", value)[0].rstrip()


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        raise ConfigError(f"{where}: a quotation does not end") from None


def _assignment(word: str) -> tuple[str, str] | None:
    match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL)
    return (match[1], match[2]) if match else None
