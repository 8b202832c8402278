"""Deliberate defects of the script that forgets nodes after a scale-down. See
`tests.faults.mutations`."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_SCRIPT = "charts/imap-wal/files/forget-removed.py"
_TESTS = "tests/chart/test_scripts.py"

OF_CHART = (
    Mutation(
        "a scale-down does not wait for agents that run",
        _SCRIPT,
        'while set(removed.values()) - {"closed"}:',
        "while False:",
        f"{_TESTS}::test_a_node_whose_agent_runs_is_not_forgotten",
    ),
    Mutation(
        "a scale-down forgets the node of a pod that is back",
        _SCRIPT,
        'if still.get(node) == "closed":',
        "if True:",
        f"{_TESTS}::test_a_pod_that_is_back_keeps_its_node",
    ),
    Mutation(
        "a scale-down forgets a node whose entries no snapshot has",
        _SCRIPT,
        'imap_wal("forget-node", "--node", node, "--yes")',
        'imap_wal("forget-node", "--node", node, "--yes", "--lose")',
        f"{_TESTS}::test_a_change_after_the_rewrite_refuses_the_node",
    ),
    Mutation(
        "a scale-down forgets the node of a pod that stays",
        _SCRIPT,
        "and int(pod[1]) >= int(replicas)",
        "and int(pod[1]) + 1 >= int(replicas)",
        f"{_TESTS}::test_a_removed_node_is_forgotten_when_all_is_covered",
    ),
)
