"""The WAL agent: one process beside each Hazelcast member, the only writer of its node's log.

    config      AgentConfig, from a TOML file
    requests    the shapes of all requests
    bounds      how much is taken from all who connect; lane, room, lines count it
    access/     who may connect, and what they may do
    transport/  the ROUTER socket, and the only pyzmq
    membership/ which cluster and which members may write: sessions, claims, signs of life
    reads/      keys, load, schemas: a thread of its own with a MaterializedView
    open_log    the node's log as it is open now: sessions and `LogWriter`
    mender      opens the log again after a failure, on a thread of its own
    payloads    the payloads of requests with changes and schemas, checked
    handler     one request: its answer, or its place in the ring; hellos that wait for a look
    server      the loop: receive all that waits, one commit, answer; health, statistics, stop

`docs/protocol.md` is the wire.
"""

from storage_backends.extras import needs

with needs("agent"):
    import structlog  # noqa: F401  # most modules of the agent import it
