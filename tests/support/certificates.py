"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "ca.pem"
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tests")
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        made = made.add_extension(_usage(signs=True), critical=True)
        self.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def signed(self, name: str, *, passphrase: bytes | None = None) -> Signed:
        """A certificate for server and client alike."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = self._builder(_name(name), key.public_key()).add_extension(
            x509.SubjectAlternativeName([address]), critical=False
        )
        made = made.add_extension(_usage(signs=False), critical=True)
        signed = Signed(certificate=self._folder / f"{name}.crt", key=self._folder / f"{name}.key")
        signed.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        signed.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption(),
            )
        )
        return signed

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        built = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY,
        )
        built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return built.add_extension(issued_by, critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
