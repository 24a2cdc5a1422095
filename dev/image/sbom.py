"""Print the software bill of materials of the image, in CycloneDX's JSON: its Python packages, and the MCP server.

`sbom.py SITE_PACKAGES PACKAGE_LOCK`, at the end of the image's build. What the base image has is not in it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

MCP_SERVER = "kubernetes-mcp-server"


def main() -> None:
    """Print it."""
    packages, lock = sys.argv[1:]
    components = [_component(each) for each in importlib.metadata.distributions(path=[packages])]
    components.sort(key=lambda component: component["name"])
    (product,) = [component for component in components if component["name"] == "tarsy"]
    server = json.loads(Path(lock).read_text())["packages"][f"node_modules/{MCP_SERVER}"]
    others = [component for component in components if component is not product]
    others.append(_named(MCP_SERVER, server["version"], kind="npm", license_name=server.get("license")))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**product, "type": "application"}},
        "components": others,
    }
    print(json.dumps(bill, indent=1))


def _component(package: importlib.metadata.Distribution) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
    return _named(name, package.version, kind="pypi", license_name=package.metadata["License-Expression"])


def _named(name: str, version: str, *, kind: str, license_name: str | None) -> dict[str, Any]:
    address = f"pkg:{kind}/{name}@{version}"
    component: dict[str, Any] = {"type": "library", "bom-ref": address, "name": name, "version": version}
    if license_name:
        component["licenses"] = [{"expression": license_name}]
    return {**component, "purl": address}


if __name__ == "__main__":
    main()
