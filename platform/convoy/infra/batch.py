"""What a configuration needs of AWS Batch."""

import base64
import email
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convoy.catalog.instances import Interface
from convoy.infra.account import ACCOUNT_CHECKS, ROLE, SET_PROFILE, Json, as_list
from convoy.infra.findings import Answer, Check, answer_or_none, judge
from convoy.infra.machines import (
    MACHINE_CHECKS,
    MachineAccount,
    Machines,
    find_placement_group,
    find_security_groups,
    find_subnets,
    reaches_itself,
)

MARKETS = {"on_demand": "on-demand", "reserved": "on-demand", "capacity_block": "capacity-block"}
"""The `MarketType` of a launch template, `on-demand` where it names none."""

ALLOCATION = ("BEST_FIT", "BEST_FIT_PROGRESSIVE")
"""Strategies that start instances on demand."""

TASKS = "ecs-tasks.amazonaws.com"
"""The service that assumes a job role."""

_UNLIMITED = re.compile(
    rb"--default-ulimit[= ]memlock=-1(:-1)?[\s\"']"
    rb'|"memlock"\s*:\s*\{(?=[^}]*"Hard"\s*:\s*-1\b)(?=[^}]*"Soft"\s*:\s*-1\b)'
)
"""The Docker daemon's default, as one of its options and in daemon.json."""

MISSING_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException",
                    "InvalidLaunchTemplateId.VersionNotFound", "InvalidLaunchTemplateId.Malformed")  # fmt: skip


@dataclass(frozen=True)
class BatchAccount(MachineAccount):
    """What Batch says; each question is asked only once."""

    @property
    def queue_name(self) -> str | None:
        """The gang's queue, as Metaflow chooses it."""
        return self.cluster.queue or self.settings.get("BATCH_JOB_QUEUE")

    @cached_property
    def queue(self) -> Json | None:
        if self.queue_name is None:
            return None
        queues: list[Json] = self.aws("batch").describe_job_queues(jobQueues=[self.queue_name])["jobQueues"]
        return next(iter(queues), None)

    @cached_property
    def environment(self) -> Json | None:
        """The queue's compute environment that has the type, else its first one."""
        if self.queue is None:
            return None
        order = sorted(self.queue["computeEnvironmentOrder"], key=lambda each: each["order"])
        names = [each["computeEnvironment"] for each in order]
        found: list[Json] = self.aws("batch").describe_compute_environments(computeEnvironments=names)[
            "computeEnvironments"
        ]
        with_type = (each for each in found if self.machine.name in _compute_resources(each).get("instanceTypes", ()))
        return next(with_type, next(iter(found), None))

    @property
    def resources(self) -> Json:
        """What the environment says of its machines."""
        return _compute_resources(self.environment) if self.environment else {}

    @cached_property
    def template(self) -> Json | None:
        """The version of the launch template that the environment uses."""
        named: Json = self.resources.get("launchTemplate") or {}
        which = {f"L{key[1:]}": named[key] for key in ("launchTemplateId", "launchTemplateName") if named.get(key)}
        if not which:
            return None
        versions = [named.get("version") or "$Default"]
        answer = answer_or_none(
            lambda: self.aws("ec2").describe_launch_template_versions(**which, Versions=versions), *MISSING_TEMPLATE
        )
        found = answer["LaunchTemplateVersions"] if answer else []
        return found[0] if found else None

    @cached_property
    def machines(self) -> Machines | None:
        if self.template is None:
            return None
        data: Json = self.template["LaunchTemplateData"]
        options, group = data.get("MetadataOptions", {}), self.resources.get("placementGroup")
        group = group or data.get("Placement", {}).get("GroupName")
        reserved = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
        return Machines(
            where=f"launch template {self.template['LaunchTemplateName']}",
            subnets=find_subnets(self, {"subnet-id": self.resources.get("subnets", [])}),
            security_groups=find_security_groups(self, {"group-id": interface_groups(data, self.resources)}),
            interfaces=template_interfaces(data),
            placement_group=find_placement_group(self, GroupNames=[group]) if group else None,
            reservation=reserved.get("CapacityReservationId"),
            metadata_enabled=options.get("HttpEndpoint", "enabled") == "enabled",
            hop_limit=options.get("HttpPutResponseHopLimit"),
            tokens=options.get("HttpTokens"),
        )


def _compute_resources(environment: Json) -> Json:
    return environment.get("computeResources") or {}


def template_interfaces(data: Json) -> frozenset[Interface]:
    """Without any that are named, EC2 gives a machine one for IP."""
    named = data.get("NetworkInterfaces") or [{}]
    return frozenset(
        Interface(each.get("NetworkCardIndex", 0), each.get("DeviceIndex", 0), each.get("InterfaceType", "interface"))
        for each in named
    )


def interface_groups(data: Json, resources: Json) -> list[str]:
    """Security groups that every interface of a machine has. Where a launch template has interfaces, AWS refuses a
    compute environment with groups."""
    named = data.get("SecurityGroupIds") or resources.get("securityGroupIds") or ()
    sets = [set(each.get("Groups", ())) for each in data.get("NetworkInterfaces", ())] or [set(named)]
    return sorted(set.intersection(*sets))


def queue(account: BatchAccount) -> Answer:
    wanted, found = "a job queue that is ENABLED and VALID", account.queue
    if found is None:
        seen = f"no queue {account.queue_name}" if account.queue_name else "cluster.queue is not set"
        return Answer("missing", seen, wanted, "set cluster.queue to the queue of the machines")
    good = _is_ready(found)
    return judge(good, _state(found, found["jobQueueName"]), wanted, "enable it, or correct what its statusReason says")


def default_queue(account: BatchAccount) -> Answer:
    """A CPU task in the gang's queue would start a GPU machine, and wait for it."""
    default = account.settings.get("BATCH_JOB_QUEUE")
    wanted = "another queue as Metaflow's default, of CPU machines, ENABLED and VALID"
    if default is None:
        return Answer("missing", "METAFLOW_BATCH_JOB_QUEUE is not set", wanted, SET_PROFILE)
    queues: list[Json] = account.aws("batch").describe_job_queues(jobQueues=[default])["jobQueues"]
    fix = "set METAFLOW_BATCH_JOB_QUEUE to the queue of the CPU machines, and enable it"
    if not queues:
        return Answer("missing", f"no queue {default}", wanted, fix)
    same = account.queue is not None and queues[0]["jobQueueArn"] == account.queue["jobQueueArn"]
    seen = f"{default}: the gang's" if same else _state(queues[0], default)
    return judge(not same and _is_ready(queues[0]), seen, wanted, fix)


def environment(account: BatchAccount) -> Answer | None:
    if account.queue is None:
        return None
    wanted, found = "a compute environment that is ENABLED and VALID", account.environment
    if found is None:
        return Answer("missing", "the queue has none", wanted, "attach one to the queue")
    good = _is_ready(found)
    seen = _state(found, found["computeEnvironmentName"])
    return judge(good, seen, wanted, "enable it, or correct what its statusReason says")


def _is_ready(found: Json) -> bool:
    return (found.get("state"), found.get("status")) == ("ENABLED", "VALID")


def _state(found: Json, name: str) -> str:
    seen = f"{name}: {found.get('state')}, {found.get('status')}"
    return seen if found.get("status") == "VALID" else f"{seen} ({found.get('statusReason', 'no reason given')})"


def environment_type(account: BatchAccount) -> Answer | None:
    """AWS runs multi-node jobs neither on spot instances nor in unmanaged environments."""
    if account.environment is None:
        return None
    kind, resources = account.environment["type"], account.resources
    bought, strategy = resources.get("type", "unknown"), resources.get("allocationStrategy", "BEST_FIT")
    good = (kind, bought) == ("MANAGED", "EC2") and strategy in ALLOCATION
    return judge(
        good, f"{kind}, {bought}, {strategy}", f"MANAGED, EC2, {' or '.join(ALLOCATION)}",
        "make a new environment: these cannot be changed",
    )  # fmt: skip


def instance_type(account: BatchAccount) -> Answer | None:
    if account.environment is None:
        return None
    types, name = account.resources.get("instanceTypes", []), account.machine.name
    return judge(types == [name], ", ".join(types), f"{name} alone", f"add {name} to the stack's instance_types")


def max_vcpus(account: BatchAccount) -> Answer | None:
    if account.environment is None:
        return None
    most, nodes, each = account.resources.get("maxvCpus", 0), account.cluster.nodes, account.machine.vcpus
    wanted = f"at least {nodes * each}, {nodes} machines of {each}"
    return judge(most >= nodes * each, f"at most {most}", wanted, "raise the stack's max_nodes")


def launch_template(account: BatchAccount) -> Answer | None:
    if account.environment is None:
        return None
    wanted, found = f"a launch template that requests {MARKETS[account.cluster.market]} instances", account.template
    if found is None:
        return Answer("missing", "none, or one that does not exist", wanted, "name one in the compute environment")
    bought = found["LaunchTemplateData"].get("InstanceMarketOptions", {}).get("MarketType", "on-demand")
    seen = f"{found['LaunchTemplateName']}, version {found['VersionNumber']}: {bought}"
    return judge(bought == MARKETS[account.cluster.market], seen, wanted, "apply the stack for this market")


def locked_memory(account: BatchAccount) -> Answer | None:
    if account.template is None:
        return None
    if not account.machine.efa_interfaces:
        return Answer("ok", "not needed without EFA")
    good = raises_locked_memory(base64.b64decode(account.template["LaunchTemplateData"].get("UserData", "")))
    seen = "raised by a boothook" if good else "not raised by a boothook"
    wanted = "an unlimited memlock of the Docker daemon, set before it starts: EFA pins memory"
    return judge(good, seen, wanted, "set it in a text/cloud-boothook part of the launch template's user data")


def raises_locked_memory(user_data: bytes) -> bool:
    """Whether a part that runs before the Docker daemon starts sets its default memlock to unlimited."""
    for part in email.message_from_bytes(user_data).walk():
        if part.get_content_type() == "text/cloud-boothook":
            script: Any = part.get_payload(decode=True)
            lines = [line for line in script.splitlines() if not line.lstrip().startswith(b"#")]
            if _UNLIMITED.search(b"\n".join(lines)):
                return True
    return False


def task_interface(account: BatchAccount) -> Answer | None:
    """Each task of a multi-node job has one of its own, in the groups of the compute environment, or in the default
    group of the VPC if that names none."""
    if account.machines is None or not account.machines.subnets:
        return None
    named = account.resources.get("securityGroupIds")
    of_vpc = {"group-name": ["default"], "vpc-id": [account.machines.subnets[0]["VpcId"]]}
    groups = find_security_groups(account, {"group-id": named} if named else of_vpc)
    good = any(reaches_itself(group) for group in groups)
    seen = ", ".join(group["GroupId"] for group in groups) or "none"
    seen += "" if named else ", the default group of the VPC, as the compute environment names none"
    fix = "let its members reach each other, by the group's id or by the addresses of the VPC"
    return judge(good, seen, "a security group in which tasks reach each other", fix)


def job_role(account: BatchAccount) -> Answer:
    arn = account.cluster.iam_role or account.settings.get("ECS_S3_ACCESS_IAM_ROLE")
    wanted, fix = f"a role that {TASKS} may assume", "set cluster.iam_role to the stack's task role"
    found = ROLE.fullmatch(arn or "")
    if found is None:
        return Answer("missing", f"{arn}: no ARN of a role" if arn else "cluster.iam_role is not set", wanted, fix)
    answer = answer_or_none(lambda: account.aws("iam").get_role(RoleName=found[2]), "NoSuchEntity")
    if answer is None:
        return Answer("missing", f"{arn}: does not exist", wanted, fix)
    good = lets_tasks_assume(answer["Role"]["AssumeRolePolicyDocument"])
    return judge(good, f"{arn}: {'trusts' if good else 'does not trust'} {TASKS}", wanted, "correct its trust policy")


def lets_tasks_assume(trust: Json) -> bool:
    return any(
        statement["Effect"] == "Allow"
        and {"sts:AssumeRole", "sts:*", "*"} & set(as_list(statement["Action"]))
        and isinstance(statement["Principal"], dict)
        and TASKS in as_list(statement["Principal"].get("Service"))
        for statement in as_list(trust["Statement"])
    )


BATCH_CHECKS: tuple[Check[BatchAccount], ...] = (
    Check("queue", queue),
    Check("default queue", default_queue),
    Check("compute environment", environment),
    Check("environment type", environment_type),
    Check("instance type", instance_type),
    Check("vCPUs", max_vcpus),
    Check("launch template", launch_template),
    *MACHINE_CHECKS,
    Check("task interface", task_interface),
    Check("locked memory", locked_memory),
    Check("job role", job_role),
    *ACCOUNT_CHECKS,
)
