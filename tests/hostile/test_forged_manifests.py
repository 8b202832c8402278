"""Manifests with a valid checksum and fields of wrong types are always `CorruptLog`, and
`imap-wal repair` continues with an older one."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.errors import CorruptLog
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.manifest.store import CLUSTER_FORMAT, FORMAT, canonical_json
from storage_backends import StorageError, lease, open_store
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run, run
from tests.kit.effort import every

__all__ = ["run"]

ARCHIVE = {
    "map": "m",
    "path": "p",
    "first": [1, 1, 0, 0],
    "last": [1, 1, 9, 0],
    "records": 1,
    "tombstones": 0,
    "bytes": 9,
    "checksum": 1,
}
NODE = {
    "directory": "d",
    "epoch": 3,
    "session": 2,
    "plugins": {"p/1": 1},
    "requests": {"1": 5},
    "checkpoint": [1, 1, 30, 0],
    "clean": True,
    "archived": [1, 0],
    "archives": [ARCHIVE],
    "metadata": [["schema", 1, "00"]],
    "kind": "",
    "removed": [0, 0, 0, 0],
    "wal_id": "w",
    "newest": 2,
    "begins": [1, 1],
    "permit": "x",
    "forgotten": False,
    "embedded": False,
    "former": {"1": -1},
    "cluster": {"number": 1, "generation": 0, "incarnation": 1},
}
MARK = {"directory": "d", "position": [1, 1, 0, 0]}
SNAPSHOT = {
    "generation": 1,
    "files": ["f"],
    "marks": {"n1": MARK},
    "live": 1,
    "tombstones": 0,
    "bytes": 1,
    "created_ms": 1,
    "dropped": 0,
    "checksums": [1],
    "until_ms": 0,
    "sizes": [1],
    "rows": [1],
    "borders": [""],
    "expiries": [0],
    "versions": 0,
    "last_expiry_ms": 0,
}
CLUSTER = {
    "incarnation": 1,
    "lifetimes": [{"cluster_id": "c", "incarnation": 1, "cuts": {"n1": [1, 1, 0, 0]}}],
    "nodes": {"n1": "d"},
    "snapshots": {"m": SNAPSHOT},
    "generation": 1,
    "orphan_floor": 0,
    "versions": {"1": "0+271:1.4294967296"},
    "forgotten": {"x": [1, 1, 0, 0]},
    "embedded": 0,
    "clears": False,
    "marks": {"1": {"n1": MARK}},
}
CLAIMS = {"claims": {"c": 1}, "members": ["m1"], "lost": ["m2"], "forced": False}
HEAD = {"number": 1, "floor": 1, "nonce": "n"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "node": (NodeManifestLog, NODE),
    "cluster": (ClusterManifestLog, CLUSTER),
    "claims": (claim_manifests, CLAIMS),
}


def head(kind: str) -> dict[str, Any]:
    return {"format": CLUSTER_FORMAT if kind == "cluster" else FORMAT, **HEAD}


def deep(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


WRONG: list[Any] = [
    None,
    True,
    7,
    -7,
    1.0,
    0.5,
    float("nan"),
    float("inf"),
    2**64,
    10**400,
    "x",
    "1.0",
    "",
    [],
    [1],
    [1.0, 1, 0, 0],
    {},
    {"1.0": 1},
    {"x": {}},
    {"1": 1.0},
    {"1": True},
    [[]],
    [None],
    [7],
    [{}],
    deep(900),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    if path:
        yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = json.loads(json.dumps(document))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def forged(body: dict[str, Any]) -> bytes:
    """A manifest with a valid checksum, also with NaN, which `with_checksum` refuses."""
    canonical = canonical_json(body)
    return b'{"checksum":"%08x",' % google_crc32c.value(canonical) + canonical[1:]


def read(document: dict[str, Any], kind: str, memory: MemoryStore) -> Any:
    make, _ = KINDS[kind]
    path = f"f/{'claims/' if kind == 'claims' else ''}manifest/0000000001.json"
    memory.delete(path)
    memory.create(path, forged({**head(kind), **document}))
    content = make(Context(memory), "f").read()[1]
    for each in ("archives", "snapshots"):  # parsed when they are used
        len(getattr(content, each, ()))
    return content


@every(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_manifest_has_exactly_its_type(kind: str, memory: MemoryStore) -> None:
    """A session of 1.0 raised a ValueError that named no file, in `repair` too."""
    _, document = KINDS[kind]
    good = read(document, kind, memory)
    taken: list[Any] = []
    refused: list[CorruptLog] = []
    for path in places({**head(kind), **document}):
        original: Any = {**head(kind), **document}
        for key in path:
            original = original[key]
        for wrong in WRONG:
            if type(wrong) is type(original) and not isinstance(wrong, dict | list):
                continue
            try:
                read(with_value({**head(kind), **document}, path, wrong), kind, memory)
                taken.append((path, wrong))
            except CorruptLog as error:
                refused.append(error)
            except imap_wal.errors.UnsupportedVersion:
                assert path == ("format",)
    assert {error.file for error in refused} == {refused[0].file}
    assert all("imap-wal repair" in str(error) for error in refused)
    # A list or a map may be an empty one or one of the same kind; everything else is refused.
    loose = [
        (path, wrong)
        for path, wrong in taken
        if not isinstance(wrong, dict | list)
        and path[0] != "metadata"
        and path != ("snapshots", "m", "marks")
    ]
    assert not loose
    assert read(document, kind, memory) == good


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_every_manifest_has_is_required(kind: str, memory: MemoryStore) -> None:
    """Without it, the manifest is damaged."""
    _, document = KINDS[kind]
    required = {"node": list(NODE)[:10], "cluster": list(CLUSTER)[:5], "claims": ["claims"]}[kind]
    for name in required:
        with pytest.raises(CorruptLog, match=f"field '{name}' is missing"):
            read({each: value for each, value in document.items() if each != name}, kind, memory)


@pytest.mark.parametrize(
    "item",
    [
        [],
        ["schema"],
        ["schema", "1", "00"],
        ["schema", 1, "xyz"],
        ["schema", 1, 7],
        [1, "x"],
        ["member", 1.0],
        ["member", None],
        "x",
    ],
    ids=repr,
)
def test_metadata_of_another_shape_is_damage(item: Any, memory: MemoryStore) -> None:
    with pytest.raises(CorruptLog):
        read({**NODE, "metadata": [item]}, "node", memory)


@pytest.mark.parametrize(
    "text", ["x", "====", b64encode(b"no zlib").decode(), "eJwDAAAAAAE=", "eJyrBQAAewB6"], ids=repr
)
def test_an_unreadable_packed_list_is_damage(text: str, memory: MemoryStore) -> None:
    """The error names the manifest that has it."""
    with pytest.raises(CorruptLog, match="manifest/0000000001"):
        read({**CLUSTER, "snapshots": text, "covered": {}}, "cluster", memory)


def test_a_packed_list_of_any_size_is_damage(memory: MemoryStore) -> None:
    """A quarter of a megabyte of text that would become more than a quarter of a gigabyte."""
    bomb = zlib.compressobj()
    zeros = bytes(1024 * 1024)
    content = b"".join(bomb.compress(zeros) for _ in range(257)) + bomb.flush()
    with pytest.raises(CorruptLog, match="does not end within 268435456 bytes"):
        text = b64encode(content).decode()
        read({**CLUSTER, "snapshots": text, "covered": {}}, "cluster", memory)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"holder": "x", "nonce": "y", "expires_ms": Infinity}', b"{}", b"1"]
)
def test_a_forged_lease_is_an_error_of_the_storage(text: bytes, memory: MemoryStore) -> None:
    memory.create("lock/00000001.json", text)
    with pytest.raises(StorageError, match="not a lease"):
        lease._read(memory, "lock", 1)


def test_json_that_is_nested_deeply_is_damage(memory: MemoryStore) -> None:
    memory.create("f/manifest/0000000001.json", b"[" * 100_000)
    with pytest.raises(CorruptLog, match="not JSON"):
        NodeManifestLog(Context(memory), "f").read()


@pytest.mark.parametrize(
    ("which", "packed"), [("node", False), ("cluster", False), ("cluster", True)]
)
def test_repair_continues_with_the_manifest_before_a_forged_one(
    url: str, tmp_path: Path, run: Run, which: str, packed: bool
) -> None:
    with imap_wal.open(url) as store:
        store.map("m")["a"] = "1"
    folder = Path(url.removeprefix("file://")) / "default/embedded"
    path = max((folder / "nodes/embedded" if which == "node" else folder).glob("manifest/*.json"))
    document = json.loads(path.read_bytes())
    del document["checksum"]
    number = document["number"] + 1
    wrong: dict[str, Any] = (
        {"session": 1.0, "requests": {"1.0": 1}} if which == "node" else {"incarnation": 1.0}
    )
    if packed:
        wrong = {"snapshots": "x", "covered": {}}
    (path.parent / f"{number:010d}.json").write_bytes(
        forged({**document, "number": number, **wrong})
    )

    if not packed:
        with pytest.raises(CorruptLog):
            imap_wal.open(url)
    ended = run("verify", url)
    assert ended.code == 3 and "Traceback" not in ended.err + ended.out
    report = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert report.code == 3, report.err
    with imap_wal.open(f"file://{tmp_path}/copy") as store:
        assert dict(store.map("m")) == {"a": "1"}
    assert open_store(url).exists(str(path.relative_to(url.removeprefix("file://"))))
