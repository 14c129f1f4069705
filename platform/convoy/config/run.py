"""The whole configuration of a job, and what its parts demand of each other."""

import math
from typing import NamedTuple

from pydantic import model_validator

from convoy.config.base import FrozenConfig
from convoy.config.checkpoint import CheckpointConfig
from convoy.config.cluster import ClusterConfig
from convoy.config.data import BpeTokenizer, BytesTokenizer, DataConfig, ShardsCorpus, SyntheticCorpus
from convoy.config.engine import EngineConfig, refused_keys
from convoy.config.errors import ConfigError
from convoy.config.json_text import short_hash
from convoy.config.model import CustomModelConfig, ModelConfig, TransformerConfig
from convoy.config.monitor import MonitorConfig
from convoy.config.notify import NotifyConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.trackers import TrackerConfig
from convoy.config.train import (
    BudgetConfig,
    EvaluationConfig,
    NoticesConfig,
    OptimizerConfig,
    ParamDtype,
    ReportConfig,
    ScheduleConfig,
    TrainConfig,
    split_batch,
)

BYTES_VOCABULARY = 257
"""256 bytes and the end of a document."""

TRAIN = (
    "global_batch",
    "micro_batch",
    "param_dtype",
    "reduce_dtype",
    "activation_checkpointing",
    "attention",
    "compile",
    "loss_chunk_tokens",
    "threads_per_rank",
)
"""Keys of `train` that a step's time depends on. Others, such as `steps` and `seed`, make no other training."""

MODEL_UNTIMED = ("name", "norm_eps", "rope_theta", "init_std", "init_from")
"""Keys of `model` that it does not depend on."""

_DATA = ("sequence_length", "packing", "respect_documents")

_CHECKPOINT = ("every_steps", "write_mb_per_second")


class RunConfig(FrozenConfig):
    """Everything a training job needs to know. The defaults are the default job."""

    root: str | None = None
    """Folder, `s3://bucket/prefix` or `gs://bucket/prefix` under which jobs live. Default: $CONVOY_ROOT, or the
    nearest `.convoy`."""
    model: ModelConfig = TransformerConfig()
    """Shape of the model; also the name of a preset of `configs/models/`."""
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    parallel: ParallelConfig = ParallelConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    notices: NoticesConfig = NoticesConfig()
    budget: BudgetConfig = BudgetConfig()
    cluster: ClusterConfig = ClusterConfig()
    report: ReportConfig = ReportConfig()
    monitor: MonitorConfig = MonitorConfig()
    trackers: tuple[TrackerConfig, ...] = ()
    """Tools that follow the job while it runs, e.g. `[{mlflow: "http://tracking:5000"}, {wandb: my-project}]`."""
    notify: NotifyConfig = NotifyConfig()

    @model_validator(mode="after")
    def _parts_agree(self) -> "RunConfig":
        self._check_task()
        length, longest = self.data.sequence_length, self.model.max_sequence_length
        if length > longest and self.data.build is None:
            raise ValueError(f"data.sequence_length = {length}: must be at most model.max_sequence_length, {longest}")
        needed = tokenizer_vocabulary(self.data)
        if needed is not None and needed > self.model.vocab_size and self.data.build is None:
            raise ValueError(
                f"model.vocab_size = {self.model.vocab_size}: must be at least the tokenizer's vocabulary, {needed}"
            )
        if self.parallel.wrap == "linear" and self.train.activation_checkpointing == "selective":
            # torch's selective recomputation pairs the operations of backward with those of forward, one by one, and
            # the gathers within a block are among them: in backward they are others.
            raise ValueError("parallel.wrap = linear: not with train.activation_checkpointing: selective; full works")
        if self.train.attention == "plain" and not isinstance(self.model, TransformerConfig):
            raise ValueError(f"train.attention = plain: model.build = {self.model.build} has an attention of its own")
        return self

    def _check_task(self) -> None:
        task = self.model.task if isinstance(self.model, CustomModelConfig) else "tokens"
        if task == "module" and self.data.build is None:
            raise ValueError("model.task = module: needs data.build, which gives the batches that the module takes")
        if task == "tokens" and self.data.build is not None:
            raise ValueError(f"data.build = {self.data.build}: needs model.build with model.task: module")

    @model_validator(mode="after")
    def _engine_can_do_it(self) -> "RunConfig":
        problems = list(refused_keys(self.engine, self.train, self.optimizer, self.parallel))
        if problems:
            others = ", ".join(each.partition(" = ")[0].partition(":")[0] for each in problems[1:])
            raise ValueError(problems[0] + (f"; also refused: {others}" if others else ""))
        return self

    @model_validator(mode="after")
    def _model_can_be_split(self) -> "RunConfig":
        model, train = self.model, self.train
        for name, ranks in (("tensor", self.parallel.tensor), ("pipeline", self.parallel.pipeline)):
            if ranks > 1 and not isinstance(model, TransformerConfig):
                raise ValueError(f"parallel.{name} = {ranks}: must be 1 with model.build = {model.build}")
            if ranks > 1 and train.compile:
                raise ValueError(f"parallel.{name} = {ranks}: must be 1 with train.compile = true")
        if isinstance(model, TransformerConfig):
            for name, size in model.tensor_split_sizes.items():
                if size % self.parallel.tensor:
                    raise ValueError(f"parallel.tensor = {self.parallel.tensor}: must divide model.{name}, {size}")
            if self.parallel.pipeline > 1:
                self._check_stages(model, self.parallel.pipeline)
        return self

    def _check_stages(self, model: TransformerConfig, stages: int) -> None:
        must = f"parallel.pipeline = {stages}: must be"
        if stages > model.n_layers:
            raise ValueError(f"{must} at most model.n_layers, {model.n_layers}")
        if model.tied_embeddings:
            raise ValueError(f"{must} 1 with model.tied_embeddings = true: embedding and head are on two stages")
        if model.init_from is not None:
            raise ValueError(f"{must} 1 with model.init_from = {model.init_from}")
        if (length := self.evaluation.sample_tokens) and self.evaluation.prompts:
            raise ValueError(f"{must} 1 with evaluation.sample_tokens = {length}, which may be 0")


def tokenizer_vocabulary(data: DataConfig) -> int | None:
    """Ids the data can hold, where the config alone decides; None for a `tokenizer.json`."""
    if isinstance(data.corpus, ShardsCorpus | SyntheticCorpus):
        return data.corpus.vocab_size
    if isinstance(data.tokenizer, BpeTokenizer):
        return data.tokenizer.vocab_size
    if isinstance(data.tokenizer, BytesTokenizer):
        return BYTES_VOCABULARY
    return None


def with_param_dtype(config: RunConfig, dtype: ParamDtype) -> RunConfig:
    """The configuration with `train.param_dtype` set."""
    return config.model_copy(update={"train": config.train.model_copy(update={"param_dtype": dtype})})


def config_hash(config: RunConfig) -> str:
    """First 16 hex digits of the SHA-256 of the configuration's canonical JSON."""
    return short_hash(config.model_dump(mode="json"))


def training_hash(config: RunConfig) -> str:
    """First 16 hex digits of a SHA-256 of all that; of how batches are made only whether that is done ahead. Defaults
    are left out, so that a key which is new to this version makes no other training of one that does not set it. For
    the same reason bf16 is left out: it was the default before `train.param_dtype` had `auto`."""
    train = config.train.model_dump(mode="json", include=set(TRAIN), exclude_defaults=True)
    if train.get("param_dtype") == "bf16":
        del train["param_dtype"]
    engine = config.engine.model_dump(mode="json", exclude_defaults=True)
    return short_hash(
        {
            "model": config.model.model_dump(mode="json", exclude=set(MODEL_UNTIMED), exclude_defaults=True),
            "data": config.data.model_dump(mode="json", include=set(_DATA), exclude_defaults=True),
            "train": train,
            "ahead": config.train.prefetch_steps > 0,
            "fused": config.optimizer.fused,
            "parallel": config.parallel.model_dump(mode="json", exclude_defaults=True),
            "checkpoint": config.checkpoint.model_dump(mode="json", include=set(_CHECKPOINT), exclude_defaults=True),
            **({"engine": engine} if engine else {}),
        }
    )


TIMES = "\N{MULTIPLICATION SIGN}"


class World(NamedTuple):
    """The ranks of a gang: one task per node, `nproc_per_node` ranks each."""

    nodes: int
    nproc_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.nproc_per_node

    def __str__(self) -> str:
        nodes = "node" if self.nodes == 1 else "nodes"
        return f"{self.size} ({self.nodes} {nodes} {TIMES} {self.nproc_per_node})"


def check_ranks(config: RunConfig, ranks: World) -> None:
    """Raises ConfigError if so many ranks cannot share the batch or the shards."""
    batch, shard, tensor = config.train.global_batch, config.parallel.shard_size, config.parallel.tensor
    each, per = ranks.nproc_per_node, "a node"
    if config.cluster.backend == "local":  # all nodes are on this host
        each, per = ranks.size, "this host"
    if each % tensor:
        raise ConfigError(f"parallel.tensor = {tensor}: must divide the ranks of {per}, {each}")
    stages = config.parallel.pipeline
    if ranks.size // tensor % stages:
        groups = "number of ranks" if tensor == 1 else f"number of groups of {tensor} ranks"
        raise ConfigError(f"parallel.pipeline = {stages}: must divide the {groups}, {ranks}")
    _check_micro_batches(config, ranks.size)
    if batch < ranks.size // config.parallel.ranks_per_sample:
        times = "" if config.parallel.ranks_per_sample == 1 else f", divided by {config.parallel.ranks_per_sample}"
        raise ConfigError(f"train.global_batch = {batch}: must be at least the number of ranks, {ranks}{times}")
    if shard is not None and ranks.size % shard:
        raise ConfigError(f"parallel.shard_size = {shard}: must divide the number of ranks, {ranks}")


def _check_micro_batches(config: RunConfig, ranks: int) -> None:
    train, stages = config.train, config.parallel.pipeline
    most = math.ceil(train.global_batch / max(1, ranks // config.parallel.ranks_per_sample))
    passes, _ = split_batch(most, 1, train.micro_batch)
    if passes < stages:
        raise ConfigError(
            f"train.micro_batch = {train.micro_batch}: makes {passes} of the {most} sequences of a step, and "
            f"parallel.pipeline = {stages} needs one micro batch for each stage"
        )
