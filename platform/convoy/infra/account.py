"""What a configuration needs of an AWS account whatever its backend: credentials, bucket, quota, budget, image and
metadata service."""

import http.client
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from convoy.catalog.aws_prices import Client
from convoy.catalog.instances import Instance, instance
from convoy.config.cluster import ClusterConfig
from convoy.config.errors import ConfigError, one_line
from convoy.config.run import RunConfig
from convoy.infra.findings import Answer, Check, answer_or_none, judge

Json = dict[str, Any]

GLOBAL_REGION = "us-east-1"
"""The region of services that have no regions of their own, such as Budgets."""

ROLE = re.compile(r"arn:[\w-]+:iam::(\d{12}):role/(?:.*/)?([^/]+)")
"""The account and the name of a role."""

_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([\w-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(sha256:\w+))?")

SET_PROFILE = "set METAFLOW_PROFILE to the profile that `convoy infra connect` wrote"

_LOCAL = re.compile(r"https?://(localhost|127\.)")


@dataclass(frozen=True)
class Account:
    """What is checked, and how AWS is asked."""

    config: RunConfig
    settings: Mapping[str, str]
    """Metaflow's, by their names without `METAFLOW_`."""
    client: Client
    number: str
    """The AWS account's number."""
    tunnel: str
    """The command that reaches the metadata service, or where it is found."""

    @property
    def cluster(self) -> ClusterConfig:
        return self.config.cluster

    @property
    def machine(self) -> Instance:
        """The type of the gang's machines."""
        return instance(str(self.cluster.instance_type))

    def aws(self, service: str, region: str | None = None) -> Any:
        """A client, in the region of the configuration unless one is named."""
        return self.client(service, region or self.cluster.region)

    @property
    def image(self) -> str | None:
        """The image of the gang's tasks, as Metaflow chooses it."""
        own = f"{self.cluster.backend.upper()}_CONTAINER_IMAGE"
        return self.cluster.image or self.settings.get(own) or self.settings.get("DEFAULT_CONTAINER_IMAGE")

    @cached_property
    def bucket(self) -> str:
        """That of the root, or of Metaflow's artifacts where the root is a mounted folder; empty: there is none."""
        places = (self.config.root or "", self.settings.get("DATASTORE_SYSROOT_S3", ""))
        uri = next((place for place in places if place.startswith("s3://")), "")
        return uri.removeprefix("s3://").partition("/")[0]

    @cached_property
    def bucket_region(self) -> str | None:
        """None: there is no such bucket."""
        if not self.bucket:
            return None
        location = answer_or_none(lambda: self.aws("s3").get_bucket_location(Bucket=self.bucket), "NoSuchBucket", "404")
        return None if location is None else location.get("LocationConstraint") or GLOBAL_REGION


def check_credentials(client: Client, region: str, expected: str | None = None) -> str:
    """The account whose credentials these are. expected: the account that it must be, if that is known.

    Raises ConfigError.
    """
    try:
        account: str = client("sts", region).get_caller_identity()["Account"]
    except NoCredentialsError:
        raise ConfigError("AWS credentials: none found; `aws configure` keeps them, or set AWS_PROFILE") from None
    except (BotoCoreError, ClientError) as error:
        raise ConfigError(f"AWS credentials: {one_line(error)}") from None
    if expected is not None and account != expected:
        raise ConfigError(f"AWS credentials: belong to account {account}; must be {expected}; set AWS_PROFILE")
    return account


def check_region(default: str | None, wanted: str) -> None:
    """Raises ConfigError if AWS's clients, and so Metaflow, would use another region. default: None if none is set."""
    if default != wanted:
        seen = "not set" if default is None else default
        raise ConfigError(f"AWS region: {seen}; must be {wanted}, as cluster.region; set AWS_DEFAULT_REGION")


def bucket(account: Account) -> Answer:
    wanted = f"a bucket in {account.cluster.region}, that of `root`"
    if account.bucket_region is None:
        name = f"no bucket {account.bucket}" if account.bucket else "root is no s3:// prefix"
        return Answer("missing", name, wanted, "apply the stack, or set root to a bucket that exists")
    seen = f"s3://{account.bucket} in {account.bucket_region}"
    return judge(
        account.bucket_region == account.cluster.region, seen, wanted, "use a bucket and machines of one region"
    )


def bucket_tls(account: Account) -> Answer | None:
    if account.bucket_region is None:
        return None
    answer = answer_or_none(
        lambda: account.aws("s3").get_bucket_policy(Bucket=account.bucket), "NoSuchBucketPolicy", "404"
    )
    good = answer is not None and requires_tls(json.loads(answer["Policy"]), account.bucket)
    seen = "refused without TLS" if good else "no policy" if answer is None else "allowed without TLS by its policy"
    return judge(good, seen, "a policy that denies s3:* without TLS", "apply the stack again, or add the policy")


def requires_tls(policy: Json, bucket: str) -> bool:
    """Whether a bucket's policy denies everybody every request without TLS."""
    arn = f":s3:::{bucket}"
    return any(
        statement.get("Effect") == "Deny"
        and statement.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        and {"s3:*", "*"} & set(as_list(statement.get("Action")))
        and _is_without_tls(statement.get("Condition"))
        and all(
            any(resource == "*" or resource.endswith(end) for resource in as_list(statement.get("Resource")))
            for end in (arn, f"{arn}/*")
        )
        for statement in as_list(policy.get("Statement"))
    )


def _is_without_tls(condition: Any) -> bool:
    """Whether this is all that the condition asks: with a further key, requests without TLS could pass."""
    values = condition.get("Bool", {}) if isinstance(condition, dict) and len(condition) == 1 else {}
    return values.keys() == {"aws:SecureTransport"} and [
        str(each).lower() for each in as_list(values["aws:SecureTransport"])
    ] == ["false"]


def as_list(value: Any) -> list[Any]:
    """Policies hold one value where they could hold several."""
    return value if isinstance(value, list) else [] if value is None else [value]


def bucket_encryption(account: Account) -> Answer | None:
    if account.bucket_region is None:
        return None
    answer = answer_or_none(
        lambda: account.aws("s3").get_bucket_encryption(Bucket=account.bucket),
        "ServerSideEncryptionConfigurationNotFoundError",
    )
    rules = answer["ServerSideEncryptionConfiguration"]["Rules"] if answer else []
    seen = next((rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] for rule in rules), "none")
    return judge(seen.startswith("aws:kms"), seen, "aws:kms", "apply the stack again, or set the default encryption")


def bucket_public_access(account: Account) -> Answer | None:
    if account.bucket_region is None:
        return None
    answer = answer_or_none(
        lambda: account.aws("s3").get_public_access_block(Bucket=account.bucket), "NoSuchPublicAccessBlockConfiguration"
    )
    blocks = answer["PublicAccessBlockConfiguration"] if answer else {}
    names = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    open_ways = [name for name in names if not blocks.get(name)]
    seen = f"{', '.join(open_ways)} not set" if open_ways else "blocked"
    return judge(not open_ways, seen, "all four ways of public access blocked", "apply the stack again, or block them")


def quota(account: Account) -> Answer:
    """Quotas are named by letters of families, such as `P`, or by a generation of one, such as `P5`."""
    cluster, machine = account.cluster, account.machine
    if cluster.market == "capacity_block":
        return Answer("ok", "instances in a capacity block do not count against quotas")
    needed = cluster.nodes * machine.vcpus
    pages = account.aws("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
    quotas = {quota["QuotaName"]: quota["Value"] for page in pages for quota in page["Quotas"]}
    kind = r"All (.+) Spot Instance Requests" if cluster.market == "spot" else r"Running On-Demand (.+) instances"
    name = quota_name(machine.name, kind, quotas)
    wanted = f"at least {needed} vCPUs, {cluster.nodes} {machine.name} of {machine.vcpus}"
    if name is None:
        seen = f"Service Quotas lists no quota of {machine.name} for {cluster.market}"
        return Answer("missing", seen, wanted, "ask AWS support which quota counts")
    fix = f"request an increase of {name} in Service Quotas"
    return judge(quotas[name] >= needed, f"{name}: {quotas[name]:g} vCPUs", wanted, fix)


def quota_name(instance_type: str, kind: str, names: Sequence[str] | Mapping[str, float]) -> str | None:
    """The quota that counts instances of this type. kind: a pattern whose group has the families that it counts."""
    found = re.match(r"([a-z]+)(\d*)", instance_type)
    assert found is not None
    letters, generation = found[1].upper(), found[2]
    for wanted in (letters + generation, letters):
        for name in names:
            counted = re.fullmatch(kind, name)
            if counted and wanted in re.findall(r"\b[A-Z]+\d*\b", counted[1]):
                return name
    return None


def budget(account: Account) -> Answer:
    budgets, number = account.aws("budgets", GLOBAL_REGION), account.number
    wanted = "a cost budget that notifies somebody"
    for page in budgets.get_paginator("describe_budgets").paginate(AccountId=number):
        for row in page.get("Budgets", ()):
            name, limit = row["BudgetName"], row.get("BudgetLimit", {})
            notifications = budgets.describe_notifications_for_budget(AccountId=number, BudgetName=name)
            if row["BudgetType"] == "COST" and notifications.get("Notifications"):
                return Answer("ok", f"{name}: {limit.get('Amount', '?')} {limit.get('Unit', '')}".rstrip(), wanted)
    return Answer("missing", "no such budget", wanted, "apply the stack, or create one in AWS Budgets")


def image(account: Account) -> Answer:
    uri, wanted = account.image, "an image with torch, NCCL and the EFA plugin"
    if uri is None:
        return Answer("missing", "no image is named", wanted, "set cluster.image")
    found = _ECR.fullmatch(uri)
    if found is None or found[1] != account.number:
        seen = f"{uri}: not this account's, so not looked up"
        return Answer("warning", seen, wanted, "check yourself that it exists")
    registry, region, repository, tag, digest = found.groups()
    which = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    answer = answer_or_none(
        lambda: account.aws("ecr", region).describe_images(
            registryId=registry, repositoryName=repository, imageIds=[which]
        ),
        "ImageNotFoundException",
        "RepositoryNotFoundException",
    )
    seen = uri if answer else f"{uri}: does not exist"
    return judge(answer is not None, seen, wanted, "build it from infra/image and push it, or set cluster.image")


def datastore(account: Account) -> Answer:
    """Metaflow's: tasks read the flow's code from there."""
    kind, root = account.settings.get("DEFAULT_DATASTORE", "local"), account.settings.get("DATASTORE_SYSROOT_S3")
    seen = f"{kind}, {root or 'METAFLOW_DATASTORE_SYSROOT_S3 is not set'}"
    return judge(kind == "s3" and bool(root), seen, "s3, and its root", SET_PROFILE)


def metadata_service(account: Account) -> Answer:
    """Metaflow's. Tasks reach it by another address than this machine, where that one is a tunnel's end."""
    url, inside = account.settings.get("SERVICE_URL"), account.settings.get("SERVICE_INTERNAL_URL")
    wanted = "a service that answers here, and that tasks reach"
    if not url:
        return Answer("missing", "METAFLOW_SERVICE_URL is not set", wanted, SET_PROFILE)
    if (kind := account.settings.get("DEFAULT_METADATA", "local")) != "service":
        return Answer("missing", f"METAFLOW_DEFAULT_METADATA = {kind}", "service", SET_PROFILE)
    if _LOCAL.match(url) and not inside:
        fix = "set it to the address of the service's load balancer"
        return Answer("missing", "METAFLOW_SERVICE_INTERNAL_URL is not set", wanted, fix)
    problem = _ping(f"{url.rstrip('/')}/ping")
    return judge(problem is None, f"{url}: {problem or 'answers'}", wanted, f"open the tunnel: {account.tunnel}")


def _ping(url: str) -> str | None:
    """Why it does not answer; None if it does."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return None if answer.status == 200 else f"answers with status {answer.status}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"does not answer ({getattr(error, 'reason', error)})"


ACCOUNT_CHECKS: tuple[Check[Account], ...] = (
    Check("image", image),
    Check("datastore", datastore),
    Check("metadata service", metadata_service),
    Check("bucket", bucket),
    Check("bucket TLS", bucket_tls),
    Check("bucket encryption", bucket_encryption),
    Check("bucket public access", bucket_public_access),
    Check("quota", quota),
    Check("budget", budget),
)
"""Checks of every backend."""
