#!/bin/sh
# Creates or updates a virtual environment: tools/setup_venv.sh FOLDER EXTRAS
# EXTRAS is a pip extras suffix such as [dev], or empty.
#
# Without an NVIDIA GPU, torch comes from PyTorch's CPU index if that can be reached (about 200 MB instead of several GB
# of CUDA libraries). TORCH_INDEX names another index; an empty TORCH_INDEX uses pip's own.
#
# Modules are not compiled here: that takes as long as everything else, few of them are ever used, and Python compiles a
# module when it first imports it. With PYTHONDONTWRITEBYTECODE they are: else each start would compile torch again.
set -eu

folder=$1
extras=${2:-}
python=${PYTHON:-python3}
torch_index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
compile=--no-compile
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || compile=--compile
torch=$(sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is required; $python is $("$python" -V)" >&2
    exit 2
}
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"

reachable() {
    "$folder/bin/python" - "$1" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5)
PY
}

if ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    if ! command -v nvidia-smi >/dev/null && [ -n "$torch_index" ] && reachable "$torch_index"; then
        "$folder/bin/pip" install -q $compile "$torch" --index-url "$torch_index"
    else
        "$folder/bin/pip" install -q $compile "$torch"
    fi
fi
"$folder/bin/pip" install -q $compile -c constraints.txt -e ".$extras"
