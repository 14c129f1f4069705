"""The network suite's sections."""

from convoy.benchmark.analysis.network import network_figures, network_report
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.pages.network import describe, fastest_text, network_page
from convoy.benchmark.results.network import figure_name
from convoy.display.page import Callout, Chart, Heading, Table, Text, Values
from convoy.report.train_report import NetworkUse
from tests.benchmark.cases import replaced
from tests.benchmark.network_cases import algorithms, network_case
from tests.benchmark.reading import below


def test_a_collective_has_its_section_on_the_benchmarks_page() -> None:
    page = benchmark_page(algorithms())
    texts = [each.text for each in below(page, "Network: all_reduce", Text)]
    assert texts[0].startswith("all_reduce of fp32, 4 ranks on 4 hosts. Bound: busbw of 100 MB/s")
    (chart,) = below(page, "Network: all_reduce", Chart)
    assert set(chart.series) == {"backend", "ring", "recursive doubling"}
    assert "bound" in str(chart.spec)
    table, times, host = below(page, "Network: all_reduce", Table)
    sizes = [row[0] for row in table.rows]
    assert sizes == ["1 KiB", "1 KiB", "16 KiB", "16 KiB", "256 KiB", "256 KiB", "4 MiB", "4 MiB"]
    names = [row[1] for row in table.rows if row[1] != "backend"]
    assert names == ["recursive doubling", "recursive doubling", "ring", "ring"]
    assert len(times.rows) == 3
    assert host.rows[0] == ("backend", "0.200", "0.500", "300 MB", "0.0100")


def test_a_lab_is_named_wherever_its_figures_are() -> None:
    (found,) = network_figures([replaced(network_case(), lab="4 hosts, 400mbit")])
    assert "lab of 4 hosts, 400mbit" in describe(found)
    page = benchmark_page([replaced(case, lab="4 hosts, 400mbit") for case in algorithms()])
    summary = next(block for block in page.blocks if isinstance(block, Text))
    assert summary.text.startswith("lab on one AMD EPYC 7R13 (4 hosts, 400mbit), 4 ranks · ")
    (values,) = [block for block in page.blocks if isinstance(block, Values)]
    assert values.items[0].subtitle.startswith("lab, busbw of")
    assert "one, with a lab of 4 hosts, 400mbit" in below(page, "Provenance", Table)[0].rows[0]


def test_ranges_are_words() -> None:
    (found,) = network_figures(algorithms())
    assert fastest_text(found) == "recursive doubling up to 16 KiB, backend at 256 KiB, ring from 4 MiB"
    (alone,) = network_figures([network_case()])
    assert fastest_text(alone) == "backend at every size"


def test_what_is_wrong_comes_first() -> None:
    wrong = network_case(figures={figure_name("wrong", 1024): 3.0})
    titles = [each.title for each in network_page(network_report([wrong])).blocks if isinstance(each, Callout)]
    assert titles == ["all_reduce: wrong elements"]
    above = network_report([network_case(link_gbps=0.3)])
    titles = [each.title for each in network_page(above).blocks if isinstance(each, Callout)]
    assert titles == ["all_reduce: bound wrong, or a burst"]
    first, second, *_ = (block for block in benchmark_page([wrong]).blocks if not isinstance(block, Heading | Text))
    assert isinstance(first, Callout)
    assert first.title == "all_reduce: wrong elements"
    assert isinstance(second, Values)
    table = next(each for each in network_page(above).blocks if isinstance(each, Table))
    assert "bound wrong, or a burst" in table.rows[-1]


def test_published_runs_of_the_same_machines_are_shown_with_their_date() -> None:
    case = network_case(link_gbps=None, hosts=2, ranks=16)
    p5 = replaced(case, hardware=replaced(case.hardware, instance_type="p5.48xlarge"))
    tables = below(benchmark_page([p5]), "Network: all_reduce", Table)
    (published,) = [table for table in tables if table.headers[0] == "Published"]
    assert any("2 × p5.48xlarge" in " ".join(row) and "GB/s" in row[-1] for row in published.rows)
    assert all(row[1].startswith("20") for row in published.rows)


def test_the_headline_has_the_bandwidth_where_nothing_was_trained() -> None:
    (values,) = [block for block in benchmark_page(algorithms()).blocks if isinstance(block, Values)]
    assert values.items[0].title == "all_reduce"
    assert "MB/s" in values.items[0].value
    assert "of 4 MiB, ring" in values.items[0].subtitle
    assert "of the bound" in values.items[0].subtitle


def test_the_headline_has_no_bandwidth_above_its_bound() -> None:
    (values,) = [block for block in benchmark_page([network_case(link_gbps=0.3)]).blocks if isinstance(block, Values)]
    assert not any("MB/s" in item.value for item in values.items)


def test_the_figures_of_each_size_are_no_further_figures() -> None:
    page = benchmark_page(algorithms())
    assert "Further figures" not in [block.text for block in page.blocks if isinstance(block, Heading)]


def test_what_carried_the_traffic_is_said_before_the_figures_and_with_the_hardware() -> None:
    fact = "EFA with GPUDirect, 32 of 32 ranks (NCCL's log and NIC counters agree)"
    use = NetworkUse(
        name="EFA with GPUDirect", verdict="rdma+gdr", ranks=32, world_size=32, counters="agree", cause=None, fix=None
    )
    proven = [replaced(case, carried_by=(use,)) for case in algorithms()]
    first = network_page(network_report(proven)).blocks[0]
    assert first == Text(f"Between hosts: {fact}.")
    hardware = below(benchmark_page(proven), "Provenance", Table)[0]
    assert (hardware.headers[-1], hardware.rows[0][-1]) == ("Between hosts", fact)
    assert "Between hosts" not in below(benchmark_page(algorithms()), "Provenance", Table)[0].headers


def test_tcp_between_hosts_is_called_out_with_its_cause() -> None:
    use = NetworkUse(
        name="TCP", verdict="tcp", ranks=2, world_size=4, counters="absent", cause="NCCL_NET is set", fix="Unset it."
    )
    page = network_page(network_report([replaced(network_case(), carried_by=(use,))]))
    (callout,) = [each for each in page.blocks if isinstance(each, Callout)]
    assert (callout.title, callout.text) == (
        "2 of 4 ranks use TCP between hosts", "First cause: NCCL_NET is set. Unset it.",
    )  # fmt: skip
