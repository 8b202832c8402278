"""Attack: read the credentials of a storage in output, logs, answers or stored files.

The driver of this module is careless: every error that it raises shows all its options.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import structlog
from fsspec.implementations.memory import MemoryFileSystem

import imap_wal
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.context import Context
from imap_wal.errors import ImapWalError, InvalidSetting
from imap_wal.placement import open_store
from imap_wal.security.credentials import Credentials
from rewrite_cli.cli import main
from storage_backends import Backend, StorageError
from storage_backends.location import Location, located, without_secrets
from storage_backends.memory import MemoryStore
from storage_backends.registry import BACKENDS
from storage_backends.veil import Veil
from tests.agent.harness import plugin, serving

SECRET = "Pl4nted/Secret+with=signs"
IN_URL = "Pl4nted%2FSecret%2Bwith%3Dsigns"
FORMS = (SECRET, IN_URL, "Pl4nted/Secret%2Bwith%3Dsigns", "Pl4nted")
QUERY = f"?key=AKIAPl4nted&secret={IN_URL}&anon=false"


class Careless(MemoryFileSystem):
    """A storage in memory; `failing` makes every request an error that shows all options."""

    protocol = "careless"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing = False
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        assert options["secret"] == SECRET
        self._options = options

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("careless://")))

    def _request(self) -> None:
        if Careless.failing:
            try:
                raise ValueError(f"signed with {self._options}")
            except ValueError as cause:
                raise OSError(
                    f"PUT /?secret={IN_URL}: refused, {self._options['secret']}"
                ) from cause

    def find(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().find(*given, **options)

    def ls(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().ls(*given, **options)

    def info(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().info(*given, **options)

    def cat_file(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().cat_file(*given, **options)

    def pipe_file(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().pipe_file(*given, **options)

    def put_file(self, *given: Any, **options: Any) -> Any:
        self._request()
        return super().put_file(*given, **options)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("careless", Careless, clobber=True)
    careless = Backend("storage_backends.objects:opened", conditional_create=True)
    monkeypatch.setitem(BACKENDS, "careless", careless)
    monkeypatch.setattr(Careless, "store", {})
    monkeypatch.setattr(Careless, "pseudo_dirs", [""])
    monkeypatch.setattr(Careless, "failing", False)
    yield
    structlog.reset_defaults()


def assert_nothing_in(*shown: str | bytes) -> None:
    for each in shown:
        text = each if isinstance(each, str) else each.decode("latin-1")
        for form in FORMS:
            assert form not in text, text[max(0, text.index(form) - 200) :][:400]


def stored() -> list[bytes]:
    return [name.encode() + file.getvalue() for name, file in Careless.store.items()]


def files_below(folder: Path) -> list[bytes]:
    return [
        str(path).encode() + (path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    ]


def ended(words: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


COMMANDS = (
    ["ls"],
    ["stat"],
    ["stat", "-o", "json"],
    ["doctor"],
    ["doctor", "-o", "json"],
    ["verify"],
    ["verify", "-o", "json"],
    ["dump"],
    ["export"],
    ["rewrite", "--dry-run"],
    ["rewrite"],
    ["prune", "--dry-run"],
    ["restore", "--dry-run"],
    ["archive"],
    ["ls", "--namespace", "nobody"],
)


@pytest.mark.parametrize("failing", [False, True])
def test_no_command_shows_or_stores_a_secret(
    careless: None, capfd: pytest.CaptureFixture[str], failing: bool
) -> None:
    with imap_wal.open(f"careless://bucket/maps{QUERY}", node="n") as store:
        store.map("m")["a"] = 1
        assert_nothing_in(repr(store))
    Careless.failing = failing
    for words in COMMANDS:
        ended(["--debug", words[0], f"careless://bucket/maps{QUERY}", *words[1:]])
    ended([f"careless://bucket/maps{QUERY}"])  # no such command
    ended(["ls", "/nowhere", f"careless://bucket/maps{QUERY}"])  # one word too many
    ended(["ls", f"careless://bucket/maps?client_kwargs={{{IN_URL}"])  # not JSON
    ended(["--debug", "ls", f"sftp://user:{IN_URL}@host.invalid/maps"])
    assert_nothing_in(*capfd.readouterr(), *stored())


def test_the_agent_shows_logs_answers_and_stores_no_secret(
    careless: None, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config" / "agent.toml"
    file.parent.mkdir()
    file.write_text(
        f"url = 'careless://bucket/maps{QUERY}'\nwal_dir = "
        f"'careless://other/maps{QUERY}'\ncluster = 'c'\nnode = 'n1'\nlifetime_timeout_s = "
        "0\n"
        f"start_policy = 'partial'\nendpoint = 'ipc://{tmp_path}/a.sock'\n"
    )
    assert ended(["agent", "--config", str(file), "--check"]) == 0
    settings = AgentConfig.from_toml(file)
    assert_nothing_in(repr(settings), str(settings), f"{settings.url} {settings.wal_dir!r}")
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        Careless.failing = True
        answers = [member.put(b="2"), member.asked()]
        assert answers[0][0] == "error"
        assert "refused, ***" in answers[0][2]
        answers.append(list(member.stat().items()))
        Careless.failing = False
    file.unlink()
    assert_nothing_in(
        json.dumps(answers, default=repr), *capfd.readouterr(), *stored(), *files_below(tmp_path)
    )
    assert any(
        name.endswith("/wal_dir.json") and b"careless://other/maps" in file.getvalue()
        for name, file in Careless.store.items()
    )


def test_no_error_of_the_library_shows_a_secret(careless: None) -> None:
    """Neither in its text nor in its causes or its traceback."""
    shown = []
    for url, options in (
        (f"careless://bucket/maps{QUERY}", None),
        ("careless://bucket/maps", {"secret": SECRET, "client_kwargs": {"token": [SECRET]}}),
        (f"careless://bucket/maps?secret={IN_URL}&client_kwargs={{{IN_URL}", None),
        (f"nonsense://user:{IN_URL}@bucket/maps{QUERY}", None),
        (f"memory://x{QUERY}", None),
        (f"file:///x{QUERY}", None),
        ([f"s3://b{QUERY}"], None),
        ("s3://b", [SECRET]),
    ):
        Careless.failing = True
        with pytest.raises(ImapWalError) as found:
            imap_wal.open(url, storage_options=options)  # type: ignore[arg-type]
        # Not this frame, whose lines are the test's own.
        shown.append("".join(traceback.format_exception(found.value.with_traceback(None))))
        shown.append(repr(found.value))
    assert_nothing_in(*shown)


@pytest.mark.parametrize(
    "toml",
    [
        f"url = 's3://b{QUERY}'\nstorage_options = '{SECRET}'",
        f"url = ['s3://b{QUERY}']",
        f"url = 's3://b'\nwal_dir = ['s3://b{QUERY}']",
        f"url = 's3://b'\nlog = 's3://b{QUERY}'",
        f"url = 's3://b'\n[storage_options]\nsecret = '{SECRET}'\n[log]\nno_such = '{SECRET}'",
        f"url = 's3://b{QUERY}\n",
        f"url = 's3://b?client_kwargs={{{IN_URL}'",
    ],
)
def test_no_error_about_a_configuration_shows_a_secret(tmp_path: Path, toml: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(toml)
    with pytest.raises(InvalidSetting) as found:
        AgentConfig.from_toml(file)
    assert_nothing_in("".join(traceback.format_exception(found.value)))


def test_storage_options_of_the_configuration_reach_the_storage(
    careless: None, tmp_path: Path
) -> None:
    about = {
        "url": "careless://bucket/maps",
        "node": "n",
        "endpoint": f"ipc://{tmp_path}/a.sock",
        "start_policy": "partial",
        "lifetime_timeout_s": 0,
    }
    for more in (
        {"storage_options": {"secret": SECRET}},
        {
            "storage_options": {"secret": SECRET},
            "wal_dir": "careless://bucket/wal",
        },  # the same bucket: the same options
        {
            "storage_options": {"secret": SECRET},
            "wal_dir": "careless://other/wal",
            "wal_dir_options": {"secret": SECRET},
        },
    ):
        Careless.store.clear()
        with serving(AgentConfig.from_mapping({**about, **more})) as agent:
            assert isinstance(agent, Agent)
        assert Careless.store
        assert_nothing_in(*stored())


def test_credentials_are_used_only_for_named_places(tmp_path: Path) -> None:
    """Places with a similar name get none."""
    file = tmp_path / "credentials.toml"
    file.write_text(
        f'["s3://bucket"]\nkey = "1"\nsecret = "{SECRET}"\n["s3://bucket/deep"]\nkey = "2"\n'
    )
    file.chmod(0o600)
    known = Credentials.read(file)
    assert known.given_to(Location("s3://bucket/maps")).options == {"key": "1", "secret": SECRET}
    assert known.given_to(Location("s3://bucket/deep/maps")).options == {"key": "2"}
    assert known.given_to(located("s3://bucket?key=3")).options == {"key": "3", "secret": SECRET}
    for other in (
        "s3://bucket2/maps",
        "gs://bucket/maps",
        "s3://bucket.evil/maps",
        "/bucket",
        "webhdfs://bucket",
    ):
        assert known.given_to(Location(other)).options == {}
    assert_nothing_in(repr(known), repr(known.given_to(Location("s3://bucket"))))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (f"secret = '{SECRET}'", 0o600, "is not a table"),
        (f"['bucket']\nsecret = '{SECRET}'", 0o600, "not the URL of a storage"),
        (f"['s3://b{QUERY}']\nkey = 1", 0o600, "not the URL of a storage"),
        (f"['s3://b']\nsecret = {SECRET}", 0o600, "not TOML"),
        (f"['s3://b']\nsecret = '{SECRET}'", 0o644, "other users may open it"),
        (f"\xff{SECRET}", 0o600, "not UTF-8"),
    ],
)
def test_a_wrong_file_of_credentials_is_refused_without_showing_it(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    file = tmp_path / "credentials.toml"
    file.write_bytes(text.encode("latin-1"))
    file.chmod(mode)
    with pytest.raises(InvalidSetting, match=said) as found:
        Credentials.read(file)
    assert_nothing_in("".join(traceback.format_exception(found.value)))


def test_the_command_line_reads_credentials_from_a_file(
    careless: None, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with imap_wal.open(
        "careless://bucket/maps", node="n", storage_options={"secret": SECRET}
    ) as store:
        store.map("m")["a"] = 1
    file = tmp_path / "credentials.toml"
    file.write_text(f'["careless://bucket"]\nsecret = "{SECRET}"\n')
    file.chmod(0o600)
    assert ended(["--credentials", str(file), "export", "careless://bucket/maps"]) == 0
    assert '"a"' in capfd.readouterr().out
    file.chmod(0o644)
    assert ended(["--credentials", str(file), "export", "careless://bucket/maps"]) == 2
    assert_nothing_in(*capfd.readouterr())


def test_a_cluster_of_processes_gets_credentials_by_a_file_only(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rewrite_cli.cli",
        "node",
        "start",
        "--url",
        f"s3://bucket/maps{QUERY}",
    ]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.returncode == 2
    assert "--credentials" in run.stderr
    assert_nothing_in(run.stdout, run.stderr, *files_below(tmp_path))


def test_a_location_shows_no_options_and_keeps_them() -> None:
    """A copy by pickle has them."""
    place = located(f"s3://bucket/maps{QUERY}")
    assert place.url == "s3://bucket/maps"
    assert_nothing_in(str(place), repr(place), repr(Context(MemoryStore(), opened=place)))
    assert pickle.loads(pickle.dumps(place)) == place
    assert place.options["secret"] == SECRET
    assert located(place).options == place.options
    assert located(f"sftp://me:{SECRET}@host/a").options == {}, (
        "a slash ends the server's name: it is to be percent-encoded"
    )
    assert located("sftp://me:word@host/a") == Location("sftp://me@host/a", {"password": "word"})
    assert located("abfs://container@account.dfs.core.windows.net/a").options == {}
    assert located("/var/lib/what?").options == {}


def test_secrets_are_removed_from_texts() -> None:
    assert (
        without_secrets(f"s3://b{QUERY}: no; 'sftp://u:{IN_URL}@h/x'")
        == "s3://b?*** no; 'sftp://u:***@h/x'"
    )
    veil = Veil(
        {
            "secret": SECRET,
            "region_name": "eu-west-1",
            "anon": True,
            "key": "abc",
            "endpoint_url": "http://localhost:9000",
        }
    )
    assert (
        veil.text(f"{SECRET} {IN_URL} eu-west-1 abc http://localhost:9000")
        == "*** *** eu-west-1 abc http://localhost:9000"
    )
    assert (
        Veil({"endpoint_url": f"http://u:{IN_URL}@h"}).text(f"at http://u:{IN_URL}@h") == "at ***"
    )


def test_a_record_with_options_is_refused_without_showing_them(tmp_path: Path) -> None:
    """No command records options: someone has changed the file."""
    wal = (tmp_path / "wal").as_uri()
    root = tmp_path / "root"
    root.mkdir()
    (root / "wal_dir.json").write_text(
        json.dumps({"format": 1, "wal_dir": f"{wal}?secret={IN_URL}"})
    )
    with pytest.raises(StorageError, match="it has options") as found:
        open_store(str(root))
    assert_nothing_in(str(found.value))


@pytest.mark.parametrize("url", ["s3:/bucket", "S3:/bucket/x", "webhdfs:/user:pw@host/x"])
def test_a_url_with_one_slash_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """A mistyped URL. A folder of this name would be made, and its name, with the options, shown
    in each line."""
    monkeypatch.chdir(tmp_path)
    for words in (["ls", f"{url}{QUERY}"], ["doctor", f"{url}{QUERY}"], ["stat", f"{url}{QUERY}"]):
        assert ended(words) != 0
    with pytest.raises(StorageError, match="one slash"):
        open_store(f"{url}{QUERY}")
    shown = capsys.readouterr()
    assert_nothing_in(shown.out, shown.err)
    assert "Traceback" not in shown.err and "bug" not in shown.err
    assert not list(tmp_path.iterdir())
