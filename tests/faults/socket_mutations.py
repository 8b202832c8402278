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
        "                    connection.unsent[0] = data[sent:]\n",
        "                    connection.unsent.popleft()\n",
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
        "no thread helps a busy loop",
        _LOCAL,
        "        if not self._waits and ",
        "        if False and ",
        f"{_TESTS}::test_a_busy_agent_admits_and_answers_pings",
    ),
    Mutation(
        "all messages are read while the loop is busy",
        _LOCAL,
        "                    and connection.queued < AHEAD_MAX\n",
        "",
        f"{_TESTS}::test_a_busy_agent_admits_and_answers_pings",
    ),
    Mutation(
        "an agent without a free descriptor accepts nothing any more",
        _LOCAL,
        "                    self._epoll.register(self._listens_at, select.EPOLLIN)\n",
        "                    pass\n",
        f"{_TESTS}::test_connections_wait_while_no_descriptor_is_free",
    ),
    Mutation(
        "a handshake may take any time",
        _LOCAL,
        "                self._end_unfinished()\n",
        "                pass\n",
        f"{_TESTS}::test_an_unfinished_handshake_ends_in_time",
    ),
    Mutation(
        "a peer with keys is admitted as one without",
        "imap_wal/agent/transport/zmtp.py",
        "    if greeting[12:32] != _NULL:\n",
        "    if False:\n",
        f"{_TESTS}::test_what_is_not_the_protocol_ends_only_its_connection",
    ),
    Mutation(
        "the listening socket is given up twice",
        _LOCAL,
        "        if self._accept_at:\n            return  # an older event\n",
        "",
        f"{_TESTS}::test_connections_wait_while_no_descriptor_is_free",
    ),
    Mutation(
        "a connection ends before its last messages",
        _LOCAL,
        "        if not connection.queued:\n            self._gone.append",
        "        if True:\n            self._gone.append",
        f"{_TESTS}::test_the_last_messages_of_a_connection_come_before_its_end",
    ),
    Mutation(
        "the end of a connection with messages is not reported",
        _LOCAL,
        '                if not connection.queued and connection.state == "closed":\n',
        "                if False:\n",
        f"{_TESTS}::test_the_last_messages_of_a_connection_come_before_its_end",
    ),
    Mutation(
        "a failed answer ends what the peer has sent",
        _LOCAL,
        "        connection.unwritable = True\n        connection.unsent.clear()\n",
        "        self._end(connection)\n",
        f"{_TESTS}::test_messages_before_an_end_are_read_after_a_failed_answer",
    ),
    Mutation(
        "a loop that waits is not woken for a large request",
        _LOCAL,
        "            os.eventfd_write(self._wake, 1)\n",
        "            pass\n",
        f"{_TESTS}::test_a_loop_that_waits_gets_a_large_request",
    ),
    Mutation(
        "large answers wait for the loop",
        _LOCAL,
        "                if event & ~_IN:\n                    self._flush(connection)\n",
        "",
        f"{_TESTS}::test_a_large_answer_does_not_wait_for_the_loop",
    ),
    Mutation(
        "all that arrives is kept in memory",
        _LOCAL,
        "                    and not self._is_full()\n",
        "",
        f"{_TESTS}::test_messages_that_wait_take_bounded_memory",
    ),
    Mutation(
        "a message may have any number of frames",
        _LOCAL,
        "        if connection.frames > FRAMES_MAX:\n",
        "        if False:\n",
        f"{_TESTS}::test_a_message_of_many_frames_ends_its_connection",
    ),
    Mutation(
        "a loop wakes itself",
        _LOCAL,
        "        self._waits = False\n        self._serve(events)\n",
        "        self._serve(events)\n        self._waits = False\n",
        f"{_TESTS}::test_a_loop_does_not_wake_itself",
    ),
)
