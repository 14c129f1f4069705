"""Decides from the policies alone whether AWS would allow a request.

The rules are those of "Policy evaluation logic" and "IAM JSON policy elements reference" in AWS's IAM user guide, for
requests within one account: an explicit deny wins; else an identity or a resource policy must allow. Boundaries and the
policies of sessions and organisations are left out: the stacks have none. Whatever a policy contains that is not known
here raises ValueError, so that nothing is passed over.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Policy = Mapping[str, Any]
Decision = Literal["allow", "explicit deny", "implicit deny"]

ELEMENTS = {"Sid", "Effect", "Principal", "Action", "NotAction", "Resource", "NotResource", "Condition"}


@dataclass(frozen=True)
class Request:
    """What AWS is asked to allow."""

    action: str
    resource: str
    """ARN, or `*` for an action that has no resource."""
    context: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Condition keys and their values. The value of a multivalued key is a tuple."""
    principal: str = ""
    """ARN of the role or user, or the name of a service."""


def decide(request: Request, identity: Iterable[Policy], resource: Iterable[Policy] = ()) -> Decision:
    """identity: the policies of the principal. resource: those of the resource, such as a bucket policy."""
    effects = {s["Effect"] for policy in identity for s in _statements(policy, False) if _applies(s, request)}
    for policy in resource:
        for statement in _statements(policy, True):
            if _names_principal(statement, request.principal) and _applies(statement, request):
                effects.add(statement["Effect"])
    if "Deny" in effects:
        return "explicit deny"
    return "allow" if "Allow" in effects else "implicit deny"


def _statements(policy: Policy, of_resource: bool) -> list[dict[str, Any]]:
    if policy.get("Version") != "2012-10-17":  # the older version knows no policy variables
        raise ValueError(f"Version = {policy.get('Version')!r}: must be '2012-10-17'")
    statements = _as_list(policy["Statement"])
    for statement in statements:
        if unknown := statement.keys() - ELEMENTS:
            raise ValueError(f"statement elements {sorted(unknown)} are not known")
        if statement["Effect"] not in ("Allow", "Deny"):
            raise ValueError(f"Effect = {statement['Effect']!r}: must be Allow or Deny")
        if ("Principal" in statement) != of_resource:
            raise ValueError("a statement names a principal if and only if its policy belongs to a resource")
    return statements


def _names_principal(statement: Mapping[str, Any], principal: str) -> bool:
    named = statement["Principal"]
    if named == "*":
        return True
    if unknown := named.keys() - {"AWS", "Service"}:
        raise ValueError(f"principals of kind {sorted(unknown)} are not known")
    names = [name for kind in named.values() for name in _as_list(kind)]
    if principal in names or "*" in _as_list(named.get("AWS", [])):
        return True
    # A deny of the account reaches all in it. An allow of the account leaves it to their identity policies.
    account = principal.split(":")[4] if principal.startswith("arn:") else ""
    return statement["Effect"] == "Deny" and bool({account, f"arn:aws:iam::{account}:root"} & {*names})


def _applies(statement: Mapping[str, Any], request: Request) -> bool:
    conditions = [
        _condition_holds(name, key, [_as_text(each) for each in _as_list(wanted)], request)
        for name, keys in statement.get("Condition", {}).items()
        for key, wanted in keys.items()
    ]
    return (
        _lists(statement, "Action", lambda pattern: _like(request.action.lower(), pattern.lower(), request))
        and _lists(statement, "Resource", lambda pattern: _matches(request.resource, pattern, request, WITHIN_PART))
        and all(conditions)
    )


def _lists(statement: Mapping[str, Any], element: str, matches: Callable[[str], bool]) -> bool:
    """Whether the element, or its negation, matches."""
    if element == "Resource" and "Principal" in statement and not {"Resource", "NotResource"} & statement.keys():
        return True  # a role's trust policy, which has the role itself as its resource
    if (element in statement) == (f"Not{element}" in statement):
        raise ValueError(f"a statement has either {element} or Not{element}")
    if element in statement:
        return any(map(matches, _as_list(statement[element])))
    patterns = _as_list(statement[f"Not{element}"])
    _refuse_variables(patterns, f"Not{element}")
    return not any(map(matches, patterns))


def _refuse_variables(patterns: Iterable[str], where: str) -> None:
    """In a negation: AWS does not document what one without a value would mean there."""
    if any("${" in pattern for pattern in patterns):
        raise ValueError(f"policy variables in {where} are not known")


# What `*`, `*` before a colon or at the end, and `?` stand for. In the ARN of a resource `*` passes a colon only as the
# last character of a part.
LITERAL, ANYTHING, WITHIN_PART = (r"\*", r"\*", r"\?"), (".*", ".*", "."), ("[^:]*", ".*", "[^:]")


def _matches(value: str, pattern: str, request: Request, wildcards: tuple[str, str, str]) -> bool:
    """Whether the whole value matches. A policy variable, such as `${aws:username}`, has its value; without, nothing
    matches."""
    (star, last_star, question_mark), expression = wildcards, ""
    for token in re.finditer(r"\$\{(?P<key>[^}]*)\}|(?P<last>\*(?=:|$))|(?P<star>\*)|(?P<one>\?)|.", pattern, re.S):
        if token["key"] is not None:
            text = _variable_value(token["key"], request)
            if text is None:
                return False
            expression += re.escape(text)
        elif token["last"] or token["star"]:
            expression += last_star if token["last"] else star
        else:
            expression += question_mark if token["one"] else re.escape(token[0])
    return re.fullmatch(expression, value, re.DOTALL) is not None


def _variable_value(variable: str, request: Request) -> str | None:
    """Of a key with one value. A wildcard or dollar stands for itself."""
    if "," in variable:
        raise ValueError(f"${{{variable}}}: a default of a policy variable is not known")
    values = (variable,) if variable in ("*", "?", "$") else _context_values(variable, request)
    return values[0] if values is not None and len(values) == 1 else None


def _context_values(key: str, request: Request) -> tuple[str, ...] | None:
    """None: the request has no such key. Keys are compared without regard to case."""
    for name, value in request.context.items():
        if name.lower() == key.lower():
            return (value,) if isinstance(value, str) else value
    return None


def _like(value: str, wanted: str, request: Request) -> bool:
    return _matches(value, wanted, request, ANYTHING)


def _arn_like(value: str, wanted: str, request: Request) -> bool:
    """Each of the six parts by itself; the colon of a policy variable divides nothing."""
    parts, patterns = value.split(":", 5), re.split(r":(?![^{]*\})", wanted, maxsplit=5)
    return len(parts) == len(patterns) == 6 and all(_like(v, w, request) for v, w in zip(parts, patterns, strict=True))


OPERATORS: dict[str, Callable[[str, str, Request], bool]] = {
    "StringEquals": lambda value, wanted, request: _matches(value, wanted, request, LITERAL),
    "StringLike": _like,
    "ArnEquals": _arn_like,
    "ArnLike": _arn_like,
    "Bool": lambda value, wanted, _: value.lower() == wanted.lower(),
    "NumericEquals": lambda value, wanted, _: float(value) == float(wanted),
    "NumericLessThan": lambda value, wanted, _: float(value) < float(wanted),
    "NumericLessThanEquals": lambda value, wanted, _: float(value) <= float(wanted),
    "NumericGreaterThan": lambda value, wanted, _: float(value) > float(wanted),
    "NumericGreaterThanEquals": lambda value, wanted, _: float(value) >= float(wanted),
}
"""By name: whether a value of the request matches one of the policy."""

NEGATED = {"StringNotEquals", "StringNotLike", "ArnNotEquals", "ArnNotLike", "NumericNotEquals"}


def _condition_holds(operator: str, key: str, wanted: list[str], request: Request) -> bool:
    """wanted: one of them is enough; for a negated operator, none may match."""
    values = _context_values(key, request)
    if operator == "Null":
        return wanted == [_as_text(values is None)]
    qualifier, _, name = operator.rpartition(":")
    base = name.removesuffix("IfExists")
    negated = base in NEGATED
    compare = OPERATORS.get(base.replace("Not", "") if negated else base)
    if compare is None or qualifier not in ("", "ForAllValues", "ForAnyValue"):
        raise ValueError(f"the condition operator {operator} is not known")
    if negated:
        _refuse_variables(wanted, operator)
    held = [any(compare(value, each, request) for each in wanted) != negated for value in values or ()]
    if qualifier:  # without the key, IfExists or not, true for all values and false for any value
        return all(held) if qualifier == "ForAllValues" else any(held)
    if values is None:
        return negated or name.endswith("IfExists")
    if len(held) != 1:
        raise ValueError(f"{key} has {len(held)} values, for which {operator} needs ForAllValues or ForAnyValue")
    return held[0]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_text(value: Any) -> str:
    """As IAM reads a boolean or a number that is not in quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
