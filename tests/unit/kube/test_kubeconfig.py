from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import kubeconfigs
from tarsy.kube import client


def with_cluster(**more: str) -> str:
    cluster = {"server": "https://127.0.0.1:1", **more}
    return json.dumps(
        {
            "current-context": "one",
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "one", "user": {}}],
        }
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"users:\n- token: s3cret: x\n", "not YAML, line 2"),
        (b"a: \x00 s3cret", "not YAML"),
        (b"a: \xff s3cret", "'utf-8' codec can't decode"),
        (b"s3cret", "not a kubeconfig: the file: Input should be a valid dictionary"),
        (b"- s3cret", "not a kubeconfig: the file: Input should be a valid dictionary"),
        (b"clusters: s3cret", "not a kubeconfig: clusters: Input should be a valid list"),
        (b"users: [{token: s3cret}]", "not a kubeconfig: users.0.name: Field required"),
        (b"{}", "Invalid kube-config file. Expected key current-context"),
        (
            b"{current-context: one, contexts: [{name: one, context: s3cret}]}",
            "contexts.0.context: Input should be a valid dictionary",
        ),
        (b"{current-context: one, contexts: [{name: one, context: {cluster: two}}]}", "Expected object with name two"),
        (
            with_cluster().replace('"name": "one", "user"', '"name": "two", "user"').encode(),
            "no user, or one that is not",
        ),
        (with_cluster(**{"certificate-authority": "/nowhere"}).encode(), "/nowhere"),
        (with_cluster(**{"certificate-authority-data": "s3cret"}).encode(), ""),
        (with_cluster(**{"certificate-authority-data": "c2VjcmV0"}).encode(), ""),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(client.ConfigError, match=f"^{re.escape(str(file))}: .*{re.escape(problem)}") as error:
        await client.connect(file)
    assert "s3cret" not in str(error.value)


async def test_missing_kubeconfig_is_reported_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "no such file: name a kubeconfig by --kubeconfig or KUBECONFIG$"
    with pytest.raises(client.ConfigError, match=f"^{tmp_path}/missing: {remedy}"):
        await client.connect(tmp_path / "missing")
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", f"{tmp_path}/a:{tmp_path}/b"):
        monkeypatch.setenv("KUBECONFIG", unset)
        with pytest.raises(client.ConfigError, match=f"^{unset or f'{tmp_path}/.kube/config'}: {remedy}"):
            await client.connect(None)


async def test_kubeconfig_files_listed_in_variable_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = kubeconfigs.write(tmp_path / "there", server="http://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{there}")
    cluster = await client.connect(None)
    assert (cluster.served.own, cluster.configuration.host) == ("tarsy", "http://127.0.0.1:1")
    await cluster.close()
