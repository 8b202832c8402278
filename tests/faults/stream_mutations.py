"""Deliberate defects in streams."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_PROCESSES = "tests/stream/test_processes.py"
_SHARES = "tests/stream/test_shares.py"
_SERVED = "imap_wal/stream/served.py"
_PARTITION = "imap_wal/stream/partition.py"
_READING = "imap_wal/stream/reading.py"
_SUBMIT, _CONSUMERS = "tests/stream/test_submit.py", "tests/stream/test_consumers.py"
_COMPATIBLE = f"{_SUBMIT}::test_which_locks_are_compatible"
_PROPERTY = "tests/stream/test_locks.py::test_an_estimate_never_names_an_older_transaction"
_NETWORK = "tests/stream/test_network.py"

OF_STREAMS = (
    Mutation(
        "of two transactions in one commit, both are appended",
        _PARTITION,
        "                opened.demand_seen(checked, seen.id)\n",
        "",
        f"{_SUBMIT}::test_two_that_share_a_commit_conflict",
    ),
    Mutation(
        "a lock that is only read is not checked",
        _PARTITION,
        "for name in (*locks.write, *locks.read)]",
        "for name in locks.write]",
        f"{_COMPATIBLE}[read-write]",
    ),
    Mutation(
        "an append does not count as written",
        _PARTITION,
        "for name in dict.fromkeys((*locks.write, *locks.append))",
        "for name in locks.write",
        f"{_COMPATIBLE}[read-append]",
    ),
    Mutation(
        "an open does not load the locks",
        _READING,
        "            locks.write(row[KEY], id)\n",
        "            pass\n",
        f"{_COMPATIBLE}[write-write]",
    ),
    Mutation(
        "a takeover forgets the requests",
        _READING,
        "            requests.note(str(name_in(row[KEY])), Known(id, row[EXPIRES_AT_MS]))\n",
        "            pass\n",
        f"{_SUBMIT}::test_a_request_counts_once",
    ),
    Mutation(
        "a transaction without locks leaves no id",
        _PARTITION,
        "        ] or [key_of(self.number, ANY_LOCK)]\n",
        "        ]\n",
        f"{_SUBMIT}::test_ids_are_dense_in_each_partition_over_reopens",
    ),
    Mutation(
        "a log that failed is not opened again",
        _PARTITION,
        "            if opened.is_stale or failure is not None:\n",
        "            if False:\n",
        f"{_SUBMIT}::test_a_request_survives_a_storage_that_fails[after-sync]",
    ),
    Mutation(
        "what a prune removed is not read from the snapshot",
        _READING,
        "            if reader.looks > looks:  # files may have been removed since\n",
        "            if False:\n",
        f"{_SUBMIT}::test_transactions_are_read_after_a_rewrite_and_a_prune[all maps]",
    ),
    Mutation(
        "a reader passes over what is gone",
        _READING,
        "            if id > last + 1:\n                raise",
        "            if False:\n                raise",
        f"{_SUBMIT}::test_transactions_that_are_gone_are_named",
    ),
    Mutation(
        "an estimate names an older transaction",
        "imap_wal/stream/locks.py",
        "            if self._slots[place] < id:\n",
        "            if self._slots[place] == 0:\n",
        _PROPERTY,
    ),
    Mutation(
        "a mark is stored before the change",
        "imap_wal/stream/sql_marks.py",
        "            self._replace(connection, consumer, before, before)\n            for record",
        "            self._replace(connection, consumer, before, records[-1].mark)\n"
        "            connection.commit()\n"
        "            for record",
        f"{_CONSUMERS}::test_a_function_that_fails_leaves_no_change[sql]",
    ),
    Mutation(
        "two processes apply one transaction",
        "imap_wal/stream/marks.py",
        "    if present.id != before.id:\n",
        "    if False:\n",
        f"{_CONSUMERS}::test_another_process_that_applies_too_is_noticed[map]",
    ),
    Mutation(
        "a transaction that failed is passed over",
        "imap_wal/stream/consumer.py",
        "elif self._on_error is None or not self._on_error(record, failed.error):\n",
        "elif False:\n",
        f"{_CONSUMERS}::test_a_transaction_that_cannot_be_applied_stops_the_consumer",
    ),
    Mutation(
        "a submit without a name is sent again",
        "imap_wal/workers/client.py",
        "                if once and sent:\n",
        "                if False:\n",
        f"{_PROCESSES}::test_without_a_request_a_lost_answer_is_unknown",
    ),
    Mutation(
        "a process continues on a stream that lost what it acknowledged to it",
        _SERVED,
        "                if not partition.has(mark):\n",
        "                if False:\n",
        f"{_PROCESSES}::test_a_log_that_lost_acknowledged_transactions_is_noticed",
    ),
    Mutation(
        "the next batch of a read begins where the last one did",
        _SERVED,
        "            self._reads[end] = now, read\n",
        "            self._reads[after] = now, read\n",
        f"{_PROCESSES}::test_long_reads_have_each_transaction_once",
    ),
    Mutation(
        "a transaction of another process may be in a wrong partition",
        _PARTITION,
        "        if partition_of(stored.header, partitions) != self.number:\n",
        "        if False:\n",
        f"{_PROCESSES}::test_a_transaction_of_another_partition_is_refused",
    ),
    Mutation(
        "an error of the process that serves has no attributes",
        "imap_wal/workers/messages.py",
        "    vars(made).update(attributes or {})\n",
        "",
        f"{_PROCESSES}::test_errors_are_those_of_the_process_that_serves",
    ),
    Mutation(
        "a partition is given away while its process still applies it",
        "imap_wal/stream/shares.py",
        "                if number not in applied:\n",
        "                if True:\n",
        f"{_SHARES}::test_each_partition_has_one_process_in_the_end",
    ),
    Mutation(
        "a process that has died keeps its partitions",
        "imap_wal/stream/shares.py",
        "                if now - seen >= LEASE_S:\n",
        "                if False:\n",
        f"{_SHARES}::test_each_partition_has_one_process_in_the_end",
    ),
    Mutation(
        "two processes cannot both create the table of marks",
        "imap_wal/stream/sql_marks.py",
        "            if not sql.inspect(engine).has_table(table):\n",
        "            if True:\n",
        f"{_CONSUMERS}::test_several_processes_create_the_table_of_marks",
    ),
    Mutation(
        "the time of an open counts as that of the request",
        "imap_wal/workers/client.py",
        "                end += elected.seconds\n",
        "                pass\n",
        f"{_PROCESSES}::test_a_slow_open_takes_no_time_of_a_request",
    ),
    Mutation(
        "a request that could not be sent counts as sent",
        "imap_wal/workers/client.py",
        "                send(connection, request, self._largest)\n                sent = True\n",
        "                sent = True\n                send(connection, request, self._largest)\n",
        f"{_PROCESSES}::test_a_request_on_a_broken_idle_connection_is_repeated",
    ),
    Mutation(
        "a stream that was closed is served by a late request",
        "imap_wal/workers/election.py",
        "        with self._mutex:  # a request of another thread may just be opening the log\n"
        "            server = self.server\n",
        "        server = self.server\n",
        f"{_PROCESSES}::test_a_closed_stream_serves_no_more",
    ),
    Mutation(
        "an epoch that the log forgot is another history",
        "imap_wal/write/node_log.py",
        "        if position.epoch < min((epoch.number for epoch in self._epochs), default=0):\n",
        "        if False:\n",
        f"{_PROCESSES}::test_a_mark_of_a_forgotten_epoch_is_no_older_copy",
    ),
    Mutation(
        "a mark without a position replaces one with it",
        _SERVED,
        "(mark.id >= former.id and (mark.position or not former.position))",
        "mark.id >= former.id",
        f"{_PROCESSES}::test_an_older_copy_is_noticed_after_a_repeated_request",
    ),
    Mutation(
        "a stream with another number of partitions is taken for the same",
        _SERVED,
        "            if count and count != len(self._partitions):\n",
        "            if False:\n",
        f"{_PROCESSES}::test_another_number_of_partitions_means_another_log",
    ),
    Mutation(
        "a close waits for a server that does not answer",
        _SERVED,
        "        self._client.end()\n",
        "        pass\n",
        f"{_PROCESSES}::test_a_close_does_not_wait_for_a_server",
    ),
    Mutation(
        "a server without room closes connections without a reason",
        "imap_wal/workers/server.py",
        "                    self._refuse(connection)  #",
        "                    pass  #",
        f"{_PROCESSES}::test_a_server_without_room_says_so",
    ),
    Mutation(
        "a thread that cannot start ends the server",
        "imap_wal/workers/server.py",
        "        except RuntimeError as error:  # the system has no more threads\n",
        "        except KeyError as error:\n",
        f"{_PROCESSES}::test_a_server_survives_a_thread_that_cannot_start",
    ),
    Mutation(
        "a server admits every certificate",
        "imap_wal/workers/network.py",
        "        context.verify_mode = ssl.CERT_REQUIRED\n",
        "        context.verify_mode = ssl.CERT_REQUIRED if is_client else ssl.CERT_NONE\n",
        f"{_NETWORK}::test_a_client_of_another_authority_is_refused",
    ),
    Mutation(
        "a server of another name is trusted",
        "imap_wal/workers/network.py",
        "        context.minimum_version = ssl.TLSVersion.TLSv1_3\n",
        "        context.minimum_version = ssl.TLSVersion.TLSv1_3\n"
        "        context.check_hostname = False\n",
        f"{_NETWORK}::test_a_server_of_another_name_is_refused",
    ),
    Mutation(
        "an address of other machines needs no certificates",
        "imap_wal/workers/network.py",
        "not all(is_loopback_host(host)",
        "not any(is_loopback_host(host)",
        f"{_NETWORK}::test_a_wrong_address_is_named",
    ),
    Mutation(
        "silent connections keep others out",
        "imap_wal/workers/server.py",
        "if not greeted), None)",
        "if False), None)",
        f"{_NETWORK}::test_silent_connections_make_room",
    ),
    Mutation(
        "connections that have said hello make room",
        "imap_wal/workers/server.py",
        "            self._connections[connection] = True\n",
        "            pass\n",
        f"{_NETWORK}::test_silent_connections_make_room",
    ),
    Mutation(
        "a stop ends the encryption of a connection",
        "imap_wal/workers/server.py",
        "        socket.socket.shutdown(connection, how)\n",
        "        connection.shutdown(how)\n",
        f"{_NETWORK}::test_an_answer_under_way_at_a_stop_is_encrypted",
    ),
    Mutation(
        "a task misses a transaction between two batches",
        "imap_wal/stream/asyncio_stream.py",
        "lambda: [*islice(records, READ_RECORDS)]",
        "lambda: [record for record, _ in zip(records, range(READ_RECORDS))]",
        "tests/stream/test_asyncio.py::test_tasks_submit_and_read",
    ),
    Mutation(
        "a forked child waits for threads that it does not have",
        "imap_wal/stream/asyncio_stream.py",
        "        self._openness.check()\n",
        "        pass\n",
        "tests/stream/test_asyncio.py::test_a_forked_child_is_refused",
    ),
    Mutation(
        "a close waits for a free thread",
        "imap_wal/stream/asyncio_stream.py",
        "await asyncio.to_thread(self._stream.close)",
        "await self._loop.run_in_executor(self._threads, self._stream.close)",
        "tests/stream/test_asyncio.py::test_a_close_does_not_wait_for_a_thread",
    ),
    Mutation(
        "a client that one server sends away asks no other",
        "imap_wal/workers/client.py",
        "if unfit < UNFIT_MAX and self.endpoint.skip():",
        "if False:",
        f"{_NETWORK}::test_a_server_that_has_lost_the_log_fences_no_client",
    ),
    Mutation(
        "a server answers with an old lease",
        "imap_wal/stream/served.py",
        ">= DEFAULT_LEASE_MS / 1000:",
        ">= DEFAULT_LEASE_MS:",
        f"{_NETWORK}::test_a_server_whose_lease_is_old_answers_nothing",
    ),
    Mutation(
        "a server that has lost the log says that the log was replaced",
        "imap_wal/stream/served.py",
        "                    partition.prove()  #",
        "                    pass  #",
        f"{_NETWORK}::test_a_server_proves_that_it_has_the_log",
    ),
    Mutation(
        "a refusal after a change was sent says that nothing was changed",
        "imap_wal/workers/client.py",
        "                if sent and changes:\n"
        '                    text = f"the change may be in the log: {error.cause}"\n',
        "                if False:\n"
        '                    text = f"the change may be in the log: {error.cause}"\n',
        f"{_NETWORK}::test_a_refusal_after_a_change_was_sent_is_unknown",
    ),
    Mutation(
        "the end of a share is told to a process that has ended",
        "imap_wal/workers/client.py",
        "told = line.server == self._server",
        "told = True",
        f"{_NETWORK}::test_a_message_goes_to_the_process_that_serves_now",
    ),
    Mutation(
        "a storage that fails ends a server that waits",
        "rewrite_cli/commands/service/serve.py",
        "except (WriterLocked, LostRace, Fenced, StorageUnavailable) as error:",
        "except WriterLocked as error:",
        f"{_NETWORK}::test_a_server_that_waits_survives_a_storage_that_fails",
    ),
    Mutation(
        "the first address takes the time of the others",
        "imap_wal/workers/network.py",
        "min(left / (len(targets) - index), ADDRESS_S)",
        "min(left, ADDRESS_S)",
        f"{_NETWORK}::test_the_next_address_is_tried",
    ),
    Mutation(
        "any user may read the key of a certificate",
        "imap_wal/workers/network.py",
        "            read_secret_file(self.key)\n",
        "            pass\n",
        f"{_NETWORK}::test_a_key_that_others_can_read_is_refused",
    ),
)
