"""Figures that come from one another and are then rounded have no finding."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.audit.audit import audit
from convoy.audit.reader import read_claims


def text(value: float, digits: int, unit: str = "") -> str:
    """With so many significant digits, zeros at the end of whole numbers included."""
    rounded = float(f"{value:.{digits - 1}e}")
    plain = f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"
    return f"{plain}{unit}"


@settings(max_examples=25, deadline=None)
@given(
    digits=st.integers(2, 6),
    nodes=st.integers(1, 64),
    parameters=st.floats(1e9, 20e9),
    mfu=st.floats(0.2, 0.6),
    tokens=st.sampled_from([100e9, 300e9, 1e12, 1.4e12]),
    sequences=st.sampled_from([256, 512, 1024]),
    price=st.floats(10, 30),
)
def test_a_rounded_page_has_no_finding(
    digits: int, nodes: int, parameters: float, mfu: float, tokens: float, sequences: int, price: float
) -> None:
    gpus, length = 8 * nodes, 2048
    rate = gpus * mfu * 312e12 / (6 * parameters)
    hours = tokens / rate / 3600
    run = {
        "parameters": text(parameters / 1e9, max(digits, 3), " B"),
        "gpus": f"{gpus} × A100-80",
        "nodes": str(nodes),
        "sequence_length": str(length),
        "global_batch": str(sequences),
        "throughput": text(rate, digits, " tokens/s"),
        "throughput_per_gpu": text(rate / gpus, digits, " tokens/s/GPU"),
        "mfu": text(100 * mfu, digits, " %"),
        "tokens": f"{tokens / 1e9:g}B",
        "steps": text(tokens / sequences / length, max(digits, 3)),
        "step_time": text(sequences * length / rate, digits, " s"),
        "time": text(hours, digits, " h"),
        "gpu_hours": text(hours * gpus, digits),
        "price_per_hour": text(price, max(digits, 3), ""),
        "cost": text(hours * nodes * price, digits, ""),
        "cost_per_tokens": text(hours * nodes * price / tokens * 1e9, digits, " per 1B tokens"),
    }
    found = audit(read_claims(json.dumps(run), "test"))
    assert [each for each in found.findings if "states" not in each.arithmetic and "fit" not in each.arithmetic] == []
