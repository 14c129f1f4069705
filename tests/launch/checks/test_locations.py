"""Places that cannot exist, or that the machines do not see, are refused."""

from typing import Any

import pytest

from convoy.launch.checks.compatibility import mounted_folders
from tests.launch.checks.refusal import refuse
from tests.launch.checks.test_compatibility import BATCH, KUBERNETES, on, run


@pytest.mark.parametrize("root", [None, "/home/me/.convoy", ".convoy", "/fsxtra/convoy"])
@pytest.mark.parametrize("cluster", [BATCH | {"host_volumes": ["/fsx"]}, BATCH, KUBERNETES])
def test_a_root_that_the_machines_do_not_see_is_refused(cluster: dict[str, Any], root: str | None) -> None:
    reason = str(refuse(run(cluster=cluster, root=root)))
    assert reason.startswith(f"root = {root or 'null'}: must be an s3:// prefix or a folder ")


@pytest.mark.parametrize(
    "cluster",
    [
        BATCH | {"host_volumes": ["/fsx"]},
        BATCH | {"host_volumes": ["/data", "/mnt/lustre:/fsx"]},
        BATCH | {"host_volumes": ["/fsx/"]},
        KUBERNETES | {"persistent_volume_claims": {"claim": "/fsx"}},
    ],
)
@pytest.mark.parametrize("root", ["/fsx", "/fsx/convoy"])
def test_a_root_on_a_mounted_volume_is_fine(cluster: dict[str, Any], root: str) -> None:
    assert refuse(run(cluster=cluster, root=root, checkpoint={"root_is_shared": True})) is None
    reason = str(refuse(run(cluster=cluster, root=root)))
    assert reason.startswith(
        f"root = {root}: must be an s3:// prefix, or one folder that every machine of the gang sees"
    )
    assert reason.endswith("set checkpoint.root_is_shared=true")


@pytest.mark.parametrize("cluster", [BATCH | {"host_volumes": ["/fsx"]}, KUBERNETES])
def test_a_further_tier_that_the_machines_do_not_see_is_refused(cluster: dict[str, Any]) -> None:
    reason = str(refuse(run(cluster=cluster, checkpoint={"tiers": ["s3://other/convoy", "/scratch"]})))
    assert reason.startswith("checkpoint.tiers = /scratch: must be an s3:// prefix or a folder ")
    assert refuse(run(cluster=cluster, checkpoint={"tiers": ["s3://other/convoy"]})) is None


def test_a_tier_is_another_place_than_the_root_and_its_bucket_is_looked_at() -> None:
    reason = str(refuse(run(checkpoint={"tiers": ["s3://bucket/convoy/"]})))
    assert reason == "checkpoint.tiers = s3://bucket/convoy/: must be another place than root, which is the first tier"
    assert "under_score is no bucket" in str(refuse(run(checkpoint={"tiers": ["s3://under_score/convoy"]})))


def test_the_folder_of_a_volume_is_the_one_in_the_container() -> None:
    assert mounted_folders(on(BATCH, host_volumes=["/mnt/lustre:/fsx"])) == ("/fsx",)
    assert (
        refuse(
            run(
                cluster=BATCH | {"host_volumes": ["/mnt/lustre:/fsx"]},
                root="/mnt/lustre/convoy",
                checkpoint={"root_is_shared": True},
            )
        )
        is not None
    )


@pytest.mark.parametrize("bucket", ["YOUR-BUCKET", "ab", "under_score", "-dash", ""])
def test_a_bucket_that_cannot_exist_is_refused(bucket: str) -> None:
    assert str(refuse(run(root=f"s3://{bucket}/convoy"))).startswith(
        f"root = s3://{bucket}/convoy: {bucket} is no bucket"
    )


def test_the_bucket_of_the_corpus_is_looked_at_too() -> None:
    config = run(data={"corpus": {"kind": "files", "path": "s3://YOUR-BUCKET/corpus/"}})
    assert str(refuse(config)).startswith("data.corpus.path = s3://YOUR-BUCKET/corpus/")
