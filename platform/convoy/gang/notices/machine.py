"""Which sources of notices answer on this machine: what a person is told before a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from convoy.config.train import NoticesConfig
from convoy.gang.notices.poller import DEADLINE_SECONDS, Standing, which_answer
from convoy.gang.notices.sources import machine_sources

_VENDORS = ("sys_vendor", "board_vendor", "bios_vendor")
_HINT = "a pod needs --http-put-response-hop-limit 2 in its instance's metadata options"


def on_ec2(sysfs: Path = Path("/sys")) -> bool:
    """Whether this is an EC2 instance, by its firmware.

    Source: AWS EC2 user guide, "Detect whether a host is an EC2 instance".
    """
    for name in _VENDORS:
        try:
            if "amazon" in (sysfs / "devices/virtual/dmi/id" / name).read_text().lower():
                return True
        except OSError:
            continue
    return False


def has_metadata(environ: Mapping[str, str], sysfs: Path = Path("/sys")) -> bool:
    """Whether it is worth asking for an instance's metadata: elsewhere a question may take seconds to fail."""
    return "AWS_EC2_METADATA_SERVICE_ENDPOINT" in environ or on_ec2(sysfs)


def standings(
    environ: Mapping[str, str], sysfs: Path = Path("/sys"), seconds: float = DEADLINE_SECONDS
) -> list[Standing]:
    """How the sources of this machine's notices stand; none where there can be none. Takes so long at most."""
    return which_answer(machine_sources(environ, NoticesConfig()), seconds) if has_metadata(environ, sysfs) else []


def in_words(found: Sequence[Standing]) -> str:
    """In one line."""
    answering = [standing.source for standing in found if standing.answers]
    if answering:
        return f"notices of this machine's end come from {', '.join(answering)}"
    why = next((standing.problem for standing in found), "this is no EC2 instance")
    hint = f"; {_HINT}" if found else ""
    return f"no notice source: {why}{hint}"
