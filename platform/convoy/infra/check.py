"""Whether an account has what a configuration needs."""

import functools
from collections.abc import Mapping

from convoy.catalog.aws_prices import Client
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.infra.account import ROLE, check_credentials, check_region
from convoy.infra.batch import BATCH_CHECKS, BatchAccount
from convoy.infra.cluster_api import open_cluster
from convoy.infra.findings import Finding, run_checks
from convoy.infra.kubernetes import KUBERNETES_CHECKS
from convoy.infra.kubernetes_account import KubernetesAccount
from convoy.launch.checks.compatibility import check_run

NO_TUNNEL = "its command is `tunnel_command` of `launcher` in the output `convoy` of the stack"


def open_account(
    config: RunConfig,
    settings: Mapping[str, str],
    client: Client,
    default_region: str | None,
    expected: str | None = None,
    tunnel: str = NO_TUNNEL,
) -> BatchAccount | KubernetesAccount:
    """The account to check, after a call that proves that it can be reached.

    settings: Metaflow's, by their names without `METAFLOW_`. default_region: the one that AWS's clients use. expected:
    number of the account that it must be, if it is known. tunnel: how to reach the metadata service.

    Raises ConfigError for a configuration that cannot work, and for no or another account's credentials.
    """
    client, cluster = functools.cache(client), config.cluster
    if cluster.backend == "local":
        raise ConfigError("cluster.backend = local: needs no account; must be batch or kubernetes to be checked")
    check_run(config)
    if cluster.backend == "batch":
        check_region(default_region, cluster.region)
        role = ROLE.fullmatch(cluster.iam_role or settings.get("ECS_S3_ACCESS_IAM_ROLE") or "")
        number = check_credentials(client, cluster.region, expected or (role[1] if role else None))
        return BatchAccount(config, settings, client, number, tunnel)
    api, of_context = open_cluster(cluster.region)
    number = check_credentials(client, cluster.region, expected or of_context)
    if of_context not in (None, number):
        raise ConfigError(f"KUBECONFIG: a cluster of account {of_context}; must be {number}")
    return KubernetesAccount(config, settings, client, number, tunnel, api)


def check_account(account: BatchAccount | KubernetesAccount) -> list[Finding]:
    """One finding of each check, but for those that depend on something missing."""
    if isinstance(account, BatchAccount):
        return run_checks(BATCH_CHECKS, account)
    return run_checks(KUBERNETES_CHECKS, account)


def skipped(account: BatchAccount | KubernetesAccount, findings: list[Finding]) -> int:
    """How many checks were not made because they depend on something missing."""
    return len(BATCH_CHECKS if isinstance(account, BatchAccount) else KUBERNETES_CHECKS) - len(findings)
