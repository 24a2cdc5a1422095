from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import oid, verification
from tarsy_dev import certificates


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plane") / "pki"
    certificates.write(folder, ["172.30.0.1", "10.96.0.1"])
    return folder


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def verifier(pki: Path) -> verification.PolicyBuilder:
    return verification.PolicyBuilder().store(verification.Store([load(pki / "ca.crt")])).time(dt.datetime.now(dt.UTC))


@pytest.mark.parametrize(
    ("file", "user", "groups"),
    [
        ("admin", "admin", ["system:masters"]),
        ("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"]),
        ("kube-controller-manager", "system:kube-controller-manager", []),
        ("kube-scheduler", "system:kube-scheduler", []),
        ("kubelet", "system:node:node-0", ["system:nodes"]),
        ("kube-proxy", "system:kube-proxy", []),
    ],
)
def test_each_client_is_known_by_its_user_and_group(pki: Path, file: str, user: str, groups: list[str]) -> None:
    certificate = load(pki / f"{file}.crt")
    certificate.verify_directly_issued_by(load(pki / "ca.crt"))
    names = certificate.subject.get_attributes_for_oid
    assert [name.value for name in names(oid.NameOID.COMMON_NAME)] == [user]
    assert [name.value for name in names(oid.NameOID.ORGANIZATION_NAME)] == groups
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [oid.ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.parametrize("address", ["127.0.0.1", "172.30.0.1", "10.96.0.1"])
def test_the_server_is_known_by_its_addresses(pki: Path, address: str) -> None:
    subject = x509.IPAddress(ipaddress.ip_address(address))
    verifier(pki).build_server_verifier(subject).verify(load(pki / "server.crt"), [])


@pytest.mark.parametrize("name", ["localhost", "kubernetes.default.svc"])
def test_the_server_is_known_by_its_names(pki: Path, name: str) -> None:
    verifier(pki).build_server_verifier(x509.DNSName(name)).verify(load(pki / "server.crt"), [])


def test_the_server_is_not_known_by_another_address(pki: Path) -> None:
    subject = x509.IPAddress(ipaddress.ip_address("192.0.2.1"))
    with pytest.raises(verification.VerificationError):
        verifier(pki).build_server_verifier(subject).verify(load(pki / "server.crt"), [])


def test_keys_fit_their_certificates_and_are_the_owners_alone(pki: Path) -> None:
    for path in pki.glob("*.crt"):
        ssl.create_default_context(cafile=str(pki / "ca.crt")).load_cert_chain(path, path.with_suffix(".key"))
    assert {path.stat().st_mode & 0o777 for path in pki.iterdir()} == {0o600}
    assert pki.stat().st_mode & 0o777 == 0o700


def test_tokens_are_signed_and_checked_by_one_pair(pki: Path) -> None:
    private = serialization.load_pem_private_key((pki / "sa.key").read_bytes(), None)
    assert private.public_key() == serialization.load_pem_public_key((pki / "sa.pub").read_bytes())
