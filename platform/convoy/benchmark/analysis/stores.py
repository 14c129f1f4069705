"""Saves and restores at each store of a benchmark, and what they cost by the catalog. Pure."""

from collections.abc import Iterator, Sequence

from convoy.benchmark.results import values
from convoy.benchmark.results.case import LOCAL, Case, FrozenResult, Status
from convoy.benchmark.results.values import SampleMedian, sample_median, sample_median_of
from convoy.catalog.services import GB, REQUESTS, Service, ServicePrice, service_price

CONVOY, PICKLED = "Convoy", "gzip + pickle"
"""How a state was saved."""

STANDARD = "STANDARD"
"""The storage class whose price the catalog has."""


class RequestCount(FrozenResult):
    """Requests of all ranks for one save or restore: the median of each kind."""

    puts: float
    """PUT, COPY, POST and LIST of S3, class A of Google's."""
    gets: float
    """GET and others, class B; DELETE is free."""

    @property
    def total(self) -> float:
        return self.puts + self.gets


class StoreCost(FrozenResult):
    """What a store costs by the catalog's prices of S3."""

    save_usd: float
    """Requests of one save."""
    month_usd: float
    """What was saved, kept for a month."""
    region: str
    region_is_known: bool
    """Replies named the region of the bucket; else it is that of the configured machines."""
    prices: tuple[ServicePrice, ...]
    """Those of PUT, COPY, POST and LIST, of other requests, and of storage."""


class StoreFigures(FrozenResult):
    """A store, or the same state saved below the same folder in another way."""

    group: str
    model: str
    store: str
    saver: str
    """`Convoy` or `gzip + pickle`."""
    status: Status
    reason: str = ""
    """Why there are no figures, in one line."""
    ranks: int
    state_bytes: float | None = None
    """Of what was saved at rest, before it was compressed."""
    written_bytes: float | None = None
    save: SampleMedian | None = None
    """Seconds with nothing else going on: until the commit, of gzip + pickle until the files are closed."""
    durable: SampleMedian | None = None
    """Seconds until the commit while steps go on, at the configured pace."""
    restore: SampleMedian | None = None
    save_rate: SampleMedian | None = None
    """Bytes of the state per second, of all ranks together."""
    restore_rate: SampleMedian | None = None
    save_requests: RequestCount | None = None
    """None: a folder is asked nothing that is counted."""
    restore_requests: RequestCount | None = None
    cost: StoreCost | None = None
    why_no_cost: str = ""


def store_figures(cases: Sequence[Case]) -> tuple[StoreFigures, ...]:
    """A row for each store, folders first and each with one more for gzip + pickle, by group."""
    measured = [(case, case.store) for case in cases if case.store is not None]
    measured.sort(key=lambda each: (each[0].group, each[1].kind, each[1].uri != LOCAL, each[1].uri))
    return tuple(row for case, _ in measured for row in _rows(case))


def _rows(case: Case) -> Iterator[StoreFigures]:
    assert case.store is not None
    shared = {"group": case.group, "model": case.model, "store": case.store.uri, "ranks": case.hardware.ranks}
    if case.status != "measured":
        yield StoreFigures(**shared, saver=CONVOY, status=case.status, reason=case.reason)
        return
    size = case.values[values.REST_BYTES]
    cost, why = _cost(case, size)
    yield StoreFigures(
        **shared,
        saver=CONVOY,
        status="measured",
        state_bytes=size,
        written_bytes=size,
        durable=sample_median_of(case, values.DURABLE),
        save_requests=_requests(case, values.SAVE_PUTS, values.SAVE_GETS),
        restore_requests=_requests(case, values.RESTORE_PUTS, values.RESTORE_GETS),
        cost=cost,
        why_no_cost=why,
        **_times(case, values.SAVE, values.RESTORE, size),
    )
    failed = case.not_measured.get(PICKLED, "")
    if failed or values.GZIP_BYTES in case.values:
        yield StoreFigures(
            **shared,
            saver=PICKLED,
            status="failed" if failed else "measured",
            reason=failed,
            state_bytes=size,
            written_bytes=case.values.get(values.GZIP_BYTES),
            **_times(case, values.GZIP_SAVE, values.GZIP_RESTORE, size),
        )


def _times(case: Case, save: str, restore: str, size: float) -> dict[str, SampleMedian | None]:
    """save, restore: names of samples."""
    rates = {name: sample_median([size / s for s in case.samples.get(name, ()) if s > 0]) for name in (save, restore)}
    return {
        "save": sample_median_of(case, save),
        "restore": sample_median_of(case, restore),
        "save_rate": rates[save],
        "restore_rate": rates[restore],
    }


def _requests(case: Case, puts: str, gets: str) -> RequestCount | None:
    if puts not in case.values:
        return None
    return RequestCount(puts=case.values[puts], gets=case.values[gets])


def _cost(case: Case, size: float) -> tuple[StoreCost | None, str]:
    """What one save asks and a month of it costs, or why that is not known. As the ledger of a job does, a bucket whose
    region no reply named has the prices of the machines' region."""
    assert case.store is not None
    requests = _requests(case, values.SAVE_PUTS, values.SAVE_GETS)
    if case.store.kind == "folder" or requests is None:
        return None, "a folder is paid for with its disk or file system, whatever is saved there"
    if case.store.kind == "gs":
        return None, "the catalog has no prices of Google's"
    storage_class = case.config.get("checkpoint", {}).get("store", {}).get("storage_class", STANDARD)
    if storage_class != STANDARD:
        return None, f"the catalog has no prices of the storage class {storage_class}"
    region = case.store.region or case.cluster_setting("region") or ""
    names: tuple[Service, ...] = ("s3_puts", "s3_gets", "s3_storage")
    put, get, stored = (service_price(name, region) for name in names)
    if put is None or get is None or stored is None:
        return None, f"the catalog has no prices of S3 in {region or 'an unknown region'}"
    return StoreCost(
        save_usd=(requests.puts * put.usd + requests.gets * get.usd) / REQUESTS,
        month_usd=size / GB * stored.usd,
        region=region,
        region_is_known=case.store.region is not None,
        prices=(put, get, stored),
    ), ""
