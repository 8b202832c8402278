"""After a scale-down: forgets the nodes of pods that the StatefulSet does not have any more.

    forget-removed.py URL CLUSTER STATEFULSET REPLICAS SECONDS [--namespace NAME] [--wal-dir URL]
                      [--partial]

It waits until their agents have stopped, and rewrites the log. `imap-wal forget-node` then refuses
a node with an entry that no snapshot has. A node whose agent did not stop cleanly is not forgotten.
"""

import json
import re
import subprocess
import sys
import time

url, cluster, name, replicas, seconds, *options = sys.argv[1:]
partial = "--partial" in options
places = [option for option in options if option != "--partial"]
OF_POD = re.compile(rf"{re.escape(name)}-(\d+)")


def imap_wal(command: str, *more: str) -> str:
    """What the command prints. While another process has the lock, it is tried again."""
    words = ["imap-wal", command, url, "--cluster", cluster, *places, *more]
    while True:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        if not done.returncode:
            return done.stdout
        if done.returncode != 4:
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}")
        time.sleep(2)


def states_of_removed() -> dict[str, str]:
    """By the name of the node."""
    nodes = json.loads(imap_wal("ls", "--output", "json"))["nodes"]
    return {
        node["node"]: node["state"]
        for node in nodes
        if node["state"] != "forgotten"
        and (pod := OF_POD.fullmatch(node["node"]))
        and int(pod[1]) >= int(replicas)
    }


removed = states_of_removed()
deadline = time.monotonic() + int(seconds)
while set(removed.values()) - {"closed"}:
    if time.monotonic() > deadline:
        open_ones = {node: state for node, state in removed.items() if state != "closed"}
        sys.exit(
            "nothing was forgotten: agents have not stopped cleanly, and may have entries that no "
            f"other place has: {open_ones}. Set cluster.replicas to the former number, so that "
            "they start, and then to the new one again; or see docs/operations.md, A node that "
            "will not return"
        )
    time.sleep(2)
    removed = states_of_removed()
if not removed:
    print(f"no node of a pod with a number from {replicas} on")
    sys.exit()
imap_wal("rewrite", *(["--partial"] if partial else []))
still = states_of_removed()
for node in removed:
    if still.get(node) == "closed":  # otherwise its pod is back
        print(imap_wal("forget-node", "--node", node, "--yes"))
