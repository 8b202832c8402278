"""What a task does first in its worker, without Spark: it opens the log, or reports why it
cannot."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal.context import open_context
from imap_wal.errors import InvalidSetting, MissingNode
from imap_wal.placement.opening import SegmentsPlace, record
from imap_wal.placement.router import SplitStore
from imap_wal.read.scan_list import cluster_scans
from imap_wal.rewrite.plan import prepare
from imap_wal.version import VERSION
from pyspark_imap_wal.rewrite_engine import worker_log
from pyspark_imap_wal.session import explained
from storage_backends import factory
from storage_backends.local import LocalStore
from storage_backends.location import Location
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node

pytestmark = pytest.mark.spark


def test_a_worker_without_the_root_or_wal_dir_is_named(tmp_path: Path) -> None:
    """It would write part files into an empty folder of its own machine."""
    store = SplitStore(LocalStore(str(tmp_path / "root")), LocalStore(str(tmp_path / "wal")))
    wal_dir = Location(f"{tmp_path}/wal")
    record(store, SegmentsPlace(wal_dir.url))
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    place = Location(store.url, wal_dir=wal_dir)
    plan = replace(prepare(cluster(store)), place=place)
    with worker_log(plan, VERSION) as log:
        assert [len(each.rows) for each in log.read_on(cluster_scans(plan.state)[0])] == [1]
    nowhere = replace(plan, place=Location(f"{tmp_path}/nowhere"))
    with (
        pytest.raises(MissingNode, match=r"on worker .*manifest.*every worker"),
        worker_log(nowhere, VERSION),
    ):
        pass
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "wal").rename(tmp_path / "unmounted")
    with (
        pytest.raises(MissingNode, match=r"on worker .*node 'n1'.*wal_dir.*every worker"),
        worker_log(plan, VERSION) as log,
    ):
        list(log.read_on(cluster_scans(plan.state)[0]))


def test_a_worker_with_another_version_is_refused(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    with (
        pytest.raises(InvalidSetting, match=r"the driver has 9\.9\.9"),
        worker_log(prepare(cluster(store)), "9.9.9"),
    ):
        pass


def test_options_go_with_the_plan_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "open_backend", lambda opening: MemoryStore(opening.url))
    secret = {"secret": "never-shown"}
    segments = Location("s3://bucket/wal", secret)
    context = open_context(Location("s3://bucket/root", secret, wal_dir=segments))
    sent = pickle.loads(pickle.dumps(context.place))
    assert sent.options == sent.wal_dir.options == secret
    assert "never-shown" not in f"{sent} {sent!r} {context!r} {context.store.url}"


@pytest.mark.parametrize(
    ("text", "what", "advice"),
    [
        ("x\nModuleNotFoundError: No module named 'imap_wal.read'", "imap-wal", "spark package"),
        ("x\nModuleNotFoundError: No module named 's3fs'", "s3fs", "--help"),
        ("Job aborted\n  at java\nValueError: bad\n\tat org.apache", "ValueError: bad", "--debug"),
        ("Job aborted: lost\n  at java", "Job aborted: lost", "--debug"),
        ("calling None.x\n: java.lang.FooException: no\n\tat", "FooException: no", "--debug"),
        ("[JAVA_GATEWAY_EXITED] Java gateway", "did not start", "Java 17"),
        ("", "no reason", "--debug"),
    ],
)
def test_an_error_of_spark_says_what_to_do(text: str, what: str, advice: str) -> None:
    found = explained(text)
    assert what in found[0] and advice in found[1]
