from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tarsy_dev import assets


def make_program(path: Path) -> Path:
    path.touch(mode=0o755)
    return path


def test_the_program_that_a_variable_names_wins_over_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "kube-apiserver")
    named = make_program(tmp_path / "mine")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("TEST_ASSET_KUBE_APISERVER", str(named))
    assert assets.program("kube-apiserver") == named


def test_the_folder_serves_what_no_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = make_program(tmp_path / "etcd")
    monkeypatch.delenv("TEST_ASSET_ETCD", raising=False)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert assets.program("etcd") == etcd


def test_a_variable_that_names_no_program_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ASSET_ETCD", str(tmp_path / "absent"))
    with pytest.raises(assets.AssetError, match=r"TEST_ASSET_ETCD=.*absent"):
        assets.program("etcd")


def test_a_build_is_named_by_its_sources_and_its_compiler(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main")
    (tmp_path / "kwok.yaml").write_text("stages")
    first = assets.digest(tmp_path, compiler="go1.26")
    (tmp_path / "kwok.yaml").write_text("other stages")
    assert assets.digest(tmp_path, compiler="go1.26") == first
    assert assets.digest(tmp_path, compiler="go1.27") != first
    (tmp_path / "main.go").write_text("package main // changed")
    assert assets.digest(tmp_path, compiler="go1.26") != first


def test_a_module_that_is_not_in_the_cache_may_have_to_be_downloaded(tmp_path: Path) -> None:
    sums = """
        github.com/Azure/go-ansiterm v0.1.0-RC1 h1:aaaa=
        github.com/Azure/go-ansiterm v0.1.0-RC1/go.mod h1:bbbb=
        k8s.io/api v0.36.3 h1:cccc=
        k8s.io/old v0.1.0/go.mod h1:dddd=
    """
    sums = textwrap.dedent(sums).lstrip()
    assert assets.downloads(sums, tmp_path) == 2
    versions = tmp_path / "cache" / "download" / "github.com" / "!azure" / "go-ansiterm" / "@v"
    versions.mkdir(parents=True)
    (versions / "v0.1.0-!r!c1.zip").touch()
    assert assets.downloads(sums, tmp_path) == 1
