#!/usr/bin/env bash
# Checks that Terraform is there, and says how to get it. The tests of infra/ take it from PATH, and its AWS provider from
# the folder $TF_PLUGIN_DIR, if that is set, or else from Terraform's registry.
#
#   tools/check_terraform.sh
#   tools/check_terraform.sh mirror FOLDER    # downloads the provider into FOLDER, for machines without the registry
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=1.11

refuse() {
    echo "$1; install $wanted or newer: https://developer.hashicorp.com/terraform/install" >&2
    exit 2
}

command -v terraform >/dev/null || refuse "terraform: not on PATH"
unset TF_CLI_CONFIG_FILE
found=$(terraform version -json | python3 -c 'import json, sys; print(json.load(sys.stdin)["terraform_version"])')
[ "$(printf '%s\n' "$wanted" "$found" | sort --version-sort | head -n 1)" = "$wanted" ] || refuse "terraform: $found is too old"
if [ "${1:-}" = mirror ]; then
    folder=$(realpath -m "${2:?usage: $0 mirror FOLDER}")
    mkdir -p "$folder"
    terraform -chdir=infra/aws-batch get
    exec terraform -chdir=infra/aws-batch providers mirror "$folder"
fi
if [ -n "${TF_PLUGIN_DIR:-}" ] && [ ! -d "$TF_PLUGIN_DIR/registry.terraform.io/hashicorp/aws" ]; then
    echo "TF_PLUGIN_DIR = $TF_PLUGIN_DIR: has no registry.terraform.io/hashicorp/aws; fill it by: $0 mirror $TF_PLUGIN_DIR" >&2
    exit 2
fi
