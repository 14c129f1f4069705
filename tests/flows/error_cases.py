"""Every kind of bad input a user can give the train flow: the command, the line it prints, and its exit code.

`{here}` stands for the test's folder and `{job}` for a job that trained 20 steps with configs/train/cpu-smoke.yaml.
"""

from dataclasses import dataclass, field

SMOKE = "configs/train/cpu-smoke.yaml"
P4D = "configs/train/gpt-7b-p4d.yaml"
FILES = "model.vocab_size=257 data.tokenizer.kind=bytes data.corpus.kind=files"
S3_STORE = {"METAFLOW_DEFAULT_DATASTORE": "s3", "METAFLOW_DATASTORE_SYSROOT_S3": "s3://some-bucket/metaflow"}
S3 = "root=s3://some-bucket/jobs data.corpus.path=s3://some-bucket/corpus"


@dataclass(frozen=True)
class Case:
    """One command that cannot work."""

    wrong: str
    """What is wrong with it, in words."""
    overrides: str = ""
    """Value of `--config-value set`."""
    words: str = ""
    """After `run`."""
    config: str = SMOKE
    files: dict[str, str] = field(default_factory=dict)
    """Files below `{here}` and their text."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the environment."""
    live: bool = False
    """Another run is running `{job}`."""
    code: int = 2

    @property
    def needs_interpreter(self) -> bool:
        """It starts tasks, or changes what is read as Python or Metaflow starts: a fork would not show it."""
        return self.code == 1 or any(name.startswith(("PYTHON", "METAFLOW_")) for name in self.variables)


CASES = (
    Case("unknown key", "train.stepz=3"),
    Case("a key of another part", "steps=3"),
    Case("key of another kind of corpus", "data.corpus.path=/corpus"),
    Case("unknown preset", "model=gpt2-125m"),
    Case("wrong type", "train.steps=many"),
    Case("out of range", "optimizer.lr=-1"),
    Case("unknown choice", "parallel.strategy=fsdb"),
    Case("an override without a value", "train.steps"),
    Case("configuration that is not YAML", config="{here}/bad.yaml", files={"bad.yaml": "train: {steps: 3"}),
    Case("key given twice", config="{here}/twice.yaml", files={"twice.yaml": "root: /a\nroot: /b\n"}),
    Case("global batch smaller than the ranks", "train.global_batch=1"),
    Case("shard size that does not divide the ranks", "parallel.strategy=hsdp parallel.shard_size=3 cluster.nodes=4"),
    Case("unknown tracker", overrides="trackers='[{comet: my-project}]'"),
    Case("tracker with a password", overrides="trackers='[{mlflow: https://me:secret@tracking}]'"),
    Case("notifications without a target", overrides="notify.on=[failed]"),
    Case("sequence longer than the model's", "data.sequence_length=512"),
    Case("sequence longer than the corpus", "data.corpus.tokens=100", code=1),
    Case("corpus that does not exist", f"{FILES} data.corpus.path={{here}}/nowhere"),
    Case("corpus without a match", f"{FILES} data.corpus.path={{here}}/corpus", files={"corpus/page.html": "<p>"}),
    Case("file that cannot be read", f"{FILES} data.corpus.path={{here}}/corpus", files={"corpus/a.txt": "-> nowhere"}),
    Case("tokenizer larger than the vocabulary", "data.corpus.kind=stdlib data.tokenizer.kind=bytes"),
    Case(
        "`tokenizer.json` that does not exist",
        "data.corpus.kind=stdlib data.tokenizer.kind=file data.tokenizer.path={here}/tokenizer.json",
    ),
    Case(
        "corpus that needs a package which is not installed",
        "model.vocab_size=257 data.tokenizer.kind=bytes data.corpus.kind=hf data.corpus.path={here}/corpus",
        files={"without/sitecustomize.py": "import sys\nsys.modules['datasets'] = None\n"},
        variables={"PYTHONPATH": "{here}/without"},
    ),
    Case("model folder that does not exist", "model.init_from={here}/gpt2"),
    Case(
        "model folder with another shape",
        "model.init_from={here}/gpt2",
        files={
            "gpt2/config.json": '{"model_type": "gpt2", "vocab_size": 256, "n_layer": 3, "n_embd": 64, "n_head": 4, '
            '"n_positions": 64}'
        },
    ),
    Case(
        "module of a model that does not exist",
        '"model={build: my_model:build, vocab_size: 256, max_sequence_length: 64}"',
    ),
    Case("bad job name", words="--job my/job"),
    Case("two names for one job", words="--job a --tag job:b"),
    Case("another seed than the job's", "train.seed=1 train.steps=40", "--job {job}"),
    Case("another global batch than the job's", "train.global_batch=16 train.steps=40", "--job {job}"),
    Case("other data than the job's", "data.corpus.seed=1 train.steps=40", "--job {job}"),
    Case("another sequence length than the job's", "data.sequence_length=32 train.steps=40", "--job {job}"),
    Case("another model than the job's", "model.n_layers=3 train.steps=40", "--job {job}"),
    Case("job that another run is running", "train.steps=40", "--job {job}", live=True),
    Case("root that cannot be written", "root={here}/file", files={"file": ""}),
    Case("no space for the token shards", "root={here}/new data.corpus.tokens=1000000000000000"),
    Case("cost limit without a price", "budget.max_cost_usd=5"),
    Case("more ranks than GPUs", variables={"CUDA_VISIBLE_DEVICES": "0"}),
    Case("unknown instance type", f"{S3} cluster.instance_type=p4d.24xlagre", config=P4D),
    Case("no instance type", f"{S3} cluster.instance_type=null", config=P4D),
    Case("AWS Batch on spot", f"{S3} cluster.backend=batch", config=P4D),
    Case("Kubernetes with one node", f"{S3} cluster.nodes=1", config=P4D),
    Case("more ranks per node than its GPUs", f"{S3} cluster.nproc_per_node=9", config=P4D),
    Case("a bucket's name not filled in", config=P4D, variables=S3_STORE),
    Case("root that the machines do not see", f"{S3} root=/home/me/jobs", config=P4D),
    Case(
        "root that may be each machine's own",
        f"{S3} root=/fsx/jobs cluster.persistent_volume_claims.fsx=/fsx",
        config=P4D,
    ),
    Case("tier that is the root", "root={here}/jobs checkpoint.tiers=[{here}/jobs]"),
    Case("local datastore for remote machines", S3, config=P4D),
)
