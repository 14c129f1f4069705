"""What a configuration needs of a Kubernetes cluster whose machines Karpenter starts."""

import json
import re

from convoy.infra import karpenter
from convoy.infra.account import ACCOUNT_CHECKS, Json
from convoy.infra.findings import Answer, Check, judge
from convoy.infra.kubernetes_account import KubernetesAccount
from convoy.infra.machines import MACHINE_CHECKS
from convoy.launch.decorators import step_decorators

JOBSET = ("jobset.x-k8s.io", "v1alpha2", "jobsets")

_GRACE = re.compile(r"terminationGracePeriodSeconds.*[^\w.](?:[3-9]\d|\d{3,})\b")
"""A mutation that sets at least 30 s."""

RIGHTS: tuple[tuple[str, ...], ...] = (
    *((verb, "jobset.x-k8s.io", "jobsets") for verb in ("create", "get", "delete")),
    *((verb, "batch", "jobs") for verb in ("create", "get", "patch")),
    *((verb, "", "pods") for verb in ("get", "list")),
    *((verb, "", "pods", "exec") for verb in ("create", "get")),
    ("get", "", "pods", "log"),
)
"""What Metaflow does there to run, watch and end the tasks of a flow."""

NVIDIA_PLUGIN = "k8s-device-plugin"
EFA_PLUGIN = "aws-efa-k8s-device-plugin"
"""Last parts of their images' names."""


def service_account(account: KubernetesAccount) -> Answer:
    name, wanted = (
        account.cluster.service_account or account.settings.get("KUBERNETES_SERVICE_ACCOUNT"),
        "a service account",
    )
    if name is None:
        return Answer("missing", "none is named", wanted, "set cluster.service_account")
    found = account.api.service_account(name, account.namespace) is not None
    seen = f"{name} in {account.namespace}{'' if found else ': does not exist'}"
    return judge(found, seen, wanted, "apply the stack's manifests, or set cluster.service_account")


def access(account: KubernetesAccount) -> Answer:
    refused = [right for right in RIGHTS if not account.api.allows(account.namespace, *right)]
    names = [f"{verb} {'/'.join(resource)}" for verb, _, *resource in refused]
    seen = f"not allowed: {', '.join(names)}" if names else f"{len(RIGHTS)} rights in {account.namespace}"
    return judge(
        not names, seen, "all rights that Metaflow uses", "bind the role of the stack's manifests to this user"
    )


def job_set(account: KubernetesAccount) -> Answer:
    served, name = account.api.serves(*JOBSET), f"{JOBSET[2]}.{JOBSET[0]} {JOBSET[1]}"
    return judge(served, f"{name}: {'' if served else 'not '}served", "the JobSet controller", "install it")


def node_pool(account: KubernetesAccount) -> Answer:
    capacity = account.labels[karpenter.CAPACITY_TYPE_LABEL]
    wanted = (
        f"a ready NodePool that starts {account.machine.name}, {capacity}, with the labels of cluster.node_selector"
    )
    fix = "apply the stack's manifests, or set cluster.node_selector to the labels of a pool"
    if account.pools is None:
        return Answer("missing", "Karpenter is not installed", wanted, "install Karpenter")
    if account.pool is None:
        names = ", ".join(pool["metadata"]["name"] for pool in account.pools)
        return Answer("missing", f"none of {names} fits" if names else "there is none", wanted, fix)
    problem = karpenter.not_ready(account.pool)
    name = account.pool["metadata"]["name"]
    return judge(problem is None, f"{name}: {problem or 'ready'}", wanted, "correct what its condition Ready says")


def ordinary_steps(account: KubernetesAccount) -> Answer | None:
    """Steps without a gang run on machines of another pool."""
    if account.pools is None:
        return None
    pod = step_decorators(account.config).ordinary[0].arguments
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", **pod.get("node_selector", {})}
    names = [
        pool["metadata"]["name"]
        for pool in account.pools
        if karpenter.starts_for(pool, labels)
        and not karpenter.intolerable(pool["spec"]["template"]["spec"].get("taints", ()), pod.get("tolerations", ()))
        and karpenter.not_ready(pool) is None
    ]
    wanted = "a ready NodePool for the flow's other steps, without a taint that they do not tolerate"
    return judge(bool(names), names[0] if names else "none", wanted, "apply the stack's manifests")


def node_class(account: KubernetesAccount) -> Answer | None:
    if account.pool is None:
        return None
    name, wanted, found = account.template["nodeClassRef"]["name"], "a ready EC2NodeClass", account.node_class
    if found is None:
        return Answer("missing", f"{name}: does not exist", wanted, "apply the stack's manifests")
    problem = karpenter.not_ready(found)
    return judge(problem is None, f"{name}: {problem or 'ready'}", wanted, "correct what its condition Ready says")


def limits(account: KubernetesAccount) -> Answer | None:
    if account.pool is None:
        return None
    machine, nodes = account.machine, account.cluster.nodes
    one = {"nvidia.com/gpu": machine.gpus, "cpu": machine.vcpus, "nodes": 1, "memory": machine.memory_gib * 2**30}
    own = {name: karpenter.quantity(value) for name, value in account.pool["spec"].get("limits", {}).items()}
    wanted = f"limits of at least {nodes} machines, {nodes * machine.gpus} GPUs"
    if not own:
        return Answer(
            "warning", "no limits", wanted, "set the pool's limits, or a mistake may start any number of machines"
        )
    too_low = [f"{name} {value:g}" for name, value in own.items() if value < nodes * one.get(name, 0)]
    seen = ", ".join(too_low or [f"{name} {value:g}" for name, value in own.items()])
    return judge(not too_low, seen, wanted, "raise the stack's max_nodes")


def taints(account: KubernetesAccount) -> Answer | None:
    if account.pool is None:
        return None
    found = karpenter.intolerable(account.template.get("taints", ()), account.pod["tolerations"])
    names = [f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in found]
    seen = f"not tolerated: {', '.join(names)}" if names else "all tolerated"
    return judge(not names, seen, "each taint of the pool tolerated", "add them to cluster.tolerations")


def expiry(account: KubernetesAccount) -> Answer | None:
    if account.pool is None:
        return None
    after = account.template.get("expireAfter", "720h")
    wanted = "Never, because an expired machine is replaced even if a gang is on it"
    return judge(after == "Never", f"expireAfter {after}", wanted, "set expireAfter in the pool")


def disruption(account: KubernetesAccount) -> Answer | None:
    """With a termination grace period, drift also takes machines whose pods are annotated not to be disrupted; reserved
    ones end anyway when the reservation does."""
    if account.pool is None:
        return None
    rules = account.pool["spec"].get("disruption", {})
    reserved = account.labels[karpenter.CAPACITY_TYPE_LABEL] == "reserved"
    wrong = {
        f"consolidationPolicy is not WhenEmpty: {rules.get('consolidationPolicy')}": rules.get("consolidationPolicy")
        != "WhenEmpty",
        "drift is allowed": not karpenter.forbids_drift(account.pool),
        "terminationGracePeriod is set": "terminationGracePeriod" in account.template and not reserved,
    }
    problems = [text for text, is_so in wrong.items() if is_so]
    wanted = "WhenEmpty, a budget of 0 nodes for Drifted, and a terminationGracePeriod on reserved machines alone"
    return judge(not problems, "; ".join(problems) or "empty machines only", wanted, "set them in the pool")


def nvidia_plugin(account: KubernetesAccount) -> Answer | None:
    return _plugin(account, "NVIDIA's device plugin", NVIDIA_PLUGIN, account.machine.gpus)


def efa_plugin(account: KubernetesAccount) -> Answer | None:
    return _plugin(account, "the EFA device plugin", EFA_PLUGIN, account.machine.efa_interfaces)


def _plugin(account: KubernetesAccount, title: str, image: str, devices: int) -> Answer | None:
    if account.pool is None:
        return None
    if not devices:
        return Answer("ok", f"not needed on {account.machine.name}")
    names = [
        each["metadata"]["name"]
        for each in account.daemon_sets
        for container in each["spec"]["template"]["spec"]["containers"]
        if container["image"].rpartition("/")[2].partition("@")[0].partition(":")[0] == image
    ]
    wanted = f"a DaemonSet of {title} that runs on the pool's machines"
    return judge(bool(names), names[0] if names else "there is none", wanted, "apply the stack's manifests")


def pod_fits(account: KubernetesAccount) -> Answer | None:
    """By Karpenter's arithmetic: it starts no machine for a pod that it expects not to fit."""
    if account.pool is None:
        return None
    pods = [each["spec"]["template"]["spec"] for each in account.daemon_sets]
    memory = account.pod["memory"] * 1e6 / 2**20 + sum(karpenter.requested(pod, "memory") for pod in pods) / 2**20
    cpus = account.pod["cpu"] + sum(karpenter.requested(pod, "cpu") for pod in pods)
    most_memory, most_cpus = account.machine.karpenter_memory_mib, karpenter.free_cpus(account.machine)
    return judge(
        memory <= most_memory and cpus <= most_cpus,
        f"{memory:,.0f} MiB and {cpus:.1f} CPUs, with {len(pods)} DaemonSets",
        f"at most {most_memory:,} MiB and {most_cpus:.1f} CPUs", "lower the requests of the DaemonSets",
    )  # fmt: skip


def claims(account: KubernetesAccount) -> Answer:
    phases = {name: _phase(account, name) for name in account.cluster.persistent_volume_claims}
    seen = ", ".join(f"{name}: {phase}" for name, phase in phases.items()) or "none needed"
    return judge(set(phases.values()) <= {"Bound"}, seen, "each claim Bound", f"create them in {account.namespace}")


def _phase(account: KubernetesAccount, claim: str) -> str:
    found = account.api.claim(claim, account.namespace)
    return "does not exist" if found is None else str(found.get("status", {}).get("phase", "unknown"))


def _covers(resources: Json | None, namespace: str) -> bool:
    """Whether a policy or a binding is for objects in the namespace, as far as its labels by name say."""
    labels = ((resources or {}).get("namespaceSelector") or {}).get("matchLabels") or {}
    return bool(labels.get("kubernetes.io/metadata.name", namespace) == namespace)


def grace_policy(account: KubernetesAccount) -> Answer:
    """Metaflow gives its pods no grace period."""
    group = ("admissionregistration.k8s.io", "v1")
    policies = account.api.objects(*group, "mutatingadmissionpolicies")
    wanted, fix = (
        "a MutatingAdmissionPolicy that sets terminationGracePeriodSeconds, and its binding",
        "apply the manifests",
    )
    if policies is None:
        return Answer("missing", "the cluster serves no such policies", wanted, "upgrade to Kubernetes 1.36")
    names = [
        each["metadata"]["name"]
        for each in policies
        if _GRACE.search(json.dumps(each["spec"].get("mutations", [])))
        and _covers(each["spec"].get("matchConstraints"), account.namespace)
    ]
    if not names:
        return Answer("missing", f"no such policy for pods in {account.namespace}", wanted, fix)
    bindings = account.api.objects(*group, "mutatingadmissionpolicybindings") or []
    covering = [each["spec"] for each in bindings if _covers(each["spec"].get("matchResources"), account.namespace)]
    bound = {each["policyName"] for each in covering} & set(names)
    return judge(bool(bound), f"{names[0]}: {'bound' if bound else 'not bound'}", wanted, fix)


KUBERNETES_CHECKS: tuple[Check[KubernetesAccount], ...] = (
    Check("service account", service_account),
    Check("access", access),
    Check("JobSet", job_set),
    Check("node pool", node_pool),
    Check("ordinary steps", ordinary_steps),
    Check("node class", node_class),
    Check("limits", limits),
    Check("taints", taints),
    Check("expiry", expiry),
    Check("disruption", disruption),
    *MACHINE_CHECKS,
    Check("NVIDIA device plugin", nvidia_plugin),
    Check("EFA device plugin", efa_plugin),
    Check("pod size", pod_fits),
    Check("volume claims", claims),
    Check("grace policy", grace_policy),
    *ACCOUNT_CHECKS,
)
