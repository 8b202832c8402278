"""`imap-wal stream`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import wraps
from heapq import merge
from pathlib import Path
from typing import Any

import click

import imap_wal.stream as streams
from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.bounds import raise_file_limit
from imap_wal.clock import SystemClock
from imap_wal.encoder import plain
from imap_wal.errors import NoSuchLog, WriterLocked
from imap_wal.stream import Mark, Stream, StreamRecord, Transaction
from imap_wal.stream import connect as connected
from imap_wal.stream.progress import ConsumerProgress, StreamProgress
from imap_wal.stream.reading import ReadPartition, read_tables
from imap_wal.stream.served import endpoint_of, serving_stream
from imap_wal.stream.transaction import name_in
from imap_wal.workers.endpoint import Endpoint
from imap_wal.workers.network import TCP, Certificates, NetworkEndpoint
from imap_wal.workers.server import CONNECTIONS_MAX
from rewrite_cli.commands.service.serve import serve as run_server
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import url_argument
from rewrite_cli.console.times import Duration
from rewrite_cli.console.written import closed_within
from storage_backends.location import Location

ASK_S = 10.0
"""How long `consumers` waits for a server, in seconds."""
_FILE = click.Path(dir_okay=False, path_type=Path)
PARTITION_HELP = "Only this partition."


@click.group()
def command() -> None:
    """Transactions with optimistic locks: create a stream, append to it, see what is in it."""


def _stream_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """URL, --namespace and --name."""
    command = click.option(
        "--namespace", default="default", show_default=True, help="Namespace of the stream."
    )(command)
    command = click.option(
        "--name", default="stream", show_default=True, help="Name of the stream."
    )(command)
    return url_argument(command)


_socket_option = click.option(
    "--socket",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the stream is served; the same in all processes that connect. Otherwise it is "
    "derived from the URL.",
)


def _certificate_options(
    owner: str, others: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--certificate, --key and --authority, as `certificates`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def wrapper(
            certificate: Path | None, key: Path | None, authority: Path | None, **rest: Any
        ) -> Any:
            files = [file for file in (certificate, key, authority) if file is not None]
            if len(files) not in (0, 3):
                raise click.UsageError("pass --certificate, --key and --authority together")
            return command(certificates=Certificates(*files) if files else None, **rest)

        signers = f"that signs the certificates of {others}, in PEM form."
        for option, text in (
            ("--authority", f"Certificate of the authority {signers}"),
            ("--key", "Private key of the certificate, mode 0600, in PEM form."),
            ("--certificate", f"Certificate of this {owner}, in PEM form."),
        ):
            wrapper = click.option(option, type=_FILE, help=text)(wrapper)
        return wrapper

    return decorate


def _opened(
    url: Location,
    name: str,
    namespace: str,
    open: Callable[..., Stream] = streams.open,
    **options: Any,
) -> Stream:
    where: dict[str, Any] = {"name": name, "namespace": namespace, "wal_dir": url.wal_dir or ""}
    try:
        return open(url, **where, **options)
    except NoSuchLog:
        raise Failed(
            f"{url} has no stream {name!r} in namespace {namespace!r}; to create it: imap-wal "
            "stream create URL --partitions 8"
        ) from None
    except WriterLocked as error:
        advice = (
            "the program that writes the stream does not serve it: submit there, or let it use "
            "imap_wal.stream.connect, or stop it"
        )
        raise WriterLocked(error.node, error.holder, advice) from None


@command.command()
@_stream_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, 1024),
    required=True,
    help="How many partitions it has. The number never changes.",
)
def create(url: Location, name: str, namespace: str, partitions: int) -> None:
    """Create a stream, unless it exists.

    \b
    Examples:
      imap-wal stream create /var/lib/bank --partitions 8
    """
    _opened(url, name, namespace, partitions=partitions).close()
    out.echo(f"stream {name!r} has {out.count(partitions, 'partition', 'partitions')}")


@command.command()
@_stream_argument
@_socket_option
@click.option(
    "--listen",
    metavar="TCP_ADDRESS",
    help="Serve other machines, at this address of this machine: tcp://host:port.",
)
@_certificate_options("server", "clients")
@click.option(
    "--http-address",
    help="Serve metrics and health at this address, over plain HTTP; for example 127.0.0.1:9414.",
)
def serve(
    url: Location,
    name: str,
    namespace: str,
    socket: Path | None,
    listen: str | None,
    certificates: Certificates | None,
    http_address: str | None,
) -> None:
    """Serve a stream to processes that call imap_wal.stream.connect. The stream must exist.

    Without --listen, serve processes of this user on this machine. They should pass serve=False to
    connect. If another process has the log or serves it, the exit code is 4. Without this command,
    one of these processes serves the others.

    With --listen, serve processes on other machines. They pass tcp://host:port to connect. The
    connections use TLS; at 127.0.0.1, certificates are optional. If another process has the log,
    this one waits until it can take its place, so several machines can run this command.

    With --http-address, /metrics has the lag of each consumer, for Prometheus. This needs
    'imap-wal[agent]'.

    SIGTERM or SIGINT closes the log, and the exit code is 0.

    \b
    Examples:
      imap-wal stream serve /var/lib/bank
      imap-wal stream serve s3://bucket/bank --listen tcp://0.0.0.0:7790 --certificate bank-1.pem \\
        --key bank-1.key --authority authority.pem
    """
    if certificates is not None and listen is None:
        raise click.UsageError("--certificate, --key and --authority are for --listen")
    if listen is not None and socket is not None:
        raise click.UsageError("pass --listen or --socket")
    if listen is None:
        endpoint: Endpoint = endpoint_of(url, namespace, name, socket)
    else:
        endpoint = NetworkEndpoint(listen, certificates, serves=True)
        endpoint.demand_free()  # not only when it takes the place of another server
        raise_file_limit(CONNECTIONS_MAX)
    options = {"name": name, "namespace": namespace, "wal_dir": url.wal_dir or ""}
    _opened(url, name, namespace, read_only=True).close()  # whether there is a stream
    election = serving_stream(url, endpoint, **options)
    with ExitStack() as stack:
        if http_address is not None:
            from imap_wal.stream.monitoring import listener

            pages = listener(http_address, namespace, name, election, SystemClock())
            pages.worker.start()
            if doubt := HttpAddress.parse(http_address).doubt:
                out.note(f"warning: {doubt}")
            stack.callback(pages.close)
        run_server(election, name, endpoint.name, waits=listen is not None)


@command.command()
@_stream_argument
@click.argument("header")
@click.argument("data")
@click.option("--read", multiple=True, help="A lock on which the data depends; may be repeated.")
@click.option("--write", multiple=True, help="A lock that is read and written; may be repeated.")
@click.option("--append", multiple=True, help="A lock that is only written; may be repeated.")
@click.option(
    "--seen",
    type=click.IntRange(0),
    help="The id of the newest transaction that you have seen in the partition. Needed with --read "
    "and --write.",
)
@click.option(
    "--request",
    default="",
    help="A name for the transaction. If it is sent again with the same name, it counts once.",
)
@_socket_option
@out.output_option
def submit(
    url: Location,
    name: str,
    namespace: str,
    header: str,
    data: str,
    read: tuple[str, ...],
    write: tuple[str, ...],
    append: tuple[str, ...],
    seen: int | None,
    request: str,
    socket: Path | None,
    output: str,
) -> None:
    """Append one transaction. HEADER decides its partition: text, or a whole number. DATA is JSON.

    Programs that use the stream at the same time must have opened it with imap_wal.stream.connect;
    otherwise the exit code is 4. If a newer transaction than --seen wrote a lock, nothing is
    appended, and the exit code is 4 too.

    \b
    Examples:
      imap-wal stream submit /var/lib/bank account:7 '{"paid": 5}' --append account:7
      imap-wal stream submit /var/lib/bank 7 '{"paid": 5}' --write account:7 --seen 12
    """
    try:
        value = json.loads(data)
    except ValueError as error:
        raise click.UsageError(f"DATA is not valid JSON: {error}") from error
    if seen is None and (read or write):
        raise click.UsageError("--read and --write need --seen")
    of: str | int = int(header) if header.lstrip("-").isdecimal() else header
    with _opened(url, name, namespace, connected, socket=socket) as stream:
        mark = None if seen is None else Mark(stream.partition_of(of), seen)
        appended = stream.submit(
            of, Transaction(value, read, write, append), mark=mark, request=request
        )
    assert appended is not None
    if output == out.JSON:
        out.print_line(appended._asdict())
    else:
        out.echo(f"transaction {appended.id} of partition {appended.partition}")


@command.command()
@_stream_argument
@click.option("--partition", type=click.IntRange(0), help=PARTITION_HELP)
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    help="Only transactions above this id, of each partition.",
)
@click.option("--lock", help="Only transactions that read or wrote this lock.")
@click.option("-f", "--follow", is_flag=True, help="Then print new transactions as they come.")
@click.option(
    "--interval",
    type=Duration(),
    default="1s",
    show_default=True,
    help="The pause between two searches for new transactions.",
)
@out.output_option
def tail(
    url: Location,
    name: str,
    namespace: str,
    partition: int | None,
    after: int,
    lock: str | None,
    follow: bool,
    interval: float,
    output: str,
) -> None:
    """Print transactions, those of all partitions by time; with --follow, also new ones,
    until Ctrl-C. In JSON, each is one line.

    \b
    Examples:
      imap-wal stream tail /var/lib/bank -f
      imap-wal stream tail /var/lib/bank --lock account:7 -o json
    """
    with _opened(url, name, namespace, read_only=True) as stream:
        sources = [
            iter(each.records(Mark(each.number, after))) for each in _chosen(stream, partition)
        ]
        try:
            while True:
                rounds = [iter(source.__next__, None) for source in sources]
                for record in merge(*rounds, key=lambda record: record.time_ms):
                    if lock in (None, *record.read, *record.write, *record.append):
                        _show(record, output)
                if not follow or closed_within(interval):
                    return
        except KeyboardInterrupt:
            if not follow:
                raise


def _chosen(stream: Stream, partition: int | None) -> list[ReadPartition]:
    numbers = range(stream.partitions) if partition is None else [partition]
    return [stream.reading(number) for number in numbers]


def _show(record: StreamRecord, output: str) -> None:
    fields = asdict(record) | {"data": plain(record.data), "position": record.position}
    del fields["place"]
    if output == out.JSON:
        out.print_line(fields)
        return
    locks = " ".join(
        f"{mode}={','.join(fields[mode])}" for mode in ("read", "write", "append") if fields[mode]
    )
    data = json.dumps(fields["data"], ensure_ascii=False)
    out.echo(f"{record.partition}/{record.id} {record.header} {locks} {data}".replace("  ", " "))


@command.command()
@_stream_argument
@click.option("--partition", type=click.IntRange(0), help=PARTITION_HELP)
@click.option("--lock", help="Only this lock.")
@out.output_option
def locks(
    url: Location, name: str, namespace: str, partition: int | None, lock: str | None, output: str
) -> None:
    """Print the locks, each with the newest transaction that wrote it.

    \b
    Examples:
      imap-wal stream locks /var/lib/bank --lock account:7
    """
    rows = []
    with _opened(url, name, namespace, read_only=True) as stream:
        for each in _chosen(stream, partition):
            table = read_tables(each.logs, each.node, each.number, 2**62)[0]
            rows += [
                {"partition": each.number, "lock": name_in(key), "id": id}
                for key, id in table.items()
                if name_in(key) and lock in (None, name_in(key))
            ]
    rows.sort(key=lambda row: (row["partition"], str(row["lock"])))
    _print(rows, ("partition", "lock", "id"), output)


@command.command()
@_stream_argument
@out.output_option
def stat(url: Location, name: str, namespace: str, output: str) -> None:
    """Print the number of transactions, locks and known requests of each partition.

    \b
    Examples:
      imap-wal stream stat /var/lib/bank -o json
    """
    rows = []
    with _opened(url, name, namespace, read_only=True) as stream:
        for each in _chosen(stream, None):
            table, requests, newest = read_tables(each.logs, each.node, each.number, 2**62)
            known = sum(1 for key, _ in table.items() if name_in(key))
            rows.append(
                {
                    "partition": each.number,
                    "transactions": newest,
                    "locks": known,
                    "requests": len(requests),
                }
            )
    _print(rows, ("partition", "transactions", "locks", "requests"), output)


@command.command()
@_stream_argument
@_socket_option
@_certificate_options("program", "servers")
@out.output_option
def consumers(
    url: Location,
    name: str,
    namespace: str,
    socket: Path | None,
    certificates: Certificates | None,
    output: str,
) -> None:
    """Print how far each consumer is: for each partition, its mark, the newest transaction, how
    many transactions are not applied yet (the lag), and the process that applies them.

    URL is that of the log, or tcp://host:port of a server. The command asks the process that serves
    the stream. That process knows the consumers of programs that call imap_wal.stream.connect, as
    they were up to a second ago. A consumer that no process runs any more is shown for a week, or
    until another process serves. If no process serves, only the newest transactions are printed.

    \b
    Examples:
      imap-wal stream consumers /var/lib/bank
      imap-wal stream consumers tcp://bank-1:7790 --certificate app.pem --key app.key \\
        --authority authority.pem -o json
    """
    progress = _asked(url, name, namespace, socket, certificates)
    if progress is None:
        with _opened(url, name, namespace, read_only=True) as stream:
            newest = [
                read_tables(each.logs, each.node, each.number, 2**62)[2]
                for each in _chosen(stream, None)
            ]
        progress = StreamProgress("", newest, ())
        out.note(
            "no process serves this stream, so it is not known here how far its consumers are; a "
            "program that called imap_wal.stream.open can print its Stream.progress()"
        )
    elif not progress.consumers:
        out.note("the process that serves knows no consumers")
    if output == out.JSON:
        out.print_json(
            {
                "process": progress.process or None,
                "partitions": [
                    {"partition": number, "newest": id} for number, id in enumerate(progress.newest)
                ],
                "consumers": [asdict(row) for row in progress.consumers],
            }
        )
        return
    if progress.consumers:
        columns = ("consumer", "partition", "mark", "newest", "lag", "applied by", "failures",
                   "skipped")  # fmt: skip
        out.print_table(columns, map(_consumer_cells, progress.consumers))
    else:
        out.print_table(("partition", "newest"), enumerate(progress.newest))
    for consumer, failure in dict.fromkeys(
        (row.consumer, row.failure) for row in progress.consumers if row.failure
    ):
        out.note(f"consumer {consumer!r} has stopped: {failure}")


def _asked(
    url: Location,
    name: str,
    namespace: str,
    socket: Path | None,
    certificates: Certificates | None,
) -> StreamProgress | None:
    """From the process that serves; None: there is none."""
    if url.url.startswith(TCP):
        if socket is not None:
            raise click.UsageError("--socket is not for a server at tcp://")
        with connected(url.url, certificates=certificates, timeout_s=ASK_S) as stream:
            return stream.progress()
    if certificates is not None:
        raise click.UsageError("--certificate, --key and --authority are for tcp://")
    try:
        endpoint_of(url, namespace, name, socket).connect(ASK_S).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    with _opened(url, name, namespace, connected, socket=socket, serve=False) as stream:
        return stream.progress()


def _consumer_cells(row: ConsumerProgress) -> list[Any]:
    since = "" if row.age_s is None else f" for {out.duration(row.age_s)}"
    applied_by = row.process or f"none{since}"
    if row.failure:
        applied_by = f"{row.process or 'none'}, stopped"
    return [
        row.consumer,
        row.partition,
        "not known" if row.mark is None else row.mark,
        row.newest,
        "not known" if row.lag is None else row.lag,
        applied_by,
        row.failures,
        row.skipped,
    ]


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], output: str) -> None:
    if output == out.JSON:
        out.print_json(rows)
    else:
        out.print_table(columns, [[row[column] for column in columns] for row in rows])
