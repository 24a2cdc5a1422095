#!/usr/bin/env bash
# `make test-kind`: the tests of an installation that `make nightly` runs, on a cluster of kind's. Needs an engine, kind,
# and a registry that has the base images. Without an engine or kind it says that it did not run, and ends well.
set -euo pipefail
cd "$(dirname "$0")/../.."
not_run() {
  echo "test-kind DID NOT RUN: $1"
  exit 0
}
command -v docker >/dev/null || not_run "there is no docker"
docker info >/dev/null 2>&1 || not_run "no container engine answers 'docker info'"
command -v kind >/dev/null || not_run "there is no kind"
TARSY_CLUSTER=kind exec .venv/bin/python -m pytest tests/node -m kind "$@"
