"""A rank that is killed at any moment of a save loses that save at most: see `tests.checkpoint.crash`."""

import json
import os
import subprocess
import sys

import pytest

from tests.campaign import FULL

pytestmark = pytest.mark.campaign

ROUNDS = FULL if os.environ.get("CONVOY_CAMPAIGN") == "full" else 1

POSIX_CALLS = {"open", "pwrite", "fsync", "write", "link", "unlink"}
"""And mkdir, for the rank that comes first."""
REQUESTS = {
    "s3": {
        "POST data uploads",
        "PUT data partNumber",
        "POST data uploadId",
        "PUT data",
        "PUT part record",
        "PUT commit",
    },
    "gs": {
        "POST data uploadType=resumable",
        "PUT data upload_id",
        "POST data",
        "POST part record",
        "POST commit",
    },
}


@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
def test_a_kill_at_any_operation_leaves_exactly_a_committed_state_and_the_next_save_succeeds(
    store_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.checkpoint.crash", store_uri, str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    points, requests = told["points"], REQUESTS.get(store_uri.partition("://")[0])
    with capsys.disabled():
        kind = store_uri.partition("://")[0] if requests else "POSIX"
        print(f"\ncrash enumeration on {kind}: {sum(points.values())} points, {len(told['wrong'])} wrong states")

    assert told["wrong"] == []
    assert (requests or POSIX_CALLS) <= {point.split(",")[0] for point in points}
    assert {point.split(", ")[1] for point in points} == ({"before", "after"} if requests else {"before", "half"})
    # Some kills came before the commit and some after it, or the points would prove little.
    assert {"restored step 5", "restored step 6"} == told["outcomes"].keys()
