#!/usr/bin/env bash
# base.sh ARCHIVE: write a tree of files that stands for the public Python image, made of Debian's packages: its Python is
# where that image has it, below /usr/local, with pip's wheels for venv. For root, where no registry of images is reached.
set -euo pipefail
archive=$1
. /etc/os-release
mirror=$(sed -nE 's/^URIs: *(\S+)$/\1/p; s/^deb +(\[[^]]*\] +)?(\S+) .*/\2/p' \
  $(ls /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null) | grep -m1 '/debian/*$' || true)
tree=$(mktemp -d)
trap 'rm -rf --one-file-system "$tree"' EXIT
# What it mounts ends with its namespace.
unshare --mount --propagation private \
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$VERSION_CODENAME" "$tree" ${mirror:+"$mirror"} >&2
cd "$tree"
version=$(basename "$(readlink usr/bin/python3)")
rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/* usr/share/{doc,man,locale,info} "usr/local/lib/$version"
mv "usr/lib/$version" usr/local/lib/
mv "usr/bin/$version" usr/local/bin/
ln -s "$version" usr/local/bin/python3
rm -rf usr/bin/python3 usr/lib/python3 usr/share/python3
find "usr/local/lib/$version" -name __pycache__ -prune -exec rm -rf {} +
tar --create --one-file-system --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --file "$archive" .
