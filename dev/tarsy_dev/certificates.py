"""The keys and certificates of a control plane: an authority, what it signs, and the pair that signs tokens."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import oid

SERVER = "server"
"""The certificate of the API server, and of the log server beside it."""

_CLIENTS = {
    "kubelet-client": ("kube-apiserver-kubelet-client", "system:masters"),
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kubelet": ("system:node:node-0", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", None),
}
"""The file of a client's certificate: its user and its group."""
_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
_YEARS = dt.timedelta(days=3650)


def write(folder: Path, addresses: Sequence[str] = ()) -> None:
    """Fill `folder`, which is created, with NAME.key and NAME.crt of the authority `ca`, the server and each client.

    The server is known as 127.0.0.1 and by `addresses`. `sa.key` and `sa.pub` are the pair for tokens.
    """
    folder.mkdir(mode=0o700, parents=True)
    authority = _Authority(folder)
    served = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", *addresses)]
    authority.sign(SERVER, user="kube-apiserver", served=[*map(x509.DNSName, _NAMES), *served])
    for file, (user, group) in _CLIENTS.items():
        authority.sign(file, user=user, group=group)
    tokens = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(folder / "sa.key", tokens)
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    _write(folder / "sa.pub", tokens.public_key().public_bytes(serialization.Encoding.PEM, public))


class _Authority:
    """The authority of one control plane."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = _subject("controlplane-ca", None)
        self._key = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "ca.key", self._key)
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._finish("ca", builder.add_extension(_usage(signs=True), critical=True))

    def sign(self, file: str, *, user: str, group: str | None = None, served: Sequence[x509.GeneralName] = ()) -> None:
        """Write FILE.key and FILE.crt: a client's, and a server's as well where there are names that it serves as."""
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(self._folder / f"{file}.key", key)
        builder = self._builder(_subject(user, group), key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        purposes = [oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        if served:
            purposes.append(oid.ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(served), critical=False)
        self._finish(file, builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(hours=1),
            not_valid_after=now + _YEARS,
        )
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(issuer, critical=False)

    def _finish(self, file: str, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        _write(self._folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _subject(user: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(oid.NameOID.COMMON_NAME, user)]
    if group is not None:
        attributes.insert(0, x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    _write(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
