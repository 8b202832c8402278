"""Deliberate defects in sorted maps, watches and queues."""

from __future__ import annotations

from tests.faults.mutation import Mutation

OF_READING = (
    Mutation(
        "a sorted map accepts a key that cannot be compared",
        "imap_wal/embedded/durable_map.py",
        "                self._state.order.demand(key)\n",
        "                pass\n",
        "tests/durable/test_sorted_maps.py::test_a_key_without_a_place_is_refused",
    ),
    Mutation(
        "a key that expires stays in the order",
        "imap_wal/embedded/changes.py",
        "                self.order.touch((key,))\n",
        "                pass\n",
        "tests/durable/test_sorted_maps.py::test_keys_that_expire_leave_the_order",
    ),
    Mutation(
        "a watch continues with old values of a later moment",
        "imap_wal/embedded/watch.py",
        "            if scan.node == node and changes.last > place",
        "            if False",
        "tests/durable/test_watch.py::test_a_watch_continues_after_a_restart",
    ),
    Mutation(
        "a watch takes the present values for former ones",
        "imap_wal/embedded/watch.py",
        "    if past.unknown:\n",
        "    if False:\n",
        "tests/durable/test_watch.py::test_a_watch_without_history_says_so",
    ),
    Mutation(
        "a stop within a clear loses the rest of it",
        "imap_wal/embedded/watch.py",
        "                place = self._read_to if left else position\n",
        "                place = position\n",
        "tests/durable/test_watch.py::test_a_clear_deletes_each_key",
    ),
    Mutation(
        "an old lease acknowledges the job of another taker",
        "imap_wal/embedded/job_queue.py",
        "            key = leased.serializer.dump_key((until, number, attempt + 1, token))\n",
        "            key = leased.serializer.dump_key((2**60, number, 1, 1))\n",
        "tests/durable/test_job_queue.py::test_a_job_given_back_is_the_next_one",
    ),
    Mutation(
        "a job whose lease has ended is not given again",
        "imap_wal/embedded/job_queue.py",
        "                if ends > now:\n",
        "                if True:\n",
        "tests/durable/test_job_queue.py::test_a_job_comes_back_after_its_lease",
    ),
    Mutation(
        "a restart uses the number of a job again",
        "imap_wal/embedded/job_queue.py",
        "        last = max(used, default=0)\n",
        "        last = 0\n",
        "tests/durable/test_job_queue.py::test_a_queue_continues_after_a_restart",
    ),
    Mutation(
        "the progress of a query has the end of its batch as the end of the log",
        "pyspark_imap_wal/stream.py",
        "self._newest = self._end(last, state) if size or self._target else end_offset",
        "self._newest = end_offset",
        "tests/spark/test_stream.py::test_progress_has_the_end_of_the_log",
    ),
    Mutation(
        "what a reader has read of a segment counts as unread",
        "imap_wal/inspect/lags.py",
        "        since = position.frame if segment.name == position[:2] else 0\n",
        "        since = 0\n",
        "tests/spark/test_metadata_tables.py::test_readers_have_what_they_have_not_read",
    ),
    Mutation(
        "an idle time counts as a stall of a reader",
        "imap_wal/agent/membership/reader_stalls.py",
        "    began_ms = 0 if former is None else former.since_ms or now_ms\n",
        "    began_ms = 0 if former is None else former.since_ms\n",
        "tests/agent/test_reader_stalls.py::test_a_stall_begins_with_the_first_unread_change",
    ),
    Mutation(
        "a last batch that Spark has not reported is a stall",
        "imap_wal/agent/membership/reader_stalls.py",
        "stalls = has_more and grew_ms > lag.updated_ms",
        "stalls = has_more",
        "tests/agent/test_reader_stalls.py::test_a_last_batch_that_is_not_reported_is_no_stall",
    ),
    Mutation(
        "bytes_per_batch counts rows",
        "pyspark_imap_wal/offsets.py",
        "size = frame.end - frame.offset if limit.in_bytes else rows",
        "size = rows",
        "tests/spark/test_stream.py::test_a_batch_has_about_as_many_bytes_as_it_may",
    ),
)
