"""Which tests one worker of pytest-xdist runs together, and which begin first.

Tests that share a Spark session, a server, a site or a cluster run in one worker. Of the tests with
several members, at most two run at a time: more of them would wait for each other. pytest-xdist
begins with the largest groups, which also take longest; each other test goes to the next free
worker.
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling

HISTORY = ("test_operations", "test_restore", "test_eviction", "test_values")
"""They share the cluster of `tests/cluster/history.py`."""

TOGETHER = ("test_site", "test_s3", "test_hdfs", "test_traces", "test_names_in_code")
"""Files whose tests share what takes long to make: a server, a site, the syntax of all modules."""


class Groups(LoadScopeScheduling):
    """The name of a test's file decides its group. The marker `xdist_group` cannot be used:
    pytest-xdist 3.8 writes the group into the node id, which pytest 9.2 does not allow."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The name of the group of a test; its own id, if it needs no other test beside it."""
    file = nodeid.partition("::")[0]
    folder, _, module = file.removeprefix("tests/").removesuffix(".py").rpartition("/")
    if folder == "spark":
        return "spark"
    if folder == "cluster" and module in HISTORY:
        return "members of the history"
    if folder in ("cluster", "nemesis", "soak") or module in (
        "test_member_over_tcp",
        "test_unusable_entries",
        "test_member_beans",
    ):
        return "members"
    if module in TOGETHER or folder == "chart":
        return file
    return nodeid
