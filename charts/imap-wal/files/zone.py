"""Writes the zone of this pod's node into a file of arguments for java: zone.py FILE"""

import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

FOLDER = Path(os.environ.get("API_TOKEN", "/var/run/secrets/kubernetes.io/serviceaccount"))
LABEL = "topology.kubernetes.io/zone"
node = os.environ["NODE_NAME"]
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{node}"
request = urllib.request.Request(
    url, headers={"Authorization": f"Bearer {(FOLDER / 'token').read_text().strip()}"}
)
try:
    context = ssl.create_default_context(cafile=str(FOLDER / "ca.crt"))
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        labels = json.load(answer)["metadata"].get("labels", {})
except urllib.error.HTTPError as error:
    sys.exit(
        f"the API of Kubernetes answered {error.code} for node {node}: the service account needs a "
        "ClusterRole that may get nodes (the chart makes one with cluster.partitionGroup)"
    )
except OSError as error:
    sys.exit(f"the API of Kubernetes at {url} cannot be reached: {error}")
zone = labels.get(LABEL, "")
if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", zone):
    sys.exit(
        f"node {node} has no label {LABEL} with the name of a zone, but {zone!r}: set the label, "
        "or cluster.partitionGroup to ''"
    )
Path(sys.argv[1]).write_text(f"-Dimap-wal.zone={zone}\n")
print(f"node {node} is in zone {zone}")
