"""A preset becomes the configuration of a stack: its root, bucket, region, image, and where its gang runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from convoy.config.benchmark import read_bench, resolve_bench
from convoy.config.cluster import ClusterConfig, FileSystemConfig
from convoy.config.errors import ConfigError, Keys, one_line, yaml_value
from convoy.config.loader import config_file, configs_folder, read_run, read_tree, resolve
from convoy.config.run import RunConfig
from convoy.infra.stack import Pool, Stack
from convoy.infra.yaml_edit import set_values
from convoy.launch.checks.compatibility import BATCH_ONLY, KUBERNETES_ONLY, PLACEHOLDER


class ConfigText(NamedTuple):
    """A configuration of the train flow, or of the benchmark flow, whose `run:` holds one."""

    text: str
    kind: Literal["train", "bench"]
    config: RunConfig
    """Of a benchmark, with its first model."""

    @property
    def at(self) -> Keys:
        """The keys above those of the RunConfig."""
        return ("run",) if self.kind == "bench" else ()


def read_config_text(name: str) -> ConfigText:
    """A file, or a preset of `configs/train/` or `configs/bench/`. Raises ConfigError."""
    try:
        is_bench, is_train = ((configs_folder() / kind / f"{name}.yaml").is_file() for kind in ("bench", "train"))
        path = config_file(name, "bench" if is_bench and not is_train else "train")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {one_line(error)}") from None
    return parse_config_text(str(path), text)


def parse_config_text(subject: str, text: str) -> ConfigText:
    """subject: what to call it in errors. Raises ConfigError."""
    if "run" not in read_tree(subject, text):
        return ConfigText(text, "train", resolve(read_run(text), {}))
    bench = resolve_bench(read_bench(text), {})
    return ConfigText(text, "bench", resolve({**bench.run, "model": bench.presets[bench.models[0]]}, {}))


def connect(preset: ConfigText, stack: Stack) -> str:
    """The preset's text with the stack's values. Raises ConfigError if the stack does not have its machines."""
    _same_backend(preset.config, stack)
    pool = stack.pool_for(preset.config.cluster)
    values = {(*preset.at, *keys): value for keys, value in _values(preset.config, stack, pool)}
    return set_values(preset.text, values, (PLACEHOLDER, stack.bucket))


def _same_backend(config: RunConfig, stack: Stack) -> None:
    """Raises ConfigError, with the keys to change, for a preset of another backend."""
    cluster = config.cluster
    if cluster.backend == stack.backend:
        return
    change = [f"cluster.backend = {stack.backend}"]
    if cluster.instance_type is None:
        change += ["cluster.instance_type", "cluster.nodes"]
    if stack.backend == "batch" and cluster.market == "spot":
        change.append("cluster.market = on_demand or capacity_block")
    if stack.backend == "kubernetes" and cluster.nodes < 2:
        change.append("cluster.nodes = 2 or more")
    defaults = ClusterConfig().model_dump(mode="json")
    others = KUBERNETES_ONLY if stack.backend == "batch" else BATCH_ONLY
    change += [f"cluster.{key} = {yaml_value(defaults[key])}" for key in others if getattr(cluster, key)]
    raise ConfigError(
        f"cluster.backend = {cluster.backend}: the stack {stack.stack} is for {stack.backend}; set {', '.join(change)}"
    )


def _values(config: RunConfig, stack: Stack, pool: Pool) -> Iterator[tuple[Keys, Any]]:
    """What the stack decides. A key whose default is right, and which the preset does not set, is left out."""
    cluster = config.cluster
    wanted: dict[str, Any] = {"region": stack.region, "image": stack.image}
    if stack.backend == "batch":
        wanted |= {"queue": pool.queue, "iam_role": stack.iam_role, "host_volumes": list(stack.host_volumes)}
    else:
        wanted |= {
            "namespace": stack.namespace,
            "service_account": stack.service_account,
            "node_selector": pool.node_selector,
            "tolerations": list(pool.tolerations),
            "persistent_volume_claims": stack.persistent_volume_claims,
        }
    yield ("root",), stack.root
    present = cluster.model_dump(mode="json")
    for key, value in wanted.items():
        if present[key] != value:
            yield ("cluster", key), value
    if stack.file_system is not None and (own := _file_system(cluster, stack.file_system)) != cluster.file_system:
        yield ("cluster", "file_system"), own.model_dump(mode="json", exclude_none=True)


def _file_system(cluster: ClusterConfig, of_stack: FileSystemConfig) -> FileSystemConfig:
    """The stack's size and throughput class, with the preset's price."""
    price = cluster.file_system and cluster.file_system.price
    return of_stack.model_copy(update={"price": price})


def next_command(kind: str, output: Path, profile: str) -> str:
    """What to run next."""
    flow, name = ("train_flow", "run") if kind == "train" else ("benchmark_flow", "bench")
    return f"METAFLOW_PROFILE={profile} python flows/{flow}.py --config {name} {output} run"


def check_output(path: Path, text: str) -> None:
    """Raises ConfigError if the file exists with other content."""
    if path.exists() and path.read_bytes() != text.encode():
        raise ConfigError(f"--output {path}: already there, with other content; name another file")
