"""Certificates for daemons, made by ``bin/certmaker``: no machine lacks it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from daemon import ROOT

CERTMAKER = ROOT / "bin" / "certmaker"


class Certificates:
    """Certificates of some authorities, each in a folder of its own: ``Certificates(dir, "ours/a=a", ...)``.

    An argument says AUTHORITY/FOLDER=NODE, and after commas ``expired`` or ``trusts:AUTHORITY+AUTHORITY``.
    """

    def __init__(self, base: Path, *wanted: str) -> None:
        self.base = base
        subprocess.run([str(CERTMAKER), str(base), *wanted], check=True, stdin=subprocess.DEVNULL)

    def folder(self, place: str) -> Path:
        """Where the files of "AUTHORITY/FOLDER" lie."""
        return self.base / place

    def flags(self, place: str, *more: str) -> list[str]:
        """The settings of a daemon that uses them."""
        at = self.folder(place)
        files = [f"--tls-cert={at}/node.crt", f"--tls-key={at}/node.key", f"--tls-ca={at}/ca.crt"]
        return [*files, *more]

    def replace(self, place: str, by: str) -> None:
        """Put the files of one folder in the place of another's, one after the other."""
        for name in ("node.crt", "node.key", "ca.crt"):
            new = self.folder(place) / f"{name}.new"
            shutil.copyfile(self.folder(by) / name, new)
            new.rename(self.folder(place) / name)
