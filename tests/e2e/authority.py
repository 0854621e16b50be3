"""Certificates for tests, made by the ``openssl`` command."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; `certificate` is what those trust who trust it."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = name
        self._own = Pair(directory / f"{name}.pem", directory / f"{name}.key")
        self._request(self._own, name, "basicConstraints=critical,CA:TRUE")

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def issue(self, name: str, places: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """A certificate for this machine, or for other `places`, whose subject is `name`."""
        issued = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        signer = ["-CA", str(self._own.certificate), "-CAkey", str(self._own.key)]
        # One authority's certificates differ in their serial numbers, which are random.
        self._request(issued, name, f"subjectAltName={places}", *signer)
        return issued

    @staticmethod
    def _request(pair: Pair, name: str, extension: str, *more: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "2", "-subj", f"/CN={name}", "-addext", extension]
        command += ["-out", str(pair.certificate), "-keyout", str(pair.key), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
