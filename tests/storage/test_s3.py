"""Real object storage over HTTP, with conditional puts: s3fs against moto's server, which starts in
two seconds, and against the S3 gateway versitygw, which checks credentials and logs requests."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

import imap_wal
from imap_wal.context import Context, open_context
from imap_wal.errors import Fenced, OutcomeUnknown, StorageUnavailable
from imap_wal.read.cluster import ClusterLog
from storage_backends import (
    AlreadyExists,
    Locked,
    SegmentStore,
    StorageError,
    Unavailable,
    Unsupported,
    open_store,
)
from storage_backends.lease import Lease
from storage_backends.location import located
from storage_backends.objects import ObjectStore
from storage_backends.testing import check_segment_store
from tests.agent.harness import plugin, serving
from tests.kit.effort import thorough
from tests.kit.own_disks import own_disk_config
from tests.kit.ports import free_port
from tests.storage.s3_gateway import S3, running_moto, running_s3

pytestmark = pytest.mark.timeout(900)
GATEWAY = pytest.param(running_s3, id="versitygw", marks=pytest.mark.storage)
"""The first run builds it, which takes four minutes."""
both = pytest.mark.parametrize(
    "s3", [pytest.param(running_moto, id="moto"), GATEWAY], indirect=True
)


@pytest.fixture(scope="module", params=[GATEWAY])
def s3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with request.param(tmp_path_factory.mktemp("s3")) as service:
        yield service


@both
def test_s3_keeps_every_promise(s3: S3) -> None:
    check_segment_store(s3.open(), reopen=s3.open)


def test_s3_at_the_root_of_a_bucket_keeps_every_promise(s3: S3) -> None:
    check_segment_store(s3.open("bucket"), reopen=lambda: s3.open("bucket/"))


@both
def test_options_in_the_url(s3: S3) -> None:
    store = open_store(s3.url("bucket/by-url"))
    store.create("1", b"x")
    assert s3.open("bucket/by-url").read("1") == b"x"
    assert "secret" not in store.url


@pytest.mark.spark
def test_options_reach_the_workers_of_spark_and_are_not_shown(s3: S3, tmp_path: Path) -> None:
    """Only the driver has the file of credentials. The event log has all that Spark's pages
    show."""
    url = "s3://bucket/spark"
    with imap_wal.open(url, storage_options=s3.options) as store:
        store.map("orders").update({f"k{number}": number for number in range(100)})
    command = [
        sys.executable, "-m", "rewrite_cli",
        "--credentials", str(credentials(tmp_path, url, s3)),
        "rewrite", url, "--engine", "spark", "-o", "json",
        "--spark-conf", "spark.master=local[2]",
        "--spark-conf", "spark.eventLog.enabled=true",
        "--spark-conf", "spark.eventLog.compress=false",
        "--spark-conf", f"spark.eventLog.dir=file://{tmp_path}/events",
        "--spark-conf", "spark.log.level=INFO",
    ]  # fmt: skip
    (tmp_path / "events").mkdir()
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout)["clusters"][0]["maps"][0]["live"] == 100
    events = [each for each in (tmp_path / "events").rglob("*") if each.is_file()]
    assert events
    for shown in (ended.stderr, ended.stdout, *(each.read_text() for each in events)):
        assert "secret-secret" not in shown


@pytest.mark.spark
def test_the_data_source_sends_options_with_its_partitions(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned where the file of credentials is, read where it is not."""
    from pyspark_imap_wal.data_source import ImapWalReader, Options

    url = "s3://bucket/source"
    with imap_wal.open(url, storage_options=s3.options) as store:
        store.map("orders")["k"] = 1
    monkeypatch.setenv("IMAP_WAL_CREDENTIALS", str(credentials(tmp_path, url, s3)))
    reader = ImapWalReader(Options.parse({"path": url, "mode": "latest"}))
    sent = pickle.dumps((reader, reader.partitions()))
    monkeypatch.delenv("IMAP_WAL_CREDENTIALS")
    there, (partition,) = pickle.loads(sent)
    assert [batch.num_rows for batch in there.read(partition)] == [1]
    assert "secret-secret" not in repr(partition)


def credentials(folder: Path, url: str, s3: S3) -> Path:
    """A file with the options of the storage."""
    file = folder / "credentials.toml"
    file.write_text(f"['{url}']\n" + "".join(f"{k} = '{v}'\n" for k, v in s3.options.items()))
    file.chmod(0o600)
    return file


def test_a_thousand_objects_are_deleted_in_one_request(s3: S3) -> None:
    store = s3.open("bucket/many")
    paths = [f"wal/{number}" for number in range(2_100)]
    for path in paths:
        (s3.folder / "data" / "bucket" / "many" / path).parent.mkdir(parents=True, exist_ok=True)
        (s3.folder / "data" / "bucket" / "many" / path).write_bytes(b"")
    before = (s3.folder / "log").read_text()
    assert store.discard_all([*paths, "wal/never"]) == []
    assert store.list("") == []
    requests = (s3.folder / "log").read_text()[len(before) :]
    assert requests.count("POST") == 3, requests[:1_000]
    assert "DELETE" not in requests


def test_s3_declares_its_capabilities(s3: S3) -> None:
    capabilities = s3.open().capabilities
    assert capabilities.exclusive_create
    assert capabilities.durable_sync
    assert not capabilities.durable_append
    assert not capabilities.locks


def test_content_in_several_parts_is_created_exclusively(s3: S3, tmp_path: Path) -> None:
    store = s3.open()
    file = tmp_path / "big.parquet"
    with file.open("wb") as output:
        for part in range(101):
            output.write(bytes([part]) * 2**20)
    store.create_from("big/1", str(file))
    assert store.size("big/1") == 101 * 2**20
    assert store.read("big/1", 100 * 2**20 - 1, 2) == bytes([99, 100])
    with pytest.raises(AlreadyExists):
        s3.open().create_from("big/1", str(file))
    assert [file.path for file in store.list("big")] == ["big/1"]
    store.delete("big/1")


@thorough
@both
def test_lease_on_s3_runs_out_and_is_taken_over(s3: S3) -> None:
    now = [1_800_000_000_000]

    def open_with_clock() -> ObjectStore:
        return ObjectStore("s3://bucket/leases", s3.options, clock_ms=lambda: now[0], lease_ms=1000)

    first = open_with_clock().lock("writer.lock", "first")
    with pytest.raises(Locked, match="held by first"):
        open_with_clock().lock("writer.lock", "second")
    now[0] += 1000
    second = open_with_clock().lock("writer.lock", "second")
    assert isinstance(first, Lease)
    with pytest.raises(Locked, match="held by second"):
        first.renew()
    second.release()


def test_wrong_credentials_and_a_missing_bucket_are_reported(s3: S3) -> None:
    wrong = s3.open(secret="wrong-secret")
    calls: list[Callable[[SegmentStore], object]] = [
        lambda store: store.create("1", b""),
        lambda store: store.exists("1"),
        lambda store: store.list(""),
        lambda store: store.read("1"),
        lambda store: store.replace("1", b""),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="credentials"):
            call(wrong)
    misspelt = s3.open("bukcet/root")
    for call in calls:
        with pytest.raises(Unavailable, match="bucket or container is missing"):
            call(misspelt)
    with pytest.raises(StorageUnavailable, match="credentials"):
        options = {**s3.options, "secret": "wrong-secret"}
        imap_wal.open("s3://bucket/some/root", storage_options=options)
    with pytest.raises(StorageUnavailable, match="bucket or container is missing"):
        imap_wal.open("s3://bukcet/root", storage_options=s3.options)


def test_unreachable_service_is_unavailable_and_never_looks_empty(s3: S3) -> None:
    away = s3.open(
        endpoint_url=f"http://127.0.0.1:{free_port()}",
        config_kwargs={"connect_timeout": 1, "retries": {"max_attempts": 1}},
    )
    away._fs.retries = 1  # type: ignore[attr-defined]
    calls: list[Callable[[], object]] = [
        lambda: away.exists("1"),
        lambda: away.list(""),
        lambda: away.folders(""),
        lambda: away.read("1"),
        lambda: away.create("1", b""),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


class _IgnoresConditions(http.server.BaseHTTPRequestHandler):
    """Like some services that imitate S3: every put succeeds."""

    objects: ClassVar[set[str]] = set()
    protocol_version = "HTTP/1.1"  # the client waits for a "100 Continue"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.objects.add(self.path)
        self._answer(200)

    def do_DELETE(self) -> None:
        self.objects.discard(self.path)
        self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("ETag", '"1"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_service_ignoring_the_condition_is_refused(
    s3: S3,
) -> None:
    """It is refused before it overwrites anything."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _IgnoresConditions)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        store = s3.open(endpoint_url=f"http://127.0.0.1:{server.server_port}")
        for _ in range(2):
            with pytest.raises(Unsupported, match="ignores the condition"):
                store.create("manifest/1.json", b"mine")
        assert _IgnoresConditions.objects == set(), "neither the object nor the probe is there"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_missing_local_file_is_not_a_missing_bucket(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="local file"):
        s3.open().create_from("1", str(tmp_path / "missing"))


@thorough
@both
def test_a_writer_replaced_on_s3_acknowledges_nothing(s3: S3) -> None:
    """After an archive, too."""

    def embedded(**options: Any) -> imap_wal.Store:
        return imap_wal.open(
            "s3://bucket/taken-over", node="n", storage=s3.open("bucket/taken-over"), **options
        )

    first = embedded()
    first.map("m")["a"] = 1
    second = embedded(takeover=True)
    second.map("m")["b"] = 2
    second.archive()
    for number in range(3):
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")[f"zombie{number}"] = 1
    second.close()
    with embedded() as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2}


@thorough
@both
def test_a_log_on_s3_is_backed_up_beside_writers(s3: S3, tmp_path: Path) -> None:
    """From there it is restored into a local folder; the second backup copies only what is new."""
    from imap_wal.backup import catalogue
    from imap_wal.backup.restore import restore_backup
    from imap_wal.backup.run import back_up
    from imap_wal.clock import SystemClock
    from imap_wal.read.cluster import ClusterLog

    source, target = s3.open("bucket/backed-up"), s3.open("bucket/backups")
    with imap_wal.open("s3://bucket/backed-up", storage_options=s3.options) as store:
        orders = store.map("orders")
        orders.update({f"k{number}": number for number in range(1000)})
        store.archive()
        copied = []
        for number in range(3):
            orders["last"] = number
            log = ClusterLog(Context(source), "default", "embedded")
            report = back_up([log], target, clock=SystemClock(), holder="test", keep=2)
            copied.append(report.copied_bytes)
    assert copied[1] < copied[0] / 2
    assert catalogue.numbers(target) == [2, 3]
    place = open_store(f"file://{tmp_path}/again")
    restore_backup(target, catalogue.read(target, 3), place)
    with imap_wal.open(f"file://{tmp_path}/again") as store:
        found = dict(store.map("orders").items())
    assert found == {**{f"k{number}": number for number in range(1000)}, "last": 2}


def test_two_disks_and_a_root_on_s3(tmp_path: Path, s3: S3) -> None:
    """Segments are appended to locally, and the root only gets whole objects."""
    url = "s3://bucket/own-disks"
    changes = {"storage_options": s3.options}
    settings = {
        node: own_disk_config(tmp_path, node, root=url, changes=changes) for node in ("n1", "n2")
    }
    written = {}
    with ExitStack() as stack:
        for each in settings.values():
            stack.enter_context(serving(each))
        for node, each in settings.items():
            with plugin(each, uuid=f"plugin-{node}", member=f"member-{node}") as member:
                for number in range(50):
                    key, value = f"{node}-{number}", "x" * 3000
                    assert member.put(**{key: value})[0] == "ack"
                    written[key] = value
        with plugin(settings["n2"], cluster_id="next", uuid="next") as member:
            assert member.values() == written, "the tail of n1 is on its disk alone"
    for node in settings:
        shutil.rmtree(tmp_path / f"disk-{node}")
    assert not ClusterLog(open_context(located(url, s3.options)), "default", "c").state().missing
    with serving(settings["n1"]), plugin(settings["n1"], cluster_id="last", uuid="p") as member:
        assert member.values() == written
