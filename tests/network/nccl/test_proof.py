"""A rank has NCCL log into its output, and judges what it reads there."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.config.cluster import NetworkRequirement
from convoy.network.nccl.proof import (
    NCCL_LOG,
    NetworkRequirementError,
    NetworkWatch,
    OwnProof,
    combined_proofs,
    request_nccl_log,
)
from tests.network.nccl.written import Job


def test_nccl_logs_into_the_output_unless_the_user_decides() -> None:
    unset: dict[str, str] = {"NCCL_DEBUG_SUBSYS": "ALL"}
    request_nccl_log(unset)
    assert unset == NCCL_LOG
    for own in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"}):
        kept = dict(own)
        request_nccl_log(kept)
        assert kept == own


READS_ITSELF = """
import ctypes
from convoy.network.nccl.proof import read_own_log, request_nccl_log
request_nccl_log({})
ctypes.CDLL(None).printf(b"node-0:1:2 [0] NCCL INFO Using network %s\\n", b"IB")
import sys
print(list(read_own_log()), file=sys.stderr)
"""


@pytest.mark.processes
@pytest.mark.parametrize("to_file", [True, False])
def test_a_process_reads_what_c_code_in_it_has_printed(tmp_path: Path, to_file: bool) -> None:
    with (tmp_path / "log").open("wb") as log:
        output = log if to_file else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", READS_ITSELF], stdout=output, stderr=subprocess.PIPE, timeout=60)
    expected = [b"node-0:1:2 [0] NCCL INFO Using network IB\n"] if to_file else []
    assert done.stderr.decode().strip() == str(expected)


def test_a_log_of_its_own_is_for_processes_whose_output_people_read(tmp_path: Path) -> None:
    variables: dict[str, str] = {}
    request_nccl_log(variables, tmp_path / "log")
    assert variables == NCCL_LOG | {"NCCL_DEBUG_FILE": str(tmp_path / "log")}
    users = {"NCCL_DEBUG": "INFO"}
    request_nccl_log(users, tmp_path / "log")
    assert users == {"NCCL_DEBUG": "INFO"}


def own_proof(output: Path, rank: int = 0, required: NetworkRequirement | None = None) -> OwnProof:
    return OwnProof(rank, required, NetworkWatch(None), output)


def test_a_rank_without_a_line_of_nccl_proves_nothing(tmp_path: Path) -> None:
    proof = own_proof(tmp_path / "log", required="efa")
    assert proof.look() is None
    (tmp_path / "log").write_text("step 1\nstep 2\n")
    assert proof.look() is None
    proof.refuse_other_network()
    assert not proof.is_final


def test_a_rank_looks_until_its_log_shows_what_leaves_the_host(tmp_path: Path) -> None:
    log, job = tmp_path / "log", Job(ranks=2, per_host=1)
    proof = own_proof(log)
    channels = [line for line in job.rank_lines(0) if "Channel 0" in line]
    log.write_text("".join(f"{line}\n" for line in job.rank_lines(0) if line not in channels))
    first = proof.look()
    assert first is not None
    assert first.verdict == "unknown"
    assert proof.look() is None
    assert not proof.is_final
    with log.open("a") as file:
        file.write("".join(f"{line}\n" for line in channels))
    second = proof.look()
    assert second is not None
    assert (second.verdict, second.carrier, proof.is_final) == ("rdma+gdr", "efa", True)


def test_what_child_processes_of_a_rank_write_into_its_log_proves_nothing_of_it(tmp_path: Path) -> None:
    own = Job(ranks=2, per_host=1, first_pid=os.getpid())
    child = Job(ranks=1, per_host=1, host="node-0", first_pid=own.first_pid + 1, carrier="socket")
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in own.rank_lines(0) + child.rank_lines(0)))
    proof = own_proof(tmp_path / "log", required="efa")
    found = proof.look()
    assert found is not None
    assert (found.verdict, found.carrier) == ("rdma+gdr", "efa")
    proof.refuse_other_network()


def test_a_rank_looks_again_until_the_adapters_have_counted_what_its_gpu_sends(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in Job(ranks=2, per_host=1).rank_lines(0)))
    counted = [0]
    watch: Any = SimpleNamespace(adapter_bytes=lambda: counted[0])
    proof = OwnProof(0, None, watch, tmp_path / "log")
    first = proof.look()
    assert first is not None
    assert (first.verdict, first.adapter_bytes, proof.is_final) == ("rdma+gdr", 0, False)
    assert proof.look() is None
    counted[0] = 10**9
    second = proof.look()
    assert second is not None
    assert (second.adapter_bytes, proof.is_final) == (10**9, True)


def test_a_rank_that_sees_another_network_than_required_names_itself_the_cause_and_the_fix(tmp_path: Path) -> None:
    job = Job(ranks=2, per_host=1, carrier="libfabric tcp")
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in job.rank_lines(1)))
    proof = own_proof(tmp_path / "log", rank=1, required="efa")
    proof.look()
    with pytest.raises(
        NetworkRequirementError,
        match=r"^cluster\.require_network = efa: rank 1 on node-1 uses TCP; first cause: libfabric offers no EFA "
        r"device, or FI_PROVIDER excludes it: provider tcp;ofi_rxm\. Unset FI_PROVIDER;",
    ):
        proof.refuse_other_network()


def test_proofs_that_ranks_made_alone_are_combined_by_node(tmp_path: Path) -> None:
    job, proofs = Job(ranks=6, per_host=3), []
    for rank in range(6):
        (tmp_path / "log").write_text("".join(f"{line}\n" for line in job.rank_lines(rank)))
        look = own_proof(tmp_path / "log", rank).look()
        assert look is not None
        proofs.append(look.model_copy(update={"rank": rank, "node": rank // 3}))
    assert [proof.verdict for proof in proofs] == ["rdma+gdr", "unknown", "rdma+gdr"] * 2
    assert [proof.verdict for proof in combined_proofs(proofs)] == ["rdma+gdr"] * 6
    assert combined_proofs(proofs[1:2])[0].verdict == "unknown"
    assert combined_proofs([]) == []
