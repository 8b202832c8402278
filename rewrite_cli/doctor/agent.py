"""An agent: whether it answers, and what it reports about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.membership.reports import KINDS
from imap_wal.errors import NotAllowed
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check

MEMBERS_MAX = 20
"""Members that a text names."""
BACKGROUND_WORK = {
    "archive": "segments stay until it works",
    "retention": "covered files stay until it works",
    "compaction": "the logs of the cluster grow until it works, or until `imap-wal rewrite` and "
    "`imap-wal prune` run",
}
"""Work of an agent whose last run may have failed, and what that means."""
NO_AGENT = "check what listens there; the agent and this command must be of one release"


def agent_checks(
    endpoint: str,
    key: KeyPair | None = None,
    agent_key: str = "",
    failed: set[str] | None = None,
) -> Iterator[Check]:
    """Whether an agent answers, and what it reports. `key`, `agent_key`: as for `Client`. If the
    agent runs and its log has failed, its node is added to `failed`."""
    from imap_wal.agent.transport.client import NoAgent
    from rewrite_cli.local_cluster.launcher import ask_stat

    try:
        health = ask_stat(endpoint, key=key, agent_key=agent_key)
    except NoAgent as error:
        yield Check("agent", PROBLEM, str(error), NO_AGENT)
        return
    except NotAllowed as error:
        yield Check(
            "agent",
            PROBLEM,
            str(error),
            "allow_uids, or key and clients in its configuration, decide who may connect; for "
            "an agent with keys, give --key-file and --agent-key",
        )
        return
    if health is None:
        yield Check(
            "agent",
            PROBLEM,
            f"no answer from {endpoint} within 2 s",
            "is it running (systemctl status imap-wal-agent), and is this the `endpoint` of "
            "its configuration?",
        )
        return
    if failed is not None and health.get("failure"):
        failed.add(str(health.get("node")))
    try:
        yield from _statistics(endpoint, health)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        yield Check(
            "agent", PROBLEM, f"{endpoint}: its statistics have another form ({error})", NO_AGENT
        )


def without_agent(name: str, node: str) -> Check:
    """A node has no running agent, and the next start would wait for it."""
    return Check(
        name,
        WARNING,
        f"no agent of node {node!r} runs: the next start of all members waits for it, unless "
        "start_policy is partial",
        "start its agent; if the node will not return, run `imap-wal rewrite`, then `imap-wal "
        f"forget-node --node {node}`",
    )


def _statistics(endpoint: str, health: Mapping[str, Any]) -> Iterator[Check]:
    """What an agent reports about itself. Raises errors of Python if the report has another
    form."""
    where = (
        f"node {health.get('node')!r} at {endpoint}, epoch {health.get('epoch')}, durability "
        f"{health.get('durability')}, {health.get('appends')} appends"
    )
    state = health["state"]
    if not health.get("healthy"):
        yield Check(
            "agent",
            PROBLEM,
            ": ".join(filter(None, (where, state, health.get("failure")))),
            "correct what the text names; the agent then continues without a restart",
        )
    elif state:
        yield Check("agent", WARNING, f"{where}: {state}", "the agent is not ready (/readyz)")
    else:
        yield Check("agent", OK, where)
    start = health.get("start") or {}
    if start.get("waiting"):
        summary = (
            f"cluster {start['cluster_id']} waits; it asked first {start['waited_s']:.0f} s ago, "
            f"and last {start['asked_s_ago']:.0f} s ago: {start['waiting']}"
        )
        yield Check(
            "agent's start",
            PROBLEM if start["late"] else WARNING,
            summary,
            "the wait ends when its cause is removed; `imap-wal claim` shows which "
            "agents gave signs of life, also ones that were killed since",
        )
    yield _members(health["members"])
    yield from _maps(health["members"])
    for node in health.get("absent") or ():
        yield without_agent("agent's cluster", node)
    if doubt := health.get("clock_doubt"):
        yield Check(
            "agent's clock",
            PROBLEM,
            doubt,
            "correct the wrong clock (chronyc tracking, or timedatectl); then restart the members "
            "on that machine, because they expire entries by its clock",
        )
    if error := health.get("merge_error"):
        yield Check(
            "agent's merge",
            PROBLEM,
            f"the logs cannot be merged, and members cannot load maps: {error}",
            "correct what the text names; the agent tries again",
        )
    yield from _metrics(health)
    yield from _own_disk(health)
    for work, meaning in BACKGROUND_WORK.items():
        if error := health.get(f"{work}_error"):
            yield Check(f"agent's {work}", WARNING, str(error), f"{meaning}; nothing is lost")


def _members(members: Sequence[Mapping[str, Any]]) -> Check:
    """Which members are connected to an agent, and which of them have lost the log."""
    if not members:
        return Check("agent's members", OK, "no member is connected")
    count = len(members)
    text = f"{count} {'member is' if count == 1 else 'members are'} connected: {_names(members)}"
    former = [member for member in members if member["superseded"]]
    if not former:
        return Check("agent's members", OK, text)
    return Check(
        "agent's members",
        PROBLEM,
        f"{text}; another cluster has claimed the log, so every change of {_names(former)} fails",
        "restart these members, one after the other or all at once",
    )


def _names(members: Sequence[Mapping[str, Any]]) -> str:
    names = [f"{member['member']} ({member['peer']})" for member in members[:MEMBERS_MAX]]
    more = f" and {len(members) - MEMBERS_MAX} more" if len(members) > MEMBERS_MAX else ""
    return ", ".join(names) + more


def _maps(members: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Which maps and structures of the members are durable; nothing if no member reports it."""
    reports = [member["maps"] for member in members if member.get("maps")]
    if not reports:
        return
    durable, transient, unnamed, structures = (
        _listed([report[kind] for report in reports]) for kind in KINDS
    )
    summary = f"durable: {durable or 'none'}; transient: {transient or 'none'}"
    if unnamed:
        yield Check(
            "agent's maps",
            PROBLEM,
            f"{summary}; not durable, and in no list: {unnamed}",
            "the entries of these maps are lost when all members stop: add their names to "
            "imap-wal.durable-maps, or to imap-wal.transient-maps if that is intended",
        )
    else:
        yield Check("agent's maps", OK, summary)
    if structures:
        yield Check(
            "agent's structures",
            WARNING,
            f"the log does not keep: {structures}",
            "they are lost when all members stop; imap-wal.durable-structures: refuse prevents "
            "such structures",
        )


def _listed(lists: Sequence[Mapping[str, Any]]) -> str:
    """The names that any member has reported, and how many more there are."""
    names = sorted({name for listing in lists for name in listing["names"]})
    more = max(listing["count"] for listing in lists) - len(names)
    return ", ".join([*names, *([f"{more} more"] if more > 0 else [])])


def _own_disk(health: Mapping[str, Any]) -> Iterator[Check]:
    """What only the agent's own disk has, and what its restore could not read. No check of the disk
    if the segments are where all agents see them."""
    upload = health.get("upload")
    if upload:
        summary = (
            f"{upload['bytes']:,} bytes are on its own disk alone, for {upload['seconds']:.0f} s"
        )
        if upload["error"]:
            text = f"{summary}; {upload['error']}"
            yield Check("agent's uploads", WARNING, text, "the agent tries again; nothing is lost")
        else:
            yield Check("agent's uploads", OK, summary)
    for node, why in (health.get("read_from_copies") or {}).items():
        yield Check(
            "agent's restore",
            WARNING,
            f"node {node!r} cannot be read, and other logs have its acknowledged changes: {why}",
            "start its agent, with its disk or an empty one: docs/how-to/local-disks.md",
        )
    for node, why in (health.get("left_out") or {}).items():
        yield Check(
            "agent's restore",
            PROBLEM,
            f"entries of node {node!r} are left out: {why}",
            "start the agent on the machine with that disk: its entries then count again; if the "
            "disk is lost: docs/how-to/local-disks.md",
        )


def _metrics(health: Mapping[str, Any]) -> Iterator[Check]:
    """Where an agent serves its metrics; nothing if it was not asked to."""
    address, thread = health.get("http_address"), health.get("threads", {}).get("imap-wal-http", {})
    if thread.get("error"):
        yield Check(
            "agent's metrics",
            WARNING,
            str(thread["error"]),
            "the agent works without them, and tries again; `http_address` in its configuration",
        )
    elif address:
        yield Check("agent's metrics", OK, f"http://{address}/metrics, /livez and /readyz")
