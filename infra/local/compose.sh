#!/bin/sh
# Runs `docker compose` on compose.yaml, with the images that AWS uses and with what differs on one machine.
# Usage: compose.sh up --detach | logs | down | ...
set -eu
cd "$(dirname "$0")"

image() {
    python3 -c 'import json, sys; print(json.load(open("../kubernetes/versions.json"))["images"][sys.argv[1]])' "$1"
}

METAFLOW_SERVICE_IMAGE=$(image metaflow-service)
METAFLOW_UI_IMAGE=$(image metaflow-ui)
POSTGRES_IMAGE=$(image postgres)

# The ${NAMES} of ../modules/metaflow-service/environment.json.
DB_HOST=database
DB_SSL_MODE=disable
DATASTORE_ROOT=${METAFLOW_DATASTORE_SYSROOT_S3:-}
UI_API=http://localhost:8083/api # Without a load balancer, the browser asks the backend itself.

export METAFLOW_SERVICE_IMAGE METAFLOW_UI_IMAGE POSTGRES_IMAGE DB_HOST DB_SSL_MODE DATASTORE_ROOT UI_API
exec docker compose "$@"
