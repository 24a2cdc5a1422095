#!/usr/bin/env bash
# `make test-kind`: image and chart on a cluster of kind's, from an alert that a real Alertmanager sends to the end of its
# investigation. The model is the scripted one. Needs an engine, kind, and a registry that has the base images.
# Without an engine or kind it says that it did not run, and ends well.
set -euo pipefail
cd "$(dirname "$0")/../.."
not_run() {
  echo "test-kind DID NOT RUN: $1"
  exit 0
}
command -v docker >/dev/null || not_run "there is no docker"
docker info >/dev/null 2>&1 || not_run "no container engine answers 'docker info'"
command -v kind >/dev/null || not_run "there is no kind"

cluster=tarsy-test-$$
state=$(mktemp -d)
export KUBECONFIG=$state/kubeconfig
program() { .venv/bin/python -c "import sys; from tarsy_dev import assets; print(assets.program(sys.argv[1]))" "$1"; }
kubectl=$(program kubectl)
helm=$(program helm)
end() {
  status=$?
  if [ "$status" != 0 ]; then
    "$kubectl" get pods,events --all-namespaces || true
    "$kubectl" --namespace tarsy logs deployment/tarsy --tail=200 || true
    "$kubectl" --namespace tarsy get inv --output=yaml || true
  fi
  kind delete cluster --name "$cluster" || true
  rm -rf "$state"
  exit "$status"
}
trap end EXIT

docker build --tag tarsy:kind .
docker build --tag tarsy-model:kind --file dev/kind/Dockerfile dev
kind create cluster --name "$cluster" --wait 180s
kind load docker-image tarsy:kind tarsy-model:kind --name "$cluster"

token=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
"$kubectl" create namespace tarsy
"$kubectl" label namespace tarsy pod-security.kubernetes.io/enforce=restricted
"$kubectl" apply --filename dev/kind/world.yaml
for namespace in tarsy alertmanager; do
  "$kubectl" --namespace "$namespace" create secret generic tarsy-webhook --from-literal="token=$token"
done
"$kubectl" --namespace tarsy create secret generic tarsy-llm-keys --from-literal=GOOGLE_API_KEY=any

"$helm" install tarsy helm/tarsy --namespace tarsy --values dev/kind/values.yaml --timeout 10m
"$kubectl" --namespace tarsy wait deployment --all --for=condition=Available --timeout=10m
"$kubectl" --namespace alertmanager wait deployment --all --for=condition=Available --timeout=10m
"$kubectl" --namespace tarsy apply --filename dev/demo/chain.yaml
"$kubectl" --namespace tarsy wait chain/demo --for=condition=Ready --timeout=60s
"$helm" test tarsy --namespace tarsy --logs

"$kubectl" --namespace alertmanager exec deployment/alertmanager -- \
  amtool --alertmanager.url=http://127.0.0.1:9093 alert add \
  alertname=KubePodCrashLooping namespace=shop pod=web-0 severity=critical
found=
for _ in $(seq 60); do
  found=$("$kubectl" --namespace tarsy get inv --output=name \
    --field-selector=spec.alertType=KubePodCrashLooping)
  [ -z "$found" ] || break
  sleep 1
done
[ -n "$found" ] || { echo "Alertmanager's alert made no AlertInvestigation" >&2; exit 1; }
"$kubectl" --namespace tarsy wait "$found" --for=condition=Complete --timeout=5m
"$kubectl" --namespace tarsy get inv --output=wide
echo "test-kind passed"
