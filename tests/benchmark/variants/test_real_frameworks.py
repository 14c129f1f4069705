"""JAX and MLX really train, next to Convoy: `make test-frameworks`, which installs them. Fails without them."""

from pathlib import Path

import pytest

from convoy.benchmark.groups import FrameworkKind
from convoy.benchmark.results.figures import losses_agree, speedup, sync_share
from convoy.benchmark.results.values import COMPILE_SECONDS
from convoy.benchmark.suites.frameworks import PACKAGES, variants_of
from tests.benchmark.benches import a_group, cases_of_gang
from tests.training.job import GPT


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["JAX", "MLX"])
def test_a_framework_learns_as_we_do_in_turns_with_us(kind: FrameworkKind, tmp_path: Path) -> None:
    sections = {"model": GPT, "parallel": {"strategy": "ddp"}, "train": {"clip_norm": 0.1, "param_dtype": "fp32"}}
    sections["train"] |= {"global_batch": 4, "micro_batch": 2}
    specs = variants_of(kind, 2)
    cases = cases_of_gang(a_group(str(tmp_path), *specs, nodes=2, suite="frameworks", **sections), nodes=2)
    convoy, own = cases["Convoy"], cases[kind]
    assert len(own.losses) == 10
    assert losses_agree(own, convoy, 1e-5)
    assert losses_agree(cases[f"{kind}, alone"], cases["Convoy, alone"], 1e-5)
    assert own.losses[0] != own.losses[-1]
    assert own.parameters == convoy.parameters
    assert speedup(own, convoy).n == 6
    assert sync_share(own, cases[f"{kind}, alone"]).n == 6
    assert all({"forward", "backward", "sync", "optimizer"} <= set(block.parts) for block in own.blocks)
    assert {*PACKAGES[kind]} <= set(own.provenance.versions)
    assert (own.values.get(COMPILE_SECONDS, 0) > 0) is (kind == "JAX")
