"""The text of a lab."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.drills.testbed.lab_spec import CONGESTION_CONTROLS, LabSpec, SlowPort, parse_lab


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("4 hosts, 400mbit", LabSpec(4, 400.0)),
        ("loss 0.1%,2 hosts", LabSpec(2, None, loss_percent=0.1)),
        ("2 hosts, 2 rails, 200mbit, delay 5ms, bbr", LabSpec(2, 200.0, delay_ms=5.0, congestion="bbr", rails=2)),
        ("4 hosts, 1gbit, trunk 200mbit", LabSpec(4, 1000.0, trunk_megabits=200.0)),
        ("3 hosts, 1.5gbit, host 2 sends 100mbit", LabSpec(3, 1500.0, slow=(SlowPort(2, "sends", 100.0),))),
        ("3 hosts, host 0 receives 500kbit", LabSpec(3, slow=(SlowPort(0, "receives", 0.5),))),
    ],
)
def test_terms_may_come_in_any_order(text: str, spec: LabSpec) -> None:
    assert parse_lab(text) == spec


SPECS = st.builds(
    LabSpec,
    hosts=st.integers(3, 16),
    megabits=st.none() | st.integers(1, 100_000).map(float),
    loss_percent=st.integers(0, 999).map(lambda tenths: tenths / 10),
    delay_ms=st.integers(0, 500).map(float),
    congestion=st.sampled_from(CONGESTION_CONTROLS),
    rails=st.integers(1, 8),
    trunk_megabits=st.none() | st.integers(1, 100_000).map(float),
    slow=st.lists(
        st.builds(SlowPort, st.integers(0, 2), st.sampled_from(("sends", "receives")), st.integers(1, 999).map(float)),
        max_size=4,
        unique_by=lambda port: (port.host, port.direction),
    ).map(tuple),
)


@given(SPECS)
def test_a_description_is_read_back(spec: LabSpec) -> None:
    assert parse_lab(spec.describe()) == spec


def test_a_slow_port_is_slow_in_its_direction_alone() -> None:
    spec = parse_lab("4 hosts, 400mbit, host 2 sends 100mbit")
    rates = {(host, way): spec.megabits_of(host, way) for host in range(4) for way in ("sends", "receives")}
    assert rates.pop((2, "sends")) == 100
    assert set(rates.values()) == {400}


def test_a_description_says_the_congestion_control() -> None:
    assert parse_lab("0.1gbit,  4 hosts").describe() == "4 hosts, 100mbit, reno"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4 hosts, fast", "--lab 'fast': must be among N hosts, a rate such as 400mbit or 1gbit"),
        ("4 hosts,", "--lab '': must be among"),
        ("1 hosts", "--lab 1 hosts: must be 2 to 16"),
        ("99 hosts", "--lab 99 hosts: must be 2 to 16"),
        ("2 hosts, loss 100%", "--lab loss 100%: must be below 100%"),
        ("2 hosts, 0mbit", "--lab a rate of 0: must be above 0"),
        ("2 hosts, host 2 sends 1mbit", "--lab host 2: must be 0 to 1"),
        ("2 hosts, 9 rails", "--lab 9 rails: must be 1 to 8"),
        ("2 hosts, delay 0.01ms", "--lab delay 0.01ms: must be 0.1 to 1000"),
        ("2 hosts, loss 0.00001%", "--lab loss 1e-05%: must be at least 0.0001%"),
        ("2 hosts, 1mbit, 2mbit", "--lab '2mbit': an earlier term says the same"),
        (
            "2 hosts, host 1 sends 1mbit, host 1 sends 2mbit",
            "--lab 'host 1 sends 2mbit': an earlier term says the same",
        ),
    ],
)
def test_what_cannot_be_names_its_term(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_lab(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
