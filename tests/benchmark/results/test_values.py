"""What is told of independent measurements."""

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.benchmark.results.values import sample_median
from tests.benchmark.cases import a_case


def test_six_make_an_interval_and_fewer_a_range() -> None:
    few, enough = sample_median((3.0, 1.0, 2.0)), sample_median((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert (few.median, few.low, few.high, few.n, few.is_interval) == (2.0, 1.0, 3.0, 3, False)
    assert (enough.median, enough.n, enough.is_interval) == (3.5, 6, True)
    assert 1.0 <= enough.low < 3.5 < enough.high <= 6.0


def test_a_file_of_before_there_were_samples_is_read() -> None:
    told = a_case().model_dump(mode="json")
    del told["samples"]
    assert Case.model_validate(told).samples == {}


def test_the_campaign_that_is_only_simulated_is_not_in_the_fingerprint() -> None:
    one, other = (a_case(config={"train": {}, "campaign": {"nodes": n}}) for n in (4, 8))
    assert fingerprint(one) == fingerprint(other)
