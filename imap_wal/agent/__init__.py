"""The WAL agent: one process beside each Hazelcast member, the only writer of its node's log.

    config      AgentConfig, from a TOML file
    transport   the ROUTER socket, and the only pyzmq
    sessions    who is connected, which incarnation and session they have, what they sent already
    reads       keys, load, schemas: a thread of its own with a LiveView
    server      the loop: receive all that waits, one commit, answer; health, statistics, stop

`docs/protocol.md` is the wire.
"""
