"""A test CA and certificates signed by it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """The CA's certificate, and a server's chain with its key in one file."""

    ca: Path
    server: Path

    def client(self, name: str = "client", days: int = 2) -> tuple[Path, Path]:
        """Return a client certificate signed by the CA, and its key; with negative *days* it is expired."""
        folder = self.ca.parent
        _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", str(days), "-out", f"{name}.crt")  # fmt: skip
        return folder / f"{name}.crt", folder / f"{name}.key"


def create_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Certificates:
    """Create a CA and a server certificate for these names; with negative *days* it is expired."""
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a CA of a test",
             "-keyout", "ca.key", "-out", "ca.pem", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a server of a test",
             "-keyout", "server.key", "-out", "server.csr")  # fmt: skip
    (folder / "names").write_text(f"subjectAltName={names}\n")
    _openssl(folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", str(days), "-extfile", "names", "-out", "server.crt")  # fmt: skip
    both = folder / "server.pem"
    both.write_text((folder / "server.crt").read_text() + (folder / "server.key").read_text())
    return Certificates(folder / "ca.pem", both)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
