"""The workloads that the suite of this name measures, each in full and as a small twin. Imports no torch."""

from typing import Any, Literal, NamedTuple

from convoy.config.errors import ConfigError, must_be_one_of

Size = Literal["small", "full"]

MODULES, DATA = f"{__package__}.modules", f"{__package__}.data"


class Shape(NamedTuple):
    """A workload in one size."""

    name: str
    """Name of the model on the page, with what distinguishes it from the whole model."""
    each: int
    """Samples of one rank in a step."""
    model: dict[str, Any]
    """Arguments of the module's function; of a decoder, keys of `model`."""
    data: dict[str, Any]
    """Arguments of the dataset's function; of a decoder, keys of `data`."""


class Workload(NamedTuple):
    """A model that people compare machines by."""

    name: str
    unit: str
    """What one sample is called, in the plural."""
    small: Shape
    full: Shape
    module: str | None = None
    """Function in `modules.py`; None: a decoder of Convoy's own."""
    dataset: str = ""
    """Function in `data.py`."""
    collate: str | None = None
    """Function in `data.py`; None: torch's own."""
    packages: tuple[str, ...] = ("transformers", "sklearn")
    """What its modules and data need besides Convoy's own dependencies."""

    def shape(self, size: Size) -> Shape:
        return self.full if size == "full" else self.small

    def run_keys(self, size: Size, ranks: int) -> dict[str, Any]:
        """Keys of a run of so many ranks."""
        shape = self.shape(size)
        train: dict[str, Any] = {
            "global_batch": shape.each * ranks,
            "micro_batch": shape.each,
            "param_dtype": "bf16" if size == "full" else "fp32",
        }
        if self.module is None:
            return {"model": {**shape.model, "name": shape.name}, "data": shape.data, "train": train}
        model = {"build": f"{MODULES}:{self.module}", "task": "module", "name": shape.name, "args": shape.model}
        data = {"build": f"{DATA}:{self.dataset}", "unit": self.unit, "args": shape.data}
        if self.collate is not None:
            data["collate"] = f"{DATA}:{self.collate}"
        return {"model": model, "data": data, "train": {**train, "loss_chunk_tokens": 0}}


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet50",
        unit="images",
        module="resnet",
        dataset="images",
        small=Shape(
            "resnet, small",
            16,
            {"depths": [1, 1, 1, 1], "widths": [64, 128, 256, 512], "classes": 10},
            {"kind": "digits"},
        ),
        full=Shape("resnet50", 4, {}, {"kind": "synthetic", "side": 224, "classes": 1000}),
    ),
    Workload(
        name="bert-large",
        unit="sequences",
        module="bert",
        dataset="masked_text",
        small=Shape(
            "bert, small",
            8,
            {"width": 128, "layers": 3, "heads": 4, "vocabulary": 260},
            {"kind": "stdlib", "length": 128},
        ),
        full=Shape("bert-large", 2, {}, {"kind": "synthetic", "length": 512, "vocabulary": 30522}),
    ),
    Workload(
        name="vit-large",
        unit="images",
        module="vit",
        dataset="images",
        small=Shape(
            "vit, small",
            16,
            {"width": 128, "layers": 3, "heads": 4, "side": 32, "patch": 4, "classes": 10},
            {"kind": "digits"},
        ),
        full=Shape("vit-large", 4, {}, {"kind": "synthetic", "side": 224, "classes": 1000}),
    ),
    Workload(
        name="gpt2-xl",
        unit="tokens",
        small=Shape(
            "gpt2, small",
            8,
            {"n_layers": 4, "d_model": 192, "n_heads": 3, "vocab_size": 4096, "max_sequence_length": 256},
            {"sequence_length": 256},
        ),
        full=Shape(
            "gpt2-xl, 12 of 48 layers",
            1,
            {
                "n_layers": 12,
                "d_model": 1600,
                "n_heads": 25,
                "vocab_size": 50257,
                "max_sequence_length": 1024,
                "tied_embeddings": True,
            },
            {"corpus": {"kind": "synthetic", "tokens": 2_000_000, "vocab_size": 50257}, "sequence_length": 1024},
        ),
        packages=(),
    ),
    Workload(
        name="detection",
        unit="images",
        module="yolos",
        dataset="scenes",
        collate="detection_batch",
        small=Shape(
            "yolos, small",
            4,
            {"width": 96, "layers": 3, "heads": 3, "side": 64, "patch": 8, "queries": 12, "classes": 10},
            {"kind": "digits", "side": 64},
        ),
        full=Shape("yolos-base", 1, {}, {"kind": "synthetic", "side": 512, "classes": 91}),
    ),
)
"""In the order of the page. Of detectors, YOLOS is the one whose module `transformers` builds without further packages.
torchvision, which has RetinaNet, is published on PyPI for CUDA builds of torch only."""

_AGPL = (
    "ultralytics' YOLO is licensed under the AGPL, which Convoy cannot build on; detection is YOLOS, by transformers"
)


def workload(name: str, key: str) -> Workload:
    """The workload of this name. key: of the configuration, which errors name. Raises ConfigError."""
    for each in WORKLOADS:
        if each.name == name:
            return each
    if name.startswith("yolov") or name in ("yolo", "ultralytics"):
        raise ConfigError(f"{key} = {name}: {_AGPL}")
    raise ConfigError(f"{key} = {name}: {must_be_one_of(name, [each.name for each in WORKLOADS])}")
