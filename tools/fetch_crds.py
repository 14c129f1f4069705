"""Fetch the custom resource definitions that manifests of infra/ are validated against, and check them.

    python tools/fetch_crds.py FOLDER [--from FOLDER]

They are files of the releases that infra/kubernetes/versions.json pins, and are too large to be kept here. --from takes
them from a folder that has them already.
"""

import argparse
import hashlib
import json
import sys
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SUMS = REPOSITORY / "tools" / "crds.sha256"
SOURCES = {
    "karpenter": "https://raw.githubusercontent.com/aws/karpenter-provider-aws/{commit}/pkg/apis/crds/{name}",
    "jobset": "https://raw.githubusercontent.com/kubernetes-sigs/jobset/{commit}/config/components/crd/bases/{name}",
}


def fetch(folder: Path, given: Path | None) -> list[Path]:
    """The files, in `folder`. Raises ValueError if one is not what the sums say, OSError if one cannot be had."""
    releases = json.loads((REPOSITORY / "infra" / "kubernetes" / "versions.json").read_text())["releases"]
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for line in SUMS.read_text().splitlines():
        wanted, name = line.split()
        path = folder / name
        if not path.is_file() or _sum(path.read_bytes()) != wanted:
            project = "jobset" if name.startswith("jobset") else "karpenter"
            url = SOURCES[project].format(commit=releases[project]["commit"], name=name)
            data = (given / name).read_bytes() if given else urllib.request.urlopen(url, timeout=60).read()
            if _sum(data) != wanted:
                raise ValueError(f"{name}: has the SHA-256 sum {_sum(data)}, wanted {wanted}")
            path.write_bytes(data)
        found.append(path)
    return found


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="given", type=Path, help="folder that has them already")
    arguments = parser.parse_args()
    try:
        found = fetch(arguments.folder, arguments.given)
    except (OSError, ValueError) as error:
        print(f"fetch_crds: {error}", file=sys.stderr)
        sys.exit(1)
    print(*found, sep="\n")


if __name__ == "__main__":
    main()
