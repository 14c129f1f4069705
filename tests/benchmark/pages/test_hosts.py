"""The table of what each node used."""

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.pages.hosts import hosts_section
from convoy.benchmark.results.case import HostUse
from convoy.display.markdown import to_markdown
from convoy.display.page import Page
from tests.benchmark.cases import GPU_CONFIG, GPUS, a_case, throughput


def a_host(host: int, **changed: float | None) -> HostUse:
    """Of a p4d, whose ranks send 3 GB over EFA in a step."""
    facts = {
        "ranks": 8, "memory_peak_bytes": 200 * 10**9 + host * 10**9, "memory_used_bytes": 40 * 10**9,
        "sent_bytes": 5e6, "received_bytes": 6e6, "rdma_sent_bytes": 3e9, "rdma_received_bytes": 3.1e9,
    }  # fmt: skip
    return HostUse.model_validate({"host": host, **facts, **changed})


def text_of(*hosts: HostUse) -> str:
    case = a_case("ours", suite="memory", hardware=GPUS, config=GPU_CONFIG, baseline=None, hosts=hosts)
    return to_markdown(Page("Nodes", hosts_section(fold_cases([case]))))


def test_each_node_has_a_row_with_its_memory_and_the_bytes_of_its_adapters() -> None:
    text = text_of(*(a_host(n) for n in range(4)))
    assert "| ours | 0 | 8 | 200 GB | 40.0 GB | 5.00 MB | 6.00 MB | 3.00 GB | 3.10 GB |" in text
    assert "| ours | 3 | 8 | 203 GB |" in text
    assert "Offloaded" not in text


def test_many_nodes_share_a_row_with_their_range() -> None:
    text = text_of(*(a_host(n, offloaded_bytes=10**9) for n in range(16)))
    assert "| ours | all 16 | 8 | 200 GB to 215 GB | 1.00 GB | 40.0 GB |" in text


def test_a_node_without_rdma_adapters_or_measured_memory_leaves_those_out() -> None:
    text = text_of(a_host(0, memory_peak_bytes=None, rdma_sent_bytes=None, rdma_received_bytes=None))
    assert "| ours | 0 | 8 | 40.0 GB | 5.00 MB | 6.00 MB |" in text


def test_results_without_figures_of_nodes_have_no_such_section() -> None:
    assert "Nodes" not in to_markdown(benchmark_page(throughput()))
