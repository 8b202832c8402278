"""Alibaba Cloud OSS: the real SDK against a small server of the tests. No real OSS was reached."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import alibabacloud_oss_v2 as oss
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal.errors import Fenced, OutcomeUnknown, StorageUnavailable
from rewrite_cli.cli import group
from storage_backends import (
    AlreadyExists,
    NotFound,
    SegmentStore,
    StorageError,
    Unavailable,
    Unsupported,
    open_store,
)
from storage_backends import oss as oss_module
from storage_backends.objects import ObjectStore
from storage_backends.testing import check_segment_store
from tests.kit.effort import every, thorough
from tests.storage.oss_server import (
    CUT,
    FOREIGN,
    KEPT,
    KEY_ID,
    LOST,
    SECRET,
    TOKEN,
    UNAVAILABLE,
    Bucket,
    OssServer,
    running_oss,
)


@pytest.fixture(scope="module")
def service() -> Iterator[OssServer]:
    with running_oss() as server:
        yield server


@pytest.fixture
def server(service: OssServer, monkeypatch: pytest.MonkeyPatch) -> OssServer:
    """Empty, and without faults; its credentials are in no variable."""
    service.buckets = {"bucket": Bucket()}
    service.page_max, service.plan = 1_000, lambda request: ""
    service.requests.clear()
    for variable in ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return service


def opened(server: OssServer, root: str = "bucket/some/root", **options: Any) -> SegmentStore:
    retryer = oss.retry.StandardRetryer(base_delay=0.001, max_backoff=0.001)
    return open_store(f"oss://{root}", {**server.options, "retryer": retryer, **options})


def environment(server: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)


def failing(server: OssServer, method: str, *fates: str) -> None:
    """The next requests with this method have these fates."""
    waiting = deque(fates)
    server.plan = lambda request: (
        waiting.popleft() if waiting and request.startswith(method) else ""
    )


def test_oss_keeps_every_promise(server: OssServer) -> None:
    """Listings continue after three keys."""
    server.page_max = 3
    check_segment_store(opened(server), reopen=lambda: opened(server, "bucket/some/root/"))
    assert any("continuation-token" in request for request in server.requests)


@thorough
def test_oss_at_the_root_of_a_bucket_keeps_every_promise(server: OssServer) -> None:
    check_segment_store(opened(server, "bucket"), reopen=lambda: opened(server, "bucket/"))


# creates


@pytest.mark.parametrize("versioning", ["Enabled", "Suspended"])
@pytest.mark.parametrize("tells_versions", [True, False])
def test_a_bucket_with_versioning_is_refused_by_name_and_reason(
    server: OssServer, versioning: str, tells_versions: bool
) -> None:
    server.buckets["bucket"] = Bucket(versioning, tells_versions)
    for _ in range(2):
        with pytest.raises(Unsupported, match=r"oss://bucket/some.*has or had versioning"):
            opened(server).create("manifest/1.json", b"mine")
    with pytest.raises(StorageUnavailable, match="has or had versioning"):
        imap_wal.open("oss://bucket/maps", storage_options=server.options)
    assert server.buckets["bucket"].names() == []


def test_a_create_after_versioning_was_enabled_uncovers_the_other_object(
    server: OssServer, tmp_path: Path
) -> None:
    store, bucket = opened(server, "bucket"), server.buckets["bucket"]
    store.create("fence", b"of the successor")
    bucket.versioning = "Enabled"
    with pytest.raises(Unsupported, match="versioning"):
        store.create("fence", b"of the former writer")
    assert store.read("fence") == b"of the successor"


def test_a_proxy_that_removes_the_condition_is_refused(server: OssServer) -> None:
    server.buckets["bucket"].ignores_conditions = True
    with pytest.raises(Unsupported, match=r"oss://bucket/some/root ignores the condition"):
        opened(server).create("manifest/1.json", b"mine")
    assert server.buckets["bucket"].names() == []


def test_the_s3_interface_of_oss_names_the_right_scheme(server: OssServer) -> None:
    """It answers 501 to `If-None-Match`."""
    at = {"key": KEY_ID, "secret": SECRET, "endpoint_url": server.options["endpoint"]}
    store = ObjectStore("s3://bucket/maps", at)
    with pytest.raises(Unsupported, match=r"s3://bucket/maps.*use oss://bucket/path"):
        store.create("manifest/1.json", b"mine")


def test_the_answer_to_a_create_is_lost(server: OssServer) -> None:
    """The SDK sends it again, and finds its own object: `AlreadyExists` may be of one's own."""
    store = opened(server)
    store.create("1", b"one")
    failing(server, "PUT", LOST)
    with pytest.raises(AlreadyExists):
        store.create("2", b"two")
    failing(server, "PUT", UNAVAILABLE, UNAVAILABLE)
    store.create("3", b"three")
    assert [store.read(path) for path in ("1", "2", "3")] == [b"one", b"two", b"three"]


def test_the_probe_survives_lost_answers(server: OssServer) -> None:
    failing(server, "PUT", LOST, UNAVAILABLE)
    store = opened(server)
    store.create("1", b"one")
    assert [file.path for file in store.list("")] == ["1"]
    assert len(server.buckets["bucket"].names()) == 1, "the probe is removed"


def test_a_file_in_parts_is_created_exclusively(
    server: OssServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oss_module, "PART_BYTES", 1000)
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 10)
    store = opened(server)
    failing(server, "PUT", UNAVAILABLE)
    store.create_from("1", str(file))
    assert store.read("1") == file.read_bytes()
    assert sum("partNumber" in request for request in server.requests) == 3
    with pytest.raises(AlreadyExists):
        store.create_from("1", str(file))
    # Another writer creates it while the parts are sent.
    server.plan = lambda request: (
        server.buckets["bucket"].add("some/root/2", b"another's") and ""
        if "partNumber=3" in request
        else ""
    )
    with pytest.raises(AlreadyExists):
        store.create_from("2", str(file))
    assert store.read("2") == b"another's"
    assert server.buckets["bucket"].uploads == {}, "the parts are removed"


# reads, deletes


def test_an_answer_that_ends_early_is_read_again(server: OssServer) -> None:
    """A part of an object must never look like all of it."""
    store = opened(server)
    store.replace("1", b"0123456789")
    failing(server, "GET", CUT, CUT)
    assert store.read("1") == b"0123456789"
    failing(server, "GET", *[CUT] * 3)
    with pytest.raises(Unavailable, match="cannot be reached"):
        store.read("1", 2, 6)


def test_two_thousand_objects_are_deleted_in_three_requests(server: OssServer) -> None:
    store = opened(server, "bucket")
    paths = [f"wal/{number}" for number in range(2_100)]
    for path in paths:
        server.buckets["bucket"].add(path, b"")
    assert store.discard_all([*paths, "wal/never"]) == []
    assert store.list("") == []
    assert sum(request.startswith("POST") for request in server.requests) == 3
    assert not any(request.startswith("DELETE") for request in server.requests)


@pytest.mark.parametrize("fates", [[UNAVAILABLE] * 3, [LOST] * 3, [KEPT]])
def test_objects_that_are_not_deleted_at_once_are_deleted_singly(
    server: OssServer, fates: list[str]
) -> None:
    store = opened(server, "bucket")
    for path in ("a", "b", "c&d"):
        store.replace(path, b"")
    failing(server, "POST", *fates)
    store.discard_all(["a", "b", "c&d"])
    assert store.list("") == []


# errors


CALLS: dict[str, Callable[[SegmentStore], object]] = {
    "create": lambda store: store.create("1", b""),
    "replace": lambda store: store.replace("1", b""),
    "exists": lambda store: store.exists("1"),
    "size": lambda store: store.size("1"),
    "read": lambda store: store.read("1"),
    "list": lambda store: store.list(""),
    "folders": lambda store: store.folders(""),
    "delete": lambda store: store.delete("1"),
}


@every(3)
@pytest.mark.parametrize("call", CALLS)
def test_no_file_is_absent_that_cannot_be_asked_for(server: OssServer, call: str) -> None:
    """A wrong secret, a missing bucket, a failing service, no service: each is named."""
    failures = {
        "refused: .*signature.*SignatureDoesNotMatch.*check the credentials": opened(
            server, access_key_secret="wrong-secret"
        ),
        "bucket or container is missing": opened(server, "no-bucket/some/root"),
        "Bucket name is invalid": opened(server, "No_Bucket/some/root"),
        "the storage failed: .*SlowDown, HTTP 503": opened(server, retry_max_attempts=1),
        "the storage failed: .*HTTP 404": opened(server),
        "cannot be reached": opened(server, endpoint="http://127.0.0.1:1", retry_max_attempts=1),
    }
    for reason, store in failures.items():
        fate = UNAVAILABLE if "503" in reason else FOREIGN if "404" in reason else ""
        server.plan = lambda request, fate=fate: fate
        with pytest.raises(Unavailable, match=reason) as raised:
            CALLS[call](store)
        assert "wrong-secret" not in "".join(traceback.format_exception(raised.value))


def test_an_object_is_absent_whatever_says_so(server: OssServer) -> None:
    store = opened(server)
    for server.names_errors in (False, True):
        assert not store.exists("1")
        with pytest.raises(NotFound):
            store.read("1")


def test_a_url_without_a_region_says_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSS_REGION", raising=False)
    with pytest.raises(StorageError, match=r"oss://bucket/maps: .*add \?region=cn-hangzhou"):
        open_store("oss://bucket/maps")


def test_an_option_that_the_sdk_does_not_know_is_named() -> None:
    with pytest.raises(StorageError, match="regoin"):
        open_store("oss://bucket/maps?region=cn-test&regoin=cn-test")


# credentials


def test_credentials_of_the_environment_are_not_shown(
    server: OssServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in logs, and not by a service that repeats them in its errors."""
    environment(server, monkeypatch)
    caplog.set_level("DEBUG")
    store = open_store("oss://bucket/maps")
    store.create("1", b"one")
    assert store.read("1") == b"one"
    shown = f"{store.url} {store!r} {store._fs!r} {caplog.text}"  # type: ignore[attr-defined]
    server.plan = lambda request: f"saying {SECRET} {TOKEN}"
    with pytest.raises(Unavailable, match="refused") as raised:
        store.read("1")
    shown += "".join(traceback.format_exception(raised.value))
    assert "PUT" in shown
    assert SECRET not in shown
    assert TOKEN not in shown


CHAIN = """
import storage_backends
store = storage_backends.open_store("oss://bucket/maps", {"retry_max_attempts": 1})
store.create("1", b"one")
"""


def test_credentials_that_expire_are_asked_for_again(
    server: OssServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a key, by the library of Alibaba Cloud, here a fake: one place for all requests. What
    it logs is not shown."""
    places = []
    logged = {"msg": SECRET, "levelno": 40, "pathname": "lib/alibabacloud_credentials/client.py"}

    class Chain:
        def __init__(self) -> None:
            places.append(self)
            self.keys = [("old", "old"), (KEY_ID, SECRET)]

        def get_credential(self) -> SimpleNamespace:
            logging.getLogger("credentials").handle(logging.makeLogRecord(logged))
            key, secret = self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]
            return SimpleNamespace(
                access_key_id=key, access_key_secret=secret, security_token=TOKEN
            )

    monkeypatch.setitem(
        sys.modules, "alibabacloud_credentials.client", SimpleNamespace(Client=Chain)
    )
    options = {name: server.options[name] for name in ("region", "endpoint")}
    store = open_store("oss://bucket/maps", options | {"retry_max_attempts": 1})
    with pytest.raises(Unavailable, match="InvalidAccessKeyId"):
        store.exists("1")
    store.create("1", b"one")
    assert len(places) == 1
    assert SECRET not in caplog.text


@thorough
def test_alibaba_clouds_other_places_of_credentials_count(
    server: OssServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of its other tools, as an example. They are read at the import."""
    environment(server, monkeypatch)
    for name in ("ACCESS_KEY_ID", "ACCESS_KEY_SECRET", "SESSION_TOKEN"):
        value = os.environ[f"OSS_{name}"]
        monkeypatch.setenv(f"ALIBABA_CLOUD_{name.replace('SESSION', 'SECURITY')}", value)
        monkeypatch.delenv(f"OSS_{name}")
    subprocess.run([sys.executable, "-c", CHAIN], cwd=Path(__file__).parents[2], check=True)
    assert server.buckets["bucket"].names() == ["maps/1"]


def test_options_in_the_url_are_not_shown(server: OssServer) -> None:
    options = "&".join(f"{name}={value}" for name, value in server.options.items())
    store = open_store(f"oss://bucket/maps?{options}")
    store.create("1", b"one")
    assert store.url == "oss://bucket/maps"


# whole logs


KILLED = """
import os, signal, imap_wal
store = imap_wal.open("oss://bucket/maps")
orders = store.map("orders")
orders.update({f"o{number}": number for number in range(100)})
del orders["o1"]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_lives_on_oss(
    server: OssServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by a process that is killed, reopened, archived, rewritten, restored, verified."""
    environment(server, monkeypatch)
    url = "oss://bucket/maps"
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=Path(__file__).parents[2])
    assert ended.returncode == -9
    expected = {f"o{number}": number for number in range(100) if number != 1}
    with imap_wal.open(url, takeover=True) as store:
        assert dict(store.map("orders").items()) == expected
        store.archive()
        store.map("orders")["o2"] = expected["o2"] = 3
    for words in (["rewrite", url], ["prune", url, "--yes"], ["verify", url]):
        done = CliRunner().invoke(group, words)
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
    with imap_wal.open(url) as store:
        assert dict(store.map("orders").items()) == expected
        done = CliRunner().invoke(group, ["get", url, "o2", "--map", "orders", "-o", "json"])
        assert json.loads(done.stdout)["keys"][0]["value"] == 3


@thorough
def test_a_writer_replaced_on_oss_acknowledges_nothing(server: OssServer) -> None:
    def embedded(**options: Any) -> imap_wal.Store:
        return imap_wal.open("oss://bucket/maps", storage_options=server.options, **options)

    first = embedded()
    first.map("m")["a"] = 1
    with embedded(takeover=True) as second:
        second.map("m")["b"] = 2
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")["zombie"] = 1
    with embedded() as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2}


PATHS = ("a", "b", "f/c", "f/g/d")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "replace", "delete", "discard", "read", "list"]),
            st.sampled_from(PATHS),
            st.binary(max_size=9),
            st.lists(st.sampled_from([UNAVAILABLE, LOST, CUT, ""]), max_size=2),
        ),
        max_size=25,
    )
)
def test_objects_are_those_of_a_dict_whatever_fails(
    service: OssServer, steps: list[tuple[str, str, bytes, list[str]]]
) -> None:
    """A part of the requests of each step fails, and they succeed when they are repeated."""
    service.buckets, service.page_max = {"bucket": Bucket()}, 2
    service.plan = lambda request: ""
    store, model = opened(service, retry_max_attempts=6), dict[str, bytes]()
    store.create("a", b"")
    model["a"] = b""
    for kind, path, data, fates in steps:
        failing(service, "", *fates)
        match kind:
            case "create":
                try:
                    store.create(path, data)
                    assert path not in model
                    model[path] = data
                except AlreadyExists:
                    if path not in model:
                        assert LOST in fates or CUT in fates, "its own object"
                        model[path] = data
            case "replace":
                store.replace(path, data)
                model[path] = data
            case "delete":
                store.delete(path)
                model.pop(path, None)
            case "discard":
                store.discard_all(PATHS[:2])
                model.pop("a", None)
                model.pop("b", None)
            case "read":
                try:
                    assert store.read(path) == model[path]
                except NotFound:
                    assert path not in model
            case "list":
                files = {file.path: file.size for file in store.list("")}
                assert files == {name: len(content) for name, content in model.items()}
    service.plan = lambda request: ""
    assert {file.path: store.read(file.path) for file in store.list("")} == model
