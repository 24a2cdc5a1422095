"""Images from scratch, as OCI archives: one program and nothing else, without an engine or a registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(archive: Path, *, name: str, program: Path) -> None:
    """Write the archive of an image, called `name`, that runs `program`."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    packed = gzip.compress(layer, compresslevel=1, mtime=0)
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": "65532:65532"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": name}
    files = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (packed, config, manifest)}
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [entry]})
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    archive.write_bytes(_tar(files, mode=0o644))


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    with io.BytesIO() as output:
        with tarfile.open(fileobj=output, mode="w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), mode
                tar.addfile(member, io.BytesIO(content))
        return output.getvalue()


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
