"""The WAL agent: one process beside each Hazelcast member, the only writer of its node's log.

    config      AgentConfig, from a TOML file
    transport   the ROUTER socket
    bounds      limits on connections, requests and bytes
    door        counts connections, and closes those above the limit
    lane        the queue of requests that take long
    unsent      answers to reads that have not left the agent
    sessions    the connected peers, their incarnations and sessions, and what they sent already
    open_log    the node's log while it is open: sessions and `LogWriter`
    mender      opens the log again after a failure, on its own thread
    reads       keys, load, schemas: its own thread with a MaterializedView
    listings    running key listings: cursors, pages, totals
    server      the loop: receive all that waits, commit once, answer; health, statistics, stop

`docs/protocol.md` describes the messages.
"""

from storage_backends.extras import needs

with needs("agent"):
    import structlog  # noqa: F401  # most modules of the agent import it
