"""Deliberate defects in the adapters for other libraries."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_SESSIONS = "tests/adapters/test_sessions.py"
_MEMOIZE = "tests/adapters/test_memoize.py"

OF_ADAPTERS = (
    Mutation(
        "a request that ends after a logout brings the session back",
        "imap_wal/adapters/starlette.py",
        "return DELETE if stored is None else session.merged(stored)",
        "return session.merged(stored)",
        f"{_SESSIONS}::test_requests_at_the_same_time_do_not_undo_each_other",
    ),
    Mutation(
        "a login leaves the session its former id",
        "imap_wal/adapters/starlette.py",
        "if session.takes_new_id or not id:",
        "if not id:",
        f"{_SESSIONS}::test_a_login_gives_the_session_a_new_id",
    ),
    Mutation(
        "the key of a session is the id of its cookie",
        "imap_wal/adapters/starlette.py",
        'return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()',
        "return id",
        f"{_SESSIONS}::test_the_log_never_has_the_id_of_the_cookie",
    ),
    Mutation(
        "an enum has the key of its value",
        "imap_wal/adapters/memoize.py",
        "            _demand_plain(arguments)\n",
        "",
        f"{_MEMOIZE}::test_arguments_of_other_classes_are_refused",
    ),
    Mutation(
        "threads that wait for a result compute it again",
        "imap_wal/adapters/memoize.py",
        "with locks.of(key) as lock, lock:",
        "if True:",
        f"{_MEMOIZE}::test_threads_with_the_same_arguments_compute_once",
    ),
)
