#!/usr/bin/env bash
# build.sh OUTDIR [apiserver]: build the control plane's binary and a link for each of its programs; with `apiserver`,
# the smaller binary with etcd and kube-apiserver alone.
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
# Without DWARF, which -s removes anyway, it compiles faster. Both binaries have the same flags: they share packages.
how=(-trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags "$flags")
binary=${2:-controlplane}
programs=(etcd kube-apiserver)
if [[ $binary = controlplane ]]; then
  main=.
  programs+=(kube-controller-manager kube-scheduler kubectl kwok)
else
  main=./$binary
fi
go list -deps "${how[@]}" \
  -f '{{if eq .Name "main"}}link{{else if .Stale}}todo{{else}}have{{end}} {{.ImportPath}}' "$main"
for program in "${programs[@]}"; do
  ln -sf "$binary" "$out/$program"
done
# By exec: whoever kills this script kills Go.
exec go build -v "${how[@]}" -o "$out/$binary" "$main"
