"""imap-wal as a zip that Spark unpacks on its workers, so that nothing is installed there.

It has the packages that a task uses, and their libraries, taken from this Python. Some of these are
machine code, which Python cannot import out of a zip: so it is an archive (`spark.archives`), not a
file for `--py-files`. Workers need the same minor version of Python, the same kind of machine, and
pyarrow, which Spark's own Python functions need too.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import imap_wal
import pyspark_imap_wal
import storage_backends
from imap_wal.errors import InvalidSetting

DISTRIBUTION = "imap-wal"
FOLDER = "imap-wal"
"""Where Spark unpacks it, in the working folder of an executor."""
PACKAGES = (storage_backends, imap_wal, pyspark_imap_wal)
_DATE = (1980, 1, 1, 0, 0, 0)
"""The time of every file, so that the same content gives the same zip."""
_MODE = 0o644
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True)
class Package:
    """A written package: its file, size in bytes, and the libraries in it, with their versions."""

    file: Path
    bytes: int
    libraries: tuple[str, ...]

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of Spark with which its workers use it."""
        return {
            "spark.archives": f"{self.file}#{FOLDER}",
            "spark.executorEnv.PYTHONPATH": FOLDER,
        }


def write_package(target: Path, extras: Collection[str] = ()) -> Package:
    """Write the package.

    Args:
        target: The file to write; a name that ends with .zip.
        extras: Extras of imap-wal whose libraries workers need too, such as `s3` for `s3://`.

    Returns:
        What was written.

    Raises:
        InvalidSetting: An extra does not exist, or a library is not installed as pip does it.
        OSError: The file cannot be written.
    """
    libraries_found = distributions(extras)
    files: dict[str, Path] = {}
    for package in PACKAGES:
        folder = Path(next(iter(package.__path__)))
        files |= {
            f"{folder.name}/{path.relative_to(folder).as_posix()}": path
            for path in folder.rglob("*")
            if path.suffix in (".py", ".typed")
        }
    for library in libraries_found:
        files |= dict(_files(library))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _MODE << 16
            archive.writestr(entry, files[name].read_bytes())
    libraries = tuple(f"{library.name} {library.version}" for library in libraries_found)
    return Package(target, target.stat().st_size, libraries)


def distributions(extras: Collection[str] = ()) -> list[metadata.Distribution]:
    """The installed libraries of imap-wal's core and of some extras, with all that they require, by
    name. Raises `InvalidSetting`."""
    try:
        own = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise InvalidSetting(
            "imap-wal is not installed in this Python, so its libraries are not known: "
            "pip install 'imap-wal[spark]'"
        ) from error
    there = own.metadata.get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in there:
            raise InvalidSetting(
                f"imap-wal has no extra {extra!r}; its extras are {', '.join(sorted(there))}"
            )
    by_key: dict[str, metadata.Distribution] = {}
    waiting = list(_required(own, extras))
    while waiting:
        name = waiting.pop()
        # A library that is not installed here is for another system or Python, and is not needed.
        for distribution in metadata.distributions(name=name):
            if _key(name) not in by_key and _key(name) != _key(DISTRIBUTION):
                by_key[_key(name)] = distribution
                waiting += _required(distribution)
            break
    return [by_key[name] for name in sorted(by_key)]


def _required(library: metadata.Distribution, extras: Collection[str] = ()) -> Iterator[str]:
    """The names of the libraries that a distribution requires, with some of its extras."""
    for text in library.requires or ():
        extra = _EXTRA.search(text)
        name = _REQUIREMENT.match(text)
        if name and (extra is None or extra[1] in extras):
            yield name[0]


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(library: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Name in the package and path of every file of a library, without its programs."""
    if library.files is None:
        raise InvalidSetting(
            f"the files of {library.name} are not known: it was not installed by pip; use an "
            "environment that pip made"
        )
    for file in library.files:
        path = Path(str(library.locate_file(file)))
        if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
            yield file.as_posix(), path
