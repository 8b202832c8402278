"""The alert rules and the dashboard name only metrics that exist, and each alert is in the
runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from imap_wal.agent.monitoring.metrics import METRICS
from imap_wal.agent.monitoring.pages import Exporter
from imap_wal.stream.monitoring import STREAM
from tests.monitoring.snapshots import OF_MEMBERS, consumer, snapshot, stream_snapshot
from tests.storage.services import debian_program

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "reference" / "imap-wal-alerts.yml"
DASHBOARD = DOCS / "reference" / "grafana-dashboard.json"
RUNBOOK = DOCS / "runbook.md"
CASES = [Path(__file__).parent / f"alert_cases{name}.yml" for name in ("", "_of_days")]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def samples() -> set[str]:
    """The names of all samples that agents, servers of streams and members export."""
    text = (Exporter(snapshot, METRICS).text() + of_a_stream()).decode()
    names = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    return names | OF_MEMBERS


def of_a_stream() -> bytes:
    return Exporter(lambda: stream_snapshot(consumer(0, 7, "one")), STREAM).text()


def named(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:imap_wal|process|io_imapwal)_\w+", expression))


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def promtool(*arguments: str | Path, text: bytes = b"") -> None:
    found = debian_program("promtool", "prometheus")
    if found is None:
        pytest.skip("promtool is not installed; the package `prometheus` has it")
    done = subprocess.run([found, *map(str, arguments)], input=text, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_alerts_name_only_metrics_that_are_exported() -> None:
    for alert in alerts():
        assert named(alert["expr"]) <= samples(), alert["alert"]


def test_each_alert_has_its_entry_in_the_runbook() -> None:
    """Each entry belongs to an alert, too."""
    entries = re.findall(r"^### (\w+)\n\n\*\*Meaning\*\*: ", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(alert["alert"] for alert in alerts())
    assert RUNBOOK.read_text().count("\n**Do**: ") == len(entries)
    for alert in alerts():
        assert alert["annotations"]["runbook_url"].endswith(f"runbook.md#{alert['alert'].lower()}")
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_runbook_explains_each_thread_that_can_fail() -> None:
    """Two are not threads of an agent: one renews the lock of a rewrite, one follows a log."""
    sources = (DOCS.parent / "imap_wal").rglob("*.py")
    workers = {
        name for path in sources for name in re.findall(r'Worker\(\s*"([\w-]+)"', path.read_text())
    }
    assert len(workers) > 10
    entry = RUNBOOK.read_text().partition("### ImapWalThreadFailing")[2].partition("###")[0]
    explained = set(re.findall(r"`(imap-wal-[a-z-]+)`:", entry.replace("\n", " ")))
    assert explained == workers - {"imap-wal-rewrite-lock", "imap-wal-follow"}


def test_the_dashboard_shows_only_metrics_that_are_exported() -> None:
    shown: set[str] = set()
    for panel in panels():
        for target in panel.get("targets", ()):
            assert named(target["expr"]), target
            shown |= named(target["expr"])
    assert shown <= samples()
    assert len(shown) > len(METRICS) // 2


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    found = list(panels())
    assert len({panel["id"] for panel in found}) == len(found)
    places = [
        (x, y)
        for panel in found
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(places)) == len(places)
    assert all(x < 24 for x, _ in places)


def test_promtool_accepts_the_rules_and_the_metrics() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "metrics", text=Exporter(snapshot, METRICS).text())
    promtool("check", "metrics", text=of_a_stream())


def test_alerts_fire_for_their_states_only(tmp_path: Path) -> None:
    """promtool evaluates the rules over series of metrics."""
    shutil.copy(RULES, tmp_path)
    promtool("test", "rules", *(shutil.copy(file, tmp_path) for file in CASES))
    cases = [case for file in CASES for case in yaml.safe_load(file.read_text("utf-8"))["tests"]]
    fired = {
        each["alertname"]
        for case in cases
        for each in case["alert_rule_test"]
        if each.get("exp_alerts")
    }
    assert fired == {alert["alert"] for alert in alerts()}
