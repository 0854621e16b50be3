"""The files of certificates and keys for TLS."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `mutual`, clients must present a certificate that those in `root` have signed."""

    certificate: Path
    """The server's own, followed by those between it and the root that its clients trust."""
    key: Path
    root: Path | None = None
    mutual: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.certificate, self.key) if self.root is None else (self.certificate, self.key, self.root)
