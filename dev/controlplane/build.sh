#!/usr/bin/env bash
# build.sh OUTDIR: build the control plane's binary and a link for each of its programs.
# It prints a plan first (have PACKAGE or todo PACKAGE, as Go's cache has it or not; link PACKAGE for the program's own),
# then each package as it is begun.
set -euo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# Without a version by ldflags the API server calls itself v0.0.0-master+$Format, and kubectl warns about it.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
package=k8s.io/component-base/version
flags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=gomodule -X $package.buildDate=1970-01-01T00:00:00Z"
export CGO_ENABLED=0 GOTOOLCHAIN=local
how=(-trimpath -buildvcs=false -ldflags "$flags")
go list -deps "${how[@]}" \
  -f '{{if eq .Name "main"}}link{{else if .Stale}}todo{{else}}have{{end}} {{.ImportPath}}' .
for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok; do
  ln -sf controlplane "$out/$program"
done
# By exec: whoever kills this script kills Go.
exec go build -v "${how[@]}" -o "$out/controlplane" .
