"""What one process has open, for several processes of a machine: one of them serves it over a Unix
socket.

    connect ─▶ a socket for each thread that waits ─▶ a thread of the server for each socket
               change, with the number of the request ─▶ one commit for all that wait
    the server dies ─▶ the first process that gets the lock beside the socket opens the log and
                       serves; the others send their requests again: changes of maps, and submits
                       with a name, count once; a submit without a name is not sent again

For maps and for streams: `endpoint` the socket and the lock beside it, `messages` what is sent,
`server`, `client`, `election`. For maps: `map_messages`, `map_server`, `map_client`, `requests` why
a request that is sent twice counts once, `store` with `connect`, `asyncio_store` with `aconnect`.
"""
