"""The WAL agent: one process beside each Hazelcast member, the only writer of its node's log.

    config      AgentConfig, from a TOML file
    transport   the ROUTER socket, and the only pyzmq
    bounds      how much is taken from all who connect
    door        counts connections, refuses those that are too many
    lane        requests that take long wait here
    unsent      answers to reads that have not left the agent
    sessions    who is connected, which incarnation and session they have, what they sent already
    open_log    the node's log as it is open now: sessions and `LogWriter`
    mender      opens the log again after a failure, on a thread of its own
    reads       keys, load, schemas: a thread of its own with a MaterializedView
    listings    key listings under way: cursors, pages, totals
    server      the loop: receive all that waits, one commit, answer; health, statistics, stop

`docs/protocol.md` is the wire.
"""

from storage_backends.extras import needs

with needs("agent"):
    import structlog  # noqa: F401  # most modules of the agent import it
