"""Deliberate defects in stores of several processes, and in the connections of an agent."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_STATES = "tests/durable/test_read_only.py::test_a_reader_shows_only_states_that_the_log_had[1]"
_TASKS = "tests/durable/test_async_workers.py"
_COPIES = "tests/durable/test_workers_of_copies.py"
_ONCE = "tests/durable/test_workers.py::test_a_request_that_is_sent_again_counts_once"

OF_PROCESSES = (
    Mutation(
        "an open under another node name fences a running writer",
        "imap_wal/embedded/opening.py",
        "                demand_no_other_writer(log_context)\n",
        "                pass\n",
        "tests/durable/test_open.py::test_another_node_name_does_not_fence_a_running_writer"
        "[file://{}/maps]",
    ),
    Mutation(
        "a lease is not taken for a lock",
        "imap_wal/inspect/running_writer.py",
        "    if not store.exists(path) and not store.list(path):",
        "    if not store.exists(path):",
        "tests/durable/test_open.py::test_another_node_name_does_not_fence_a_running_writer"
        "[objects+file://{}/maps]",
    ),
    Mutation(
        "a reader loads its maps again while it shows them",
        "imap_wal/embedded/read_only.py",
        "                with self._maps.replaced(None):\n",
        "                if True:\n",
        _STATES,
    ),
    Mutation(
        "a reader applies an archive to the maps that it shows",
        "imap_wal/embedded/loading.py",
        "        if self.following and scan.kind != SEGMENT:\n",
        "        if False:\n",
        "tests/durable/test_read_only.py::test_archives_are_not_shown_one_after_the_other",
    ),
    Mutation(
        "a request that is sent again is made again",
        "imap_wal/workers/requests.py",
        "            if last.number == number:\n",
        "            if last.number == -number:\n",
        _ONCE,
    ),
    Mutation(
        "a change is committed without its request",
        "imap_wal/workers/requests.py",
        "(self._durable(self._place), results), [*changes, record]\n",
        "(self._durable(self._place), results), changes\n",
        _ONCE,
    ),
    Mutation(
        "a connection that comes back has a new client",
        "imap_wal/workers/client.py",
        "            except OSError as error:\n                failure = error\n",
        "            except OSError as error:\n                failure = error\n"
        "                line.client = self.randomness.token()\n",
        _ONCE,
    ),
    Mutation(
        "a process continues in a log that lost what it acknowledged to it",
        "imap_wal/workers/server.py",
        "        if lacks:\n",
        "        if False:\n",
        f"{_COPIES}::test_a_log_that_lost_acknowledged_changes_is_noticed[short]",
    ),
    Mutation(
        "the answer that a log was replaced is read only if it is short",
        "imap_wal/workers/client.py",
        "            kind, *fields = receive(connection, ANSWER_BYTES_MAX)\n",
        "            kind, *fields = receive(connection, 1024)\n",
        f"{_COPIES}::test_a_log_that_lost_acknowledged_changes_is_noticed[long]",
    ),
    Mutation(
        "a connection demands only what was acknowledged on itself",
        "imap_wal/workers/client.py",
        "self.kind, self.acknowledged()]\n",
        "self.kind, self.acknowledged() if self.acknowledged()[1] == line.client "
        "else [0, bytes(16), 0]]\n",
        f"{_COPIES}::test_a_change_of_another_connection_is_demanded_too",
    ),
    Mutation(
        "the answer that was read last counts as that of the newest change",
        "imap_wal/workers/map_client.py",
        "self._acknowledged = max(self._acknowledged, record)",
        "self._acknowledged = record",
        f"{_COPIES}::test_the_order_of_answers_is_not_that_of_changes",
    ),
    Mutation(
        "a change that a kill may lose is demanded from the next log",
        "imap_wal/workers/requests.py",
        "        return place if self._keeps_all else 0\n",
        "        return place\n",
        f"{_COPIES}::test_what_counts_is_the_durability_of_the_acknowledgement[async-always-False]",
    ),
    Mutation(
        "a record of a request expires",
        "imap_wal/workers/requests.py",
        "[_packed(number, self._place, results)])\n",
        "[_packed(number, self._place, results)], {0: self._changes.now_ms() + 86_400_000})\n",
        f"{_COPIES}::test_a_clock_that_jumps_is_no_older_copy",
    ),
    Mutation(
        "a record that was removed counts as lost",
        "imap_wal/workers/requests.py",
        "        return not is_there and self._get(FORGOTTEN).place < place\n",
        "        return not is_there\n",
        f"{_COPIES}::test_records_of_requests_are_bounded",
    ),
    Mutation(
        "a client that closes makes others forget what was acknowledged to them",
        "imap_wal/workers/requests.py",
        "WriteBatch(self._state, gone, [None] * len(gone))",
        "WriteBatch(self._state, [FORGOTTEN, *gone], [_packed(0, self._place, ()), "
        "*[None] * len(gone)])",
        f"{_COPIES}::test_close_removes_the_record_of_its_requests",
    ),
    Mutation(
        "an open keeps what it has read before a snapshot replaced it",
        "imap_wal/embedded/loading.py",
        "        if self.following or name in self._labels:\n",
        "        if self.following:\n",
        "tests/durable/test_read_only.py::test_a_compaction_during_an_open_brings_no_key_back",
    ),
    Mutation(
        "a reader of a log goes on in a forked child",
        "imap_wal/read/log_reader.py",
        'self._openness = Openness("reader")',
        'self._openness = type("", (), {"check_process": lambda self: None})()',
        "tests/durable/test_forked.py::test_every_method_raises_fenced_in_a_forked_child[log-always]",
    ),
    Mutation(
        "a change of a request does not see those before it",
        "imap_wal/workers/requests.py",
        "                    if index + 1 < len(steps):\n",
        "                    if False:\n",
        f"{_TASKS}::test_tasks_of_all_processes_share_commits",
    ),
    Mutation(
        "a change that is too large takes those of other tasks with it",
        "imap_wal/embedded/async_writer.py",
        "if isinstance(error, TooLarge) and len(futures) > 1:",
        "if False:",
        f"{_TASKS}::test_an_error_of_one_task_is_not_that_of_another",
    ),
    Mutation(
        "a hello that arrives before its connection is reported is not counted",
        "imap_wal/agent/transport/connection_limit.py",
        "            if connection is not former and not self._make_room(connection):\n"
        "                return False\n",
        "",
        "tests/agent/test_connection_limit.py::test_a_hello_above_the_limit_is_refused",
    ),
)
