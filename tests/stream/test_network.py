"""A stream that a server serves to other machines."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

import imap_wal.stream as stream
from imap_wal.errors import (
    Conflict,
    Fenced,
    InvalidSetting,
    LostRace,
    NotAllowed,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.stream import Certificates, Stream, Transaction
from imap_wal.stream.partition import Partition
from imap_wal.stream.served import ServedStream
from imap_wal.workers import server
from imap_wal.workers.client import ClientLine
from imap_wal.workers.network import NetworkEndpoint
from rewrite_cli.commands.service import serve
from rewrite_cli.commands.service.stream import command
from tests.kit.certificates import Authority, key_pem
from tests.kit.ports import free_port
from tests.kit.stream_servers import served
from tests.support import Threads, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def url() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def asking(url: str, certificates: Certificates | None, **options: Any) -> Stream:
    return stream.connect(url, certificates=certificates, **options)


# ---- what a client can do ------------------------------------------------------------------------


def test_clients_submit_read_and_consume(tmp_path: Path, url: str, authority: Authority) -> None:
    applied: list[Any] = []
    with (
        served(tmp_path, url, authority.certificates("server")),
        asking(url, authority.certificates("one")) as one,
        asking(url, authority.certificates("two"), partitions=2) as two,
    ):

        @two.consumer("all", marks=stream.FileMarks(tmp_path / "marks"), shared=True)
        def note(record: stream.StreamRecord) -> None:
            applied.append(record.data)

        big = "x" * 3_000_000
        first = one.submit(
            "a", Transaction(big, write=["a"]), mark=stream.Mark(one.partition_of("a"))
        )
        assert first is not None
        with pytest.raises(Conflict) as conflict:
            two.submit("a", Transaction("late", read=["a"]), mark=stream.Mark(first.partition))
        assert conflict.value.lock == "a"
        again = two.submit("a", Transaction("named"), request="once")
        assert one.submit("a", Transaction("named"), request="once") == again
        assert [record.data for record in two.read(first.partition)] == [big, "named"]
        assert again is not None
        assert two.wait("all", again, 60)
    assert applied == [big, "named"]


def test_an_address_of_this_machine_needs_no_certificates(tmp_path: Path, url: str) -> None:
    with served(tmp_path, url, None), asking(url, None) as bank:
        mark = bank.submit("a", Transaction("b"))
        assert mark is not None
        assert mark.id == 1


def test_an_answer_under_way_at_a_stop_is_encrypted(
    tmp_path: Path, url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads no more, and sends the answer that it is working on."""
    entered, shut, free = threading.Event(), threading.Event(), threading.Event()
    answer, shut_down = ServedStream.answer, server._shut

    def shuts(connection: socket.socket, how: int) -> None:
        shut_down(connection, how)
        shut.set()

    monkeypatch.setattr(server, "_shut", shuts)

    def slow(
        served: ServedStream, client: bytes, number: int, request: list[Any], parts: Any
    ) -> Any:
        if request[0] == "append":
            entered.set()
            assert free.wait(60)
        return answer(served, client, number, request, parts)

    monkeypatch.setattr(ServedStream, "answer", slow)
    with ExitStack() as stack:
        stopped = stack.enter_context(ExitStack())
        stopped.enter_context(served(tmp_path, url, authority.certificates("server")))
        bank = stack.enter_context(asking(url, authority.certificates("one"), timeout_s=20))
        marks: list[Any] = []
        submits = Threads(lambda: marks.append(bank.submit("a", Transaction("b"))))
        assert entered.wait(60)
        stops = Threads(stopped.close)
        assert shut.wait(60)
        free.set()
        stops.join()
        submits.join()
        assert marks[0].id == 1


# ---- two servers ---------------------------------------------------------------------------------


def _server(folder: Path, url: str, files: Certificates) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-c", "from rewrite_cli.cli import main; main()", "stream", "serve",
        str(folder / "log"), "--listen", url, "--certificate", str(files.certificate),
        "--key", str(files.key), "--authority", str(files.authority),
    ]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_another_server_takes_over(tmp_path: Path, authority: Authority) -> None:
    """The one that serves is killed again and again, and begins again. Each request is in the log
    once, and ids have no gaps."""
    stream.open(tmp_path / "log", partitions=1).close()
    urls = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    files = authority.certificates("server")
    both = f"{urls[0]},{urls[1].removeprefix('tcp://')}"
    servers = [_server(tmp_path, urls[0], files)]
    try:
        assert "serving" in _said(servers[0])
        servers.append(_server(tmp_path, urls[1], files))
        assert "waiting" in _said(servers[1])
        with asking(both, authority.certificates("one"), timeout_s=60) as bank:
            acknowledged = []
            for number in range(60):
                if number in (20, 40):
                    killed = 0 if number == 20 else 1
                    servers[killed].kill()
                    servers[killed].communicate()
                    assert "serving" in _said(servers[1 - killed])
                    servers[killed] = _server(tmp_path, urls[killed], files)
                    assert "waiting" in _said(servers[killed])
                mark = bank.submit("a", Transaction(number), request=f"r{number}")
                assert mark is not None
                acknowledged.append(mark.id)
            assert acknowledged == list(range(1, 61))
            assert [record.data for record in bank.read(0)] == list(range(60))
        for process in servers:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in servers] == [0, 0]
    finally:
        for process in servers:
            process.kill()
            process.communicate()


# ---- who is admitted -----------------------------------------------------------------------------


def test_a_client_of_another_authority_is_refused(
    tmp_path: Path, url: str, authority: Authority
) -> None:
    stranger = Authority(tmp_path, "theirs")
    with served(tmp_path, url, authority.certificates("server")):
        begin = time.monotonic()
        with pytest.raises(NotAllowed, match="refused this certificate"):
            asking(url, stranger.certificates("stranger", trusts=authority))
        with pytest.raises(NotAllowed, match=r"certificate of a server .* was not accepted here"):
            asking(url, stranger.certificates("stranger"))
        assert time.monotonic() - begin < 20, "it is not tried again"
        with asking(url, authority.certificates("one")) as bank:
            assert bank.partitions == 2


def test_a_client_without_tls_is_refused(tmp_path: Path, url: str, authority: Authority) -> None:
    with served(tmp_path, url, authority.certificates("server")):
        with pytest.raises(StorageUnavailable):
            asking(url, None, timeout_s=1)
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        port = int(url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            pytest.raises(ssl.SSLError),
            plain.wrap_socket(raw) as without,
        ):
            without.sendall(b"\0\0\0\1\x90")
            without.recv(1)
        with asking(url, authority.certificates("one")) as bank:
            assert bank.partitions == 2


def test_a_server_of_another_name_is_refused(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its authority is ours, and its certificate is for another machine."""
    port = free_port()
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **kind: resolve("127.0.0.1", *rest, **kind)
    )
    with (
        served(tmp_path, f"tcp://127.0.0.1:{port}", authority.certificates("server")),
        pytest.raises(NotAllowed, match=r"bank\.example"),
    ):
        asking(f"tcp://bank.example:{port}", authority.certificates("one"))


def test_silent_connections_make_room(
    tmp_path: Path, url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    port = int(url.rpartition(":")[2])
    with served(tmp_path, url, authority.certificates("server")), ExitStack() as stack:
        before = stack.enter_context(asking(url, authority.certificates("one")))
        for _ in range(10):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        late = stack.enter_context(asking(url, authority.certificates("two"), timeout_s=5))
        for bank in (before, late):
            assert bank.submit("a", Transaction("b")) is not None


@pytest.mark.parametrize("data", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", os.urandom(300)])
def test_what_is_not_tls_ends_only_its_connection(
    tmp_path: Path, url: str, authority: Authority, data: bytes
) -> None:
    port = int(url.rpartition(":")[2])
    with served(tmp_path, url, authority.certificates("server")):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(data)
            if len(data) > 10:
                peer.settimeout(30)
                with pytest.raises((ConnectionResetError, EOFError)):
                    while peer.recv(100):
                        pass
                    raise EOFError
        with asking(url, authority.certificates("one")) as bank:
            assert bank.partitions == 2


def test_the_certificates_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/streams.md").read_text()
    commands = page.partition("```sh\nopenssl")[2].partition("```")[0]
    # The servers of the page are other machines.
    script = f"openssl{commands}".replace(
        "subjectAltName=DNS:$name", "subjectAltName=DNS:localhost"
    )
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.chdir(tmp_path)
    of_server = Certificates("bank-1.pem", "bank-1.key", "authority.pem")
    port = free_port()
    with (
        served(tmp_path, f"tcp://127.0.0.1:{port}", of_server),
        asking(
            f"tcp://localhost:{port}", Certificates("app.pem", "app.key", "authority.pem")
        ) as bank,
    ):
        assert bank.submit("a", Transaction("b")) is not None


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tcp://10.0.0.1:7790", "without certificates"),
        ("tcp://0.0.0.0:7790", "without certificates"),
        ("tcp://127.0.0.1:7790,bank.example:7790", "without certificates"),
        ("tcp://127.0.0.1", "is not valid; use tcp://host:port"),
        ("tcp://127.0.0.1:0", "its port is 0"),
        ("tcp://127.0.0.1:70000", "its port is 70000"),
        ("tcp://", "is not valid; use tcp://host:port"),
    ],
)
def test_a_wrong_address_is_named(url: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        asking(url, None)


def test_options_of_the_server_are_refused() -> None:
    url = "tcp://127.0.0.1:7790"
    for options in ({"name": "other"}, {"namespace": "n"}, {"socket": "/tmp/s"}, {"wal_dir": "/w"}):
        with pytest.raises(InvalidSetting, match=f"{next(iter(options))} is decided by the server"):
            asking(url, None, **options)
    with pytest.raises(InvalidSetting, match=r"certificates are for tcp://"):
        stream.connect("/tmp/log", certificates=Certificates("a", "b", "c"))


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, authority: Authority) -> None:
    good, other = authority.certificates("one"), authority.certificates("two")
    locked, rubbish = tmp_path / "locked.key", tmp_path / "rubbish"
    locked.touch(0o600)
    locked.write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    rubbish.write_text("rubbish")
    for files, text in (
        (Certificates(tmp_path / "no", good.key, good.authority), "No such file"),
        (Certificates(good.certificate, other.key, good.authority), "do not belong together"),
        (Certificates(good.certificate, locked, good.authority), "the key has a password"),
        (Certificates(rubbish, good.key, good.authority), "rubbish with key .*not valid PEM"),
        (Certificates(good.certificate, good.key, rubbish), "authority .*rubbish: not valid PEM"),
    ):
        with pytest.raises(InvalidSetting, match=text):
            asking("tcp://127.0.0.1:7790", files)


def test_an_address_in_use_is_named(tmp_path: Path, url: str) -> None:
    """The log is closed again."""
    with served(tmp_path, url, None):
        other = tmp_path / "other"
        with (
            pytest.raises(InvalidSetting, match=f"cannot listen at {url}"),
            served(other, url, None),
        ):
            pass
        stream.open(other / "log").close()


def test_no_server_is_named(url: str) -> None:
    """And no thread waits for it any more."""
    before = {*threading.enumerate()}
    with pytest.raises(StorageUnavailable, match=f"no process serves at {url}"):
        asking(url, None, timeout_s=0.2)
    eventually(lambda: before >= {*threading.enumerate()}, "no thread of its own")


def _client_of(bank: Any) -> Any:
    return bank._share._client


# ---- several addresses ---------------------------------------------------------------------------


def _both(first: str, second: str) -> str:
    return f"{first},{second.removeprefix('tcp://')}"


@pytest.mark.parametrize("first", ["of another authority", "silent", "closed", "without TLS"])
def test_the_next_address_is_tried(
    tmp_path: Path, url: str, authority: Authority, first: str
) -> None:
    other = f"tcp://127.0.0.1:{free_port()}"
    place = ("127.0.0.1", int(other.rpartition(":")[2]))
    with ExitStack() as stack:
        stack.enter_context(served(tmp_path, url, authority.certificates("server")))
        if first == "of another authority":
            stranger = Authority(tmp_path, "theirs").certificates("server", trusts=authority)
            stack.enter_context(served(tmp_path / "other", other, stranger))
        elif first == "silent":
            stack.enter_context(socket.create_server(place))
        elif first == "without TLS":
            stack.enter_context(served(tmp_path / "other", other, None))
        bank = stack.enter_context(
            asking(_both(other, url), authority.certificates("one"), timeout_s=4)
        )
        begin = time.monotonic()
        assert bank.submit("a", Transaction("b")) is not None
        assert time.monotonic() - begin < 2, "the address that answered is tried first"


@pytest.mark.parametrize("stale", ["it knows that", "it does not know that"])
def test_a_server_that_has_lost_the_log_fences_no_client(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    """It lacks what its successor has acknowledged. The client goes on with the successor."""
    other = f"tcp://127.0.0.1:{free_port()}"
    old = tmp_path / "old"
    with served(tmp_path, url, None), served(old, other, None):
        lacks = ServedStream.lacks

        def judged(stream_: ServedStream, acknowledged: Any) -> bool:
            if "old" not in stream_.url:
                return lacks(stream_, acknowledged)
            if stale == "it knows that":
                raise Fenced("another process has the log")
            return True

        monkeypatch.setattr(ServedStream, "lacks", judged)
        with asking(_both(other, url), None) as bank:
            marks = [bank.submit("a", Transaction(number)) for number in range(3)]
            assert [mark.id for mark in marks if mark is not None] == [1, 2, 3]


def test_a_server_whose_lease_is_old_answers_nothing(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have the log already."""
    with served(tmp_path, url, None), asking(url, None, timeout_s=2) as bank:
        assert bank.submit("a", Transaction(1)) is not None
        monkeypatch.setattr(Partition, "lease_age_s", 31.0)
        with pytest.raises(StorageUnavailable):
            bank.mark(0)


def test_a_server_proves_that_it_has_the_log(tmp_path: Path, url: str) -> None:
    """Before it says that the log was replaced."""
    with served(tmp_path, url, None), asking(url, None, timeout_s=2) as bank:
        client = _client_of(bank)
        client._marks[0] = stream.Mark(0, 7)
        for line in client._free:
            line.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "prove", _cannot_know)
            # The last attempt may have too little time for an answer.
            with pytest.raises(StorageUnavailable, match=r"cannot know|did not answer"):
                bank.mark(0)
        with pytest.raises(Fenced, match="replaced by an older copy"):
            bank.mark(0)


def _cannot_know(partition: Partition) -> None:
    raise StorageUnavailable("cannot know")


def test_a_refusal_after_a_change_was_sent_is_unknown(
    tmp_path: Path, url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was replaced by one of another authority before its answer."""
    with (
        served(tmp_path, url, authority.certificates("server")),
        asking(url, authority.certificates("one")) as bank,
    ):
        answer = server.Server._answer

        def lost(at: server.Server, *request: Any) -> bool:
            own, other = socket.socketpair()
            with own, other:
                answer(at, own, *request[1:])
            monkeypatch.setattr(NetworkEndpoint, "connect", _refused)
            return False

        monkeypatch.setattr(server.Server, "_answer", lost)
        with pytest.raises(OutcomeUnknown, match="may be in the log"):
            bank.submit("a", Transaction("b"), request="r")


def _refused(endpoint: NetworkEndpoint, timeout_s: float) -> socket.socket:
    raise NotAllowed("another authority")


def test_a_message_goes_to_the_process_that_serves_now(tmp_path: Path, url: str) -> None:
    """Other connections are to a process that has ended."""
    with served(tmp_path, url, None), asking(url, None) as bank:
        client = _client_of(bank)
        dead = ClientLine(b"x" * 16)
        dead.connection, other = socket.socketpair()
        other.close()
        quiet = ClientLine(b"y" * 16)
        quiet.connection, far = socket.socketpair()
        (line,) = client._free
        line.server = client._server = 77
        client._free[:0] = [dead, quiet]
        number = next(line.numbers) + 1
        client.tell("leave", "c", b"p" * 16)
        assert next(line.numbers) == number + 1, "it was sent on this connection"
        assert dead.connection is None
        assert quiet.connection is None
        far.close()


# ---- servers that wait ---------------------------------------------------------------------------


def test_a_server_that_waits_survives_a_storage_that_fails() -> None:
    errors = [StorageUnavailable("503"), WriterLocked("n", "another one"), LostRace("x")]

    class Elections:
        def elect(self) -> bool:
            if errors:
                raise errors.pop()
            return True

    elections: Any = Elections()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "LOOK_S", 0.0)
        assert serve._is_elected(elections, threading.Event(), waits=True)


@pytest.mark.parametrize("listen", ["tcp://192.0.2.1:7790", "127.0.0.1:7790", "tcp://a b:1"])
def test_a_wrong_address_is_noticed_before_the_wait(tmp_path: Path, listen: str) -> None:
    with stream.open(tmp_path / "log", partitions=1):
        result = CliRunner().invoke(command, ["serve", str(tmp_path / "log"), "--listen", listen])
    assert result.exit_code != 0
    assert isinstance(result.exception, InvalidSetting)


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    files = authority.certificates("one")
    Path(files.key).chmod(0o644)
    with pytest.raises(InvalidSetting, match="other users may open it"):
        asking("tcp://127.0.0.1:7790", files)
