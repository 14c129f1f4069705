"""What a backend does not run, whatever else is configured. Pure."""

from convoy.config.cluster import ClusterConfig
from convoy.config.errors import ConfigError


def check_backend(cluster: ClusterConfig) -> None:
    """Raises ConfigError where its backend takes no such gang, or none in that market."""
    _batch_is_not_spot(cluster)
    _jobset_has_workers(cluster)


def _batch_is_not_spot(cluster: ClusterConfig) -> None:
    # AWS Batch user guide, "Compute environments for multi-node parallel jobs". @parallel submits a
    # multi-node job even for one node, and on a spot queue AWS leaves it RUNNABLE for ever.
    if cluster.backend == "batch" and cluster.market == "spot":
        raise ConfigError(
            "cluster.market = spot: AWS Batch runs no multi-node jobs on spot instances; "
            "use on_demand or capacity_block, or cluster.backend = kubernetes"
        )


def _jobset_has_workers(cluster: ClusterConfig) -> None:
    if cluster.backend == "kubernetes" and cluster.nodes < 2:
        raise ConfigError(
            f"cluster.nodes = {cluster.nodes}: must be at least 2 with cluster.backend = kubernetes "
            "(Metaflow's JobSet has a control pod and one or more workers)"
        )
