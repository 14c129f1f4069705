"""Tests of the benchmark scripts, which import one another as scripts do: from their own folder."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(FOLDER))
