"""`imap-wal keys`."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.errors import InvalidSetting
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit

TOKEN_BYTES = 32
_FILE = click.Path(dir_okay=False, path_type=Path)


def _words(rights: frozenset[Right]) -> str:
    return "+".join(right for right in Right if right in rights)


@click.group()
def command() -> None:
    """Keys for agents at tcp:// endpoints, and the tokens of clusters: docs/how-to/keys.md."""


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder for the files. Default: here.",
)
@out.output_option
def new(names: tuple[str, ...], folder: Path, output: str) -> None:
    """Make keys: for each NAME a file NAME.key (secret, mode 0600) and NAME.pub (public).

    Make each key on the machine that uses it, and copy only the .pub file to others.

    \b
    Example:
      imap-wal keys new agent-1 member-1 --folder /etc/imap-wal
    """
    from imap_wal.agent.transport.gate import new_pair

    for name in names:
        keys.checked_name(name, "NAME")
        for file in (folder / f"{name}.key", folder / f"{name}.pub"):
            if file.exists():
                raise InvalidSetting(
                    f"{file} already exists, and was not changed. Choose another name, or remove "
                    "it first"
                )
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"{folder}: {error.strerror}") from error
    made = []
    for name in names:
        pair = new_pair(name)
        keys.write_new(folder / f"{name}.key", pair.text(), 0o600)
        keys.write_new(folder / f"{name}.pub", keys.KeyPair(name, pair.public).text(), 0o644)
        audit("key made", file=(folder / f"{name}.key").absolute(), name=name, key=pair.public)
        made.append({"name": name, "public_key": pair.public, "file": str(folder / f"{name}.key")})
    if output == out.JSON:
        out.print_json({"keys": made})
    else:
        out.print_table(("name", "public key", "file"), [tuple(pair.values()) for pair in made])


@command.command()
@click.argument("file", type=_FILE)
@out.output_option
def show(file: Path, output: str) -> None:
    """Print the public key in FILE (.key or .pub). A secret key is never printed.

    \b
    Example:
      imap-wal keys show /etc/imap-wal/agent-1.pub
    """
    pair = keys.read_public(file)
    if output == out.JSON:
        out.print_json({"name": pair.name, "public_key": pair.public})
    else:
        out.echo(pair.public)


@command.command()
@click.argument("clients", type=_FILE)
@click.argument("public", metavar="PUB...", type=_FILE, nargs=-1, required=True)
@click.option(
    "--right",
    "rights",
    type=click.Choice([str(right) for right in Right]),
    multiple=True,
    help="May be repeated. Default: all, which a member needs.",
)
def allow(clients: Path, public: tuple[Path, ...], rights: tuple[str, ...]) -> None:
    """Admit the keys in the files PUB: add them to the file CLIENTS, or change their rights. Agents
    see it within a second.

    read: to read. write: to change maps. claim: to claim the log for a new cluster or a view.
    Members need all three.

    \b
    Examples:
      imap-wal keys allow /etc/imap-wal/clients.toml member-1.pub member-2.pub
      imap-wal keys allow /etc/imap-wal/clients.toml monitor.pub --right read
    """
    granted = frozenset(map(Right, rights)) or frozenset(Right)
    allowed = [keys.read_public(file) for file in public]
    with keys.changing_clients(clients) as peers:
        for pair in allowed:
            for other in [
                other
                for other, peer in peers.items()
                if peer.name == pair.name and other != pair.public
            ]:
                raise InvalidSetting(
                    f"{clients}: {pair.name} already has another key, {other}; revoke that first, "
                    "or give the new key another name"
                )
            peers[pair.public] = Peer(pair.name, granted)
    for pair in allowed:
        audit(
            "key allowed",
            file=clients.absolute(),
            name=pair.name,
            key=pair.public,
            rights=_words(granted),
        )
    out.echo(f"{clients}: {', '.join(sorted(peer.name for peer in peers.values()))}")


@command.command()
@click.argument("clients", type=_FILE)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def revoke(clients: Path, names: tuple[str, ...]) -> None:
    """Stop admitting NAME: remove it from the file CLIENTS. Its connections lose all rights
    within a second.

    \b
    Example:
      imap-wal keys revoke /etc/imap-wal/clients.toml member-1
    """
    revoked = {}
    with keys.changing_clients(clients) as peers:
        unknown = set(names) - {peer.name for peer in peers.values()}
        if unknown:
            raise InvalidSetting(f"{clients}: no client {', '.join(map(repr, sorted(unknown)))}")
        for public in [public for public, peer in peers.items() if peer.name in names]:
            revoked[public] = peers.pop(public)
    for public, peer in revoked.items():
        audit(
            "key revoked",
            file=clients.absolute(),
            name=peer.name,
            key=public,
            rights=_words(peer.rights),
        )
    out.echo(f"{clients}: revoked {', '.join(names)}")


@command.command("list")
@click.argument("clients", type=_FILE)
@out.output_option
def list_(clients: Path, output: str) -> None:
    """Show which clients the file CLIENTS admits.

    \b
    Example:
      imap-wal keys list /etc/imap-wal/clients.toml
    """
    peers = sorted(keys.read_clients(clients).items(), key=lambda client: client[1].name)
    if output == out.JSON:
        rows = [
            {
                "name": peer.name,
                "public_key": public,
                "rights": [str(right) for right in Right if right in peer.rights],
            }
            for public, peer in peers
        ]
        out.print_json({"clients": rows})
        return
    table = [
        (peer.name, ", ".join(right for right in Right if right in peer.rights), public)
        for public, peer in peers
    ]
    out.print_table(("name", "rights", "public key"), table)


@command.command()
@click.argument("file", type=_FILE)
def token(file: Path) -> None:
    """Make the token of a cluster, in a new file of mode 0600.

    The first cluster that claims the log with a token sets it for the log; see also `imap-wal claim
    --add-token`.

    \b
    Example:
      imap-wal keys token /etc/imap-wal/eu.token
    """
    made = secrets.token_hex(TOKEN_BYTES)
    keys.write_new(file, f"{made}\n", 0o600)
    audit("token made", file=file.absolute(), sha256=keys.token_hash(made))
    out.echo(f"{file}: set the property imap-wal.cluster-token-file on every member of the cluster")
