"""A Kubernetes API server, as the checks ask it: every answer is plain data."""

import json
import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from convoy.config.errors import ConfigError, one_line
from convoy.infra.account import Json
from convoy.infra.findings import UnansweredError

_SECONDS = 10
"""For each answer."""

_EKS_CLUSTER = re.compile(r"arn:[\w-]+:eks:([\w-]+):(\d{12}):cluster/.+")
"""How `aws eks update-kubeconfig` names a cluster: with its region and account."""

_REVIEWS = ("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


class ClusterApi:
    """The API server of the current context. Methods return None if there is no such thing. They raise ConfigError if
    the server cannot be reached or does not know the user, and UnansweredError if this user may not read the thing."""

    def __init__(self, client: Any) -> None:
        """client: the module `kubernetes.client`, with a configuration loaded."""
        self._objects, self._core = client.CustomObjectsApi(), client.CoreV1Api()
        self._error: type[Exception] = client.ApiException

    def serves(self, group: str, version: str, plural: str) -> bool:
        """Whether there is such a kind of object."""
        answer = self._ask(self._objects.get_api_resources, group, version)
        return answer is not None and plural in {each["name"] for each in answer["resources"]}

    def objects(self, group: str, version: str, plural: str) -> list[Json] | None:
        """All of the cluster; None if there is no such kind of object."""
        answer = self._ask(self._objects.list_cluster_custom_object, group, version, plural)
        return None if answer is None else answer["items"]

    def named(self, group: str, version: str, plural: str, name: str) -> Json | None:
        return self._ask(self._objects.get_cluster_custom_object, group, version, plural, name)

    def service_account(self, name: str, namespace: str) -> Json | None:
        return self._ask(self._core.read_namespaced_service_account, name, namespace)

    def claim(self, name: str, namespace: str) -> Json | None:
        return self._ask(self._core.read_namespaced_persistent_volume_claim, name, namespace)

    def allows(self, namespace: str, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether this user may do it in the namespace."""
        attributes = {
            "namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource,
        }  # fmt: skip
        body = {
            "apiVersion": "/".join(_REVIEWS[:2]),
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._ask(self._objects.create_cluster_custom_object, *_REVIEWS, body)
        return bool(answer and answer["status"]["allowed"])

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Json | None:
        """The bytes of the answer are parsed here: the client's own classes differ from version to version."""
        try:
            answer: Json = json.loads(call(*arguments, _preload_content=False, _request_timeout=_SECONDS).data)
            return answer
        except self._error as error:
            status, reason = getattr(error, "status", None), getattr(error, "reason", "")
            if status == 404:
                return None
            if status == 401:
                raise ConfigError("KUBECONFIG: the API server does not know the user (401)") from None
            raise UnansweredError(f"the API server answers {status} {reason}") from None
        except Exception as error:  # of urllib3, or of the command that makes the credentials
            raise ConfigError(f"KUBECONFIG: no answer of the API server: {one_line(error)}") from None


def open_cluster(region: str) -> tuple[ClusterApi, str | None]:
    """The cluster of the current context, and its AWS account, if the context names it. region: where it must be.

    Needs the extra `kubernetes`. Raises ConfigError.
    """
    config, client = import_module("kubernetes.config"), import_module("kubernetes.client")
    file, name = os.environ.get("KUBECONFIG"), ""
    try:
        config.load_kube_config(config_file=file)
        name = config.list_kube_config_contexts(config_file=file)[1]["context"]["cluster"]
    except Exception as error:  # what a file with anything in it makes of the client's parser
        try:
            config.load_incluster_config()  # within a pod
        except config.ConfigException:
            fix = "`aws eks update-kubeconfig --name CLUSTER` writes one"
            raise ConfigError(f"KUBECONFIG: {one_line(error)}; {fix}") from None
    found = _EKS_CLUSTER.fullmatch(name)
    if found and found[1] != region:
        raise ConfigError(f"KUBECONFIG: a cluster in {found[1]}; must be in {region}, as cluster.region")
    return ClusterApi(client), found[2] if found else None
