#!/usr/bin/env bash
# build.sh OUTDIR: build the node's binary with a link for each of its programs, and the one that its images are made of.
# It prints what dev/controlplane/build.sh does.
set -euo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# Without a version by ldflags the node calls itself v0.0.0-master+$Format.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
package=k8s.io/component-base/version
flags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=gomodule -X $package.buildDate=1970-01-01T00:00:00Z"
export CGO_ENABLED=0 GOTOOLCHAIN=local
# The flags of dev/controlplane, so that Go has compiled most of it.
how=(-trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags "$flags")
go list -deps "${how[@]}" \
  -f '{{if eq .Name "main"}}link{{else if .Stale}}todo{{else}}have{{end}} {{.ImportPath}}' .
for program in coredns kube-proxy; do
  ln -sf kubelet "$out/$program"
done
# By exec: whoever kills this script kills Go.
exec go build -v "${how[@]}" -o "$out/" . ./peer
