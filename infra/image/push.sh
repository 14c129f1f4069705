#!/usr/bin/env bash
# Builds the image of all tasks and pushes it to the repository of a stack. Needs Docker and AWS credentials.
# Usage: infra/image/push.sh infra/aws-batch
set -euo pipefail
stack=$(realpath "${1:?usage: infra/image/push.sh STACK}")
cd "$(dirname "$0")/../.."

image=$(terraform -chdir="$stack" output -json convoy | python3 -c 'import json, sys; print(json.load(sys.stdin)["image"])')
registry=${image%%/*}
region=$(cut -d . -f 4 <<<"$registry")

if aws ecr describe-images --region "$region" --repository-name "$(cut -d / -f 2- <<<"${image%:*}")" \
    --image-ids imageTag="${image##*:}" >/dev/null 2>&1; then
    echo "$image: already there, and its tag cannot be moved; raise __version__ in platform/convoy/__init__.py" >&2
    exit 1
fi

aws ecr get-login-password --region "$region" | docker login --username AWS --password-stdin "$registry"
docker build --platform linux/amd64 --file infra/image/Dockerfile --tag "$image" .
docker push "$image"
