"""The WAL agent: one process beside each Hazelcast member, the only writer of its node's log.

    config      AgentConfig, from a TOML file
    requests    the shapes of all requests
    bounds      limits on connections, requests and bytes; `lane`, `room` and `lines` keep them
    access/     who may connect, and what they may do
    transport/  the ROUTER socket, connections, the endpoint
    membership/ the connected peers, and which cluster and members may write: sessions, claims,
                signs of life
    reads/      keys, listings, load, schemas, and when the logs are merged: their own thread with a
                MaterializedView
    open_log    the node's log while it is open: sessions and `LogWriter`
    mender      opens the log again after a failure, on its own thread
    payloads    checks the payloads of changes and schemas
    monitoring/ metrics and health over HTTP, on their own thread
    handler     answers one request, or puts it in the ring; keeps hellos that wait for a look
    server      the loop: receive all that waits, commit once, answer; health, statistics, stop

`docs/protocol.md` describes the messages.
"""

from storage_backends.extras import needs

with needs("agent"):
    import structlog  # noqa: F401  # most modules of the agent import it
