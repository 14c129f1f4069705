"""Parts of a step make up all of it, and each moment counts once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.measure.step_shares import Span, Timeline, length, merged, shares, without
from convoy.benchmark.results.values import SHARES, SharedPart

PARTS: list[SharedPart] = ["forward", "backward", "optimizer", "data"]

spans = st.lists(
    st.tuples(st.integers(-20, 120), st.integers(0, 60)).map(lambda t: Span(t[0] / 4, (t[0] + t[1]) / 4)), max_size=12
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    work = {part: draw(spans) for part in PARTS}
    return Timeline(0.0, draw(st.integers(1, 100)) / 4, work, draw(spans), draw(spans))


def _at(found: list[Span], time: float) -> bool:
    return any(span.begin <= time < span.end for span in found)


@given(timelines())
def test_shares_are_of_the_whole_and_none_is_negative(timeline: Timeline) -> None:
    found = shares(timeline)
    assert list(found.parts) == list(SHARES)
    assert sum(found.parts.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in found.parts.values())
    assert 0 <= found.hidden <= 1


@given(timelines())
def test_each_moment_is_counted_for_the_first_that_claims_it(timeline: Timeline) -> None:
    """Beside a count of quarters, into which all spans fall."""
    counted = dict.fromkeys(SHARES, 0)
    hidden = quarters = 0
    while quarters < 4 * timeline.end:
        time = quarters / 4
        part = next((part for part in SHARES if _at(list(timeline.work.get(part, ())), time)), None)
        hidden += part is not None and _at(list(timeline.collectives), time)
        part = part or ("communication" if _at(list(timeline.collectives), time) else None)
        counted[part or ("data" if _at(list(timeline.waits), time) else "idle")] += 1
        quarters += 1
    found = shares(timeline)
    assert found.parts == pytest.approx({part: n / quarters for part, n in counted.items()})
    assert found.hidden == pytest.approx(hidden / quarters, abs=1e-9)


@given(timelines(), st.randoms(use_true_random=False))
def test_the_order_of_the_spans_does_not_matter(timeline: Timeline, order: random.Random) -> None:
    def shuffled(found: list[Span]) -> list[Span]:
        return order.sample(found, len(found))

    other = Timeline(
        timeline.begin,
        timeline.end,
        {part: shuffled(list(timeline.work[part])) for part in order.sample(PARTS, len(PARTS))},
        shuffled(list(timeline.collectives)),
        shuffled(list(timeline.waits)),
    )
    assert shares(other) == shares(timeline)


@given(spans, spans)
def test_what_is_left_and_what_was_taken_are_all_there_is(first: list[Span], second: list[Span]) -> None:
    one, other = merged(first), merged(second)
    both = merged([*first, *second])
    assert length(without(one, other)) == pytest.approx(length(both) - length(other))
    assert without(one, one) == []
    assert without(one, []) == one


def test_a_step_reckoned_by_hand() -> None:
    """Of ten seconds: a wait of one, forward of three, one second in which nothing happens, backward of three while a
    collective of four began, the optimizer."""
    found = shares(
        Timeline(
            begin=0,
            end=10,
            work={"forward": [Span(1, 3), Span(2, 4)], "backward": [Span(5, 8)], "optimizer": [Span(9, 12)]},
            collectives=[Span(5, 9)],
            waits=[Span(-1, 1)],
        )
    )
    assert found.parts == pytest.approx(
        {"forward": 0.3, "backward": 0.3, "optimizer": 0.1, "communication": 0.1, "data": 0.1, "idle": 0.1}
    )
    assert found.hidden == pytest.approx(0.3)


def test_no_time_has_no_shares() -> None:
    with pytest.raises(ValueError, match="no shares"):
        shares(Timeline(1.0, 1.0))
