"""Runs a script as `python` would, and records which samples each training batch has: one line of JSON per batch.

Arguments: the script, the folder for records, seconds to pause at each batch, and the script's own.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

script, folder, pause, *sys.argv[1:] = sys.argv[1:]
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
record = Path(folder, f"{generation}-{os.environ['RANK']}.jsonl").open("w", buffering=1)  # noqa: SIM115
first: list[nn.Module] = []


def note(module: nn.Module, inputs: Any) -> None:
    """The first column of what the first layer gets is the sample's number."""
    if not first and next(module.children(), None) is None:
        first.append(module)
    if module in first and torch.is_grad_enabled():
        record.write(json.dumps([int(number) for number in inputs[0][:, 0]]) + "\n")
        time.sleep(float(pause))


register_module_forward_pre_hook(note)
if "deepspeed" in Path(script).name:
    import deepspeed

    vars(deepspeed.ops).setdefault("__compatible_ops__", {})  # or it compiles for minutes what only inference uses
runpy.run_path(script, run_name="__main__")
