#!/usr/bin/env bash
# build.sh OUTDIR: build helm. It prints what dev/controlplane/build.sh does.
set -euo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
program=helm.sh/helm/v4/cmd/helm
# Without a version by ldflags it knows its minor version only.
flags="-s -w -X helm.sh/helm/v4/internal/version.version=$(go list -m -f '{{.Version}}' helm.sh/helm/v4)"
export CGO_ENABLED=0 GOTOOLCHAIN=local
how=(-trimpath -buildvcs=false -ldflags "$flags")
go list -deps "${how[@]}" \
  -f '{{if eq .Name "main"}}link{{else if .Stale}}todo{{else}}have{{end}} {{.ImportPath}}' "$program"
# By exec: whoever kills this script kills Go.
exec go build -v "${how[@]}" -o "$out/helm" "$program"
