"""Authorities, and certificates that they have signed, as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imap_wal.stream import Certificates

_YEAR = dt.timedelta(days=365)


class Authority:
    """Writes into `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        self._subject = _named(name)
        built = self._built(self._subject, self._key.public_key())
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))

    def certificates(self, name: str, trusts: Authority | None = None) -> Certificates:
        """A certificate for this machine, which trusts `trusts`, or this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        built = self._built(_named(name), key.public_key()).add_extension(names, critical=False)
        certificate = self._folder / f"{self._name}-{name}.pem"
        certificate.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))
        key_file = certificate.with_suffix(".key")
        key_file.touch(0o600)
        key_file.write_bytes(key_pem(key))
        return Certificates(certificate, key_file, (trusts or self).file)

    def _built(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _YEAR)
            .not_valid_after(now + _YEAR)
        )


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
