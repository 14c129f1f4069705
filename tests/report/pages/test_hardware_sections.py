"""The section on the hardware: shown where there are samples, and what it names. All samples are made up."""

from convoy.display.html import draw_svg, to_html
from convoy.display.markdown import to_markdown
from convoy.display.page import Callout, Chart, Heading, Page, Table, Text
from convoy.job.events.hardware import Throttled
from convoy.report.fold import fold
from convoy.report.pages.hardware_sections import hardware_use
from convoy.report.pages.train import final_page, live_page, script_page
from convoy.report.train_report import TrainReport
from tests.report.analysis.test_hardware_use import gpus, sampled
from tests.report.synthetic import CONFIG, Log

HOT = Throttled(reason="thermal slowdown by hardware", gpus=(3,), share=0.25)
CAPPED = Throttled(reason="power cap", gpus=(0, 1), share=0.5)


def trained(*throttled: Throttled, on_gpus: bool = True) -> TrainReport:
    log = Log()
    log.start()
    for first in (1, 11, 21, 31):
        log.steps(first, first + 9)
        log.add(sampled(4, gpus=gpus(0.9, throttled=throttled) if on_gpus else None), node=0)
    return fold(log.events, 40)


def titles(page: Page) -> list[str]:
    return [block.text for block in page.blocks if isinstance(block, Heading)]


def test_pages_show_it_only_where_there_are_samples() -> None:
    log = Log()
    log.start()
    log.steps(1, 20)
    silent, sampling = fold(log.events, 40), trained()
    assert hardware_use(silent) == ()
    for report, shown in ((silent, False), (sampling, True)):
        for page in (live_page(report, CONFIG), script_page(report, "own.py")):
            assert ("Utilisation" in titles(page)) is shown
        assert ("Utilisation" in to_markdown(final_page(report, CONFIG))) is shown
    assert "Power of a GPU" in to_html(final_page(sampling, CONFIG), draw_svg)


def test_it_says_what_the_device_did_and_what_it_waited_for() -> None:
    blocks = hardware_use(trained(), detailed=True)
    text = " ".join(block.text for block in blocks if isinstance(block, Text))
    assert "GPU 90.0 % (share of the time in which a kernel ran), 600 W per GPU, CPU 50.0 % of all cores" in text
    assert "1.00 MB/s out, 2.00 MB/s in" in text
    assert "rank 0's device waited" in text
    assert "for data" in text
    charts = [block.title for block in blocks if isinstance(block, Chart)]
    assert charts == ["Utilisation, GPU and CPU", "Power of a GPU"]
    (table,) = [block for block in blocks if isinstance(block, Table)]
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert (row["GPUs"], row["GPU"], row["Lowest GPU"], row["SM clock"]) == ("8", "90.0 %", "45.0 %", "1,900 MHz")


def test_a_cpu_has_no_figures_of_gpus() -> None:
    blocks = hardware_use(trained(on_gpus=False), detailed=True)
    assert not any("GPU" in block.text for block in blocks if isinstance(block, Text))
    assert [block.title for block in blocks if isinstance(block, Chart)] == ["Utilisation, CPU"]
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert not any("GPU" in header for header in table.headers)


def test_throttling_is_a_warning_unless_it_is_the_power_cap() -> None:
    hot = [block for block in hardware_use(trained(HOT)) if isinstance(block, Callout)]
    assert [(block.title, block.tone) for block in hot] == [("GPUs were throttled", "warning")]
    assert "GPU 3 of node 0: thermal slowdown by hardware, 25.0 % of the node's readings" in hot[0].text
    capped = hardware_use(trained(CAPPED))
    assert not any(isinstance(block, Callout) for block in capped)
    assert any("power limit: GPUs 0, 1 of node 0" in block.text for block in capped if isinstance(block, Text))


def test_gpus_that_could_not_be_sampled_are_explained() -> None:
    log = Log()
    log.start()
    log.wait(5)
    log.add(sampled(no_gpus="nvidia-ml-py is not installed: pip install 'metaflow-convoy[nvml]'"), node=0)
    text = " ".join(block.text for block in hardware_use(fold(log.events)) if isinstance(block, Text))
    assert "GPUs were not sampled: nvidia-ml-py is not installed" in text
