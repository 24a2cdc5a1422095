from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from tarsy_dev import assets

FILES = {
    "go.mod": """
        module example.test/tiny

        go 1.26

        require k8s.io/kubernetes v1.36.3

        replace k8s.io/kubernetes => ./kubernetes
    """,
    "go.sum": "",
    "apiserver/main.go": """
        package main

        func main() { println("the API server alone") }
    """,
    "kubernetes/go.mod": "module k8s.io/kubernetes\n",
}


def test_unfetchable_programs_are_built_and_reason_is_logged_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, lock = tmp_path / "source", tmp_path / "lock"
    for name, text in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    shutil.copy(assets.SOURCE / "build.sh", source)
    lock.write_text("")
    assets.make_api_programs(tmp_path, lock=lock, source=source)
    assert "there is no archive of envtest for" in capsys.readouterr().err.splitlines()[0]
    done = subprocess.run([tmp_path / "kube-apiserver"], check=True, capture_output=True, text=True)
    assert done.stderr.startswith("the API server alone")
