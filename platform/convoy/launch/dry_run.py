"""What a configuration would start, in words, for the dry run. Pure."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from convoy.catalog.instances import instance
from convoy.catalog.prices import SHIPPED, Price
from convoy.config.engine import engine_text
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import TIMES, RunConfig
from convoy.display.formatting import size as sized
from convoy.launch.checks.compatibility import world
from convoy.launch.decorators import Decorator, step_decorators
from convoy.launch.pricing import instance_price, machine_count
from convoy.model.counts import checkpoint_bytes
from convoy.planner.workload import rented_type


def describe_run(config: RunConfig, local_gpus: int = 0) -> str:
    """Some lines `key: value`, one per thing that would be launched. Raises as `compatibility.world`."""
    lines = {
        "backend": _backend_text(config),
        "ranks": str(world(config, local_gpus)),
        "machine": machine_in_words(config),
        "price": price_in_words(config),
        "root": config.root or "$CONVOY_ROOT, or the nearest .convoy folder",
        "model": _model_text(config),
        "batch": _batch_text(config),
        "checkpoints": _checkpoints_text(config),
        "budget": _budget_text(config),
    }
    return align_lines(lines)


def align_lines(lines: Mapping[str, str]) -> str:
    """As lines `key: value`, whose values, of one line or several, stand below each other."""
    width = max(len(key) for key in lines) + 2
    line_break = "\n" + width * " "
    return "\n".join(f"{key + ':':<{width}}" + text.replace("\n", line_break) for key, text in lines.items())


def describe_decorators(config: RunConfig) -> str:
    """The Metaflow decorators that its `cluster:` adds to the flow, as one would write them."""
    wanted = step_decorators(config)
    kinds = {"the gang's step": wanted.gang, "the other steps, but start and end": wanted.ordinary}
    lines: list[str] = []
    for which, kind in kinds.items():
        if kind:
            lines += [f"Decorators of {which}:", *_decorator_lines(kind)]
    return "\n".join(["", *(lines or ["Decorators: none"])])


def _decorator_lines(decorators: Sequence[Decorator]) -> Iterator[str]:
    for name, arguments in decorators:
        text = f"@{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        yield from textwrap.wrap(
            text, 80, initial_indent="  ", subsequent_indent=6 * " ", break_long_words=False, break_on_hyphens=False
        )


def missing_checklist(missing: Sequence[ConfigError]) -> str:
    """What the user has still to provide before the run can start."""
    if not missing:
        return "\nNothing is missing, as far as this machine can see: without --dry-run the run starts."
    return "\n".join(
        ["", f"Missing before the run can start ({len(missing)}):", *(f"  [ ] {each}" for each in missing)]
    )


def _backend_text(config: RunConfig) -> str:
    nodes = config.cluster.nodes
    return {
        "local": f"local, {nodes} processes on this host",
        "batch": f"AWS Batch, a multi-node job of {nodes}",
        "kubernetes": f"Kubernetes, a JobSet of {nodes} pods",
    }[config.cluster.backend]


def machine_in_words(config: RunConfig) -> str:
    """Those of one gang."""
    rented = rented_type(config)
    if rented is None:
        return "this host"
    facts = instance(rented)
    gpu = facts.gpu
    gpus = f"{gpu.count} {TIMES} {gpu.name} of {gpu.memory_mib / 1024:.0f} GiB" if gpu else "no GPU"
    links = f"{facts.network_gbps:g} Gbit/s, {facts.efa_interfaces or 'no'} EFA"
    return f"{machine_count(config)} {TIMES} {facts.name}: {gpus}, {facts.vcpus} vCPU, {facts.memory_gib} GiB, {links}"


def price_in_words(config: RunConfig, whose: str = "in all") -> str:
    """Of the machines of one gang, and of each. config: its price is settled where its root answers; elsewhere the
    catalog's counts. whose: said of the former."""
    price = instance_price(config, SHIPPED)
    if price is None:
        cluster = config.cluster
        return "unknown" if cluster.backend == "local" else f"unknown, {cluster.market} in {cluster.region}"
    total = price.usd_per_hour * machine_count(config)
    return (
        f"{total:.2f} USD/h {whose}; {_price_text(price)} a machine and hour, "
        f"{price.market} in {price.region}, {price.date} ({price.source})"
    )


def _price_text(price: Price) -> str:
    if price.low_usd_per_hour == price.high_usd_per_hour:
        return f"{price.usd_per_hour:.2f}"
    return f"{price.usd_per_hour:.2f} (median; zones {price.low_usd_per_hour:.2f} to {price.high_usd_per_hour:.2f})"


def _model_text(config: RunConfig) -> str:
    model = config.model
    by = "" if config.engine.name == "convoy" else f", trained by {engine_text(config.engine)}"
    if isinstance(model, CustomModelConfig):
        return f"{model.name}, built by {model.build}{by}"
    return f"{model.name}, {model.n_layers} layers of width {model.d_model}{by}"


def _batch_text(config: RunConfig) -> str:
    train, length = config.train, config.data.sequence_length
    if config.data.build is not None:
        return f"{train.global_batch} {config.data.unit} a step of {config.data.build}, {train.steps:,} steps"
    tokens = train.global_batch * length
    return f"{train.global_batch} sequences of {length} = {tokens:,} tokens a step, {train.steps:,} steps"


def _checkpoints_text(config: RunConfig) -> str:
    every, steps = config.checkpoint.every_steps, config.train.steps
    count = 1 if every is None else -(-steps // every)
    text = "one, at the end" if every is None else f"every {every:,} steps, {count:,} in all"
    if isinstance(config.model, CustomModelConfig):
        return text
    size = checkpoint_bytes(config.model)
    # One more than are kept is there while the newest is read back, after which the oldest goes.
    retention = config.checkpoint.retention
    retained = retention.keep_last + (steps // retention.keep_every_steps if retention.keep_every_steps else 0)
    most = min(count, retained + 1)
    places = f" on each of {1 + len(config.checkpoint.tiers)} tiers" if config.checkpoint.tiers else ""
    return f"{text}, {sized(size)} each; at most {most:,} at a time: {sized(size * most)}{places}"


def _budget_text(config: RunConfig) -> str:
    limits = [
        f"{limit:g} {unit}"
        for limit, unit in ((config.budget.max_hours, "h"), (config.budget.max_cost_usd, "USD"))
        if limit is not None
    ]
    return " or ".join(limits) if limits else "no limit"
