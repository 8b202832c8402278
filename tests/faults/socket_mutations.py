"""Deliberate defects in the Unix socket of an agent."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_LOCAL = "imap_wal/agent/transport/local.py"
_TESTS = "tests/agent/test_local_socket.py"

OF_SOCKETS = (
    Mutation(
        "the beginning of a frame is lost",
        _LOCAL,
        "connection.rest + data if connection.rest else data",
        "data",
        f"{_TESTS}::test_messages_arrive_whole_however_they_are_cut",
    ),
    Mutation(
        "what the system does not take of an answer is lost",
        _LOCAL,
        "                connection.unsent[0] = data[sent:]\n",
        "                connection.unsent.popleft()\n",
        f"{_TESTS}::test_answers_leave_whole_and_in_order",
    ),
    Mutation(
        "a later answer overtakes the rest of an earlier one",
        _LOCAL,
        "        if not connection.unsent:\n            try:",
        "        if True:\n            try:",
        f"{_TESTS}::test_answers_leave_whole_and_in_order",
    ),
    Mutation(
        "a frame's memory is taken as its size says",
        _LOCAL,
        "min(size, BODY_BYTES)",
        "min(size, 64 * BODY_BYTES)",
        f"{_TESTS}::test_the_size_in_a_frame_takes_no_memory",
    ),
    Mutation(
        "no thread stands in for a busy loop",
        _LOCAL,
        "        if not self._waits and ",
        "        if False and ",
        f"{_TESTS}::test_a_busy_agent_admits_and_answers_pings",
    ),
    Mutation(
        "all messages are read while the loop is busy",
        _LOCAL,
        "self._serve(self._epoll.poll(0), AHEAD_MAX)",
        "self._serve(self._epoll.poll(0), 2**62)",
        f"{_TESTS}::test_a_busy_agent_admits_and_answers_pings",
    ),
    Mutation(
        "an agent without a free descriptor accepts nothing any more",
        _LOCAL,
        "            self._epoll.register(self._listens_at, select.EPOLLIN)\n\n    def _accept",
        "            pass\n\n    def _accept",
        f"{_TESTS}::test_connections_wait_while_no_descriptor_is_free",
    ),
    Mutation(
        "a handshake may take any time",
        _LOCAL,
        "        if self._shaking:\n            self._end_unfinished()\n",
        "",
        f"{_TESTS}::test_an_unfinished_handshake_ends_in_time",
    ),
    Mutation(
        "a peer with keys is admitted as one without",
        "imap_wal/agent/transport/zmtp.py",
        "    if greeting[12:32] != _NULL:\n",
        "    if False:\n",
        f"{_TESTS}::test_what_is_not_the_protocol_ends_only_its_connection",
    ),
)
