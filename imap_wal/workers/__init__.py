"""One store for several processes of a machine: one of them has the log open and serves the maps
over a Unix socket.

    connect ─▶ a socket for each thread that waits ─▶ a thread of the server for each socket
               change, with the number of the request ─▶ one commit for all that wait
    the server dies ─▶ the first process that gets the lock beside the socket opens the log and
                       serves; the others send their requests again, each of which counts once

`endpoint` the socket and the lock beside it, `messages` what is sent, `server`, `requests` why one
that is sent twice counts once, `client` with the maps of the other processes, `store` with
`connect` and the election, `asyncio_store` with `aconnect`.
"""
