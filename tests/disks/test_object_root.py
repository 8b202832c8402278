"""Local disks with a root on S3, which is what most have: segments are appended to locally, and the
root only gets whole objects."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from imap_wal.read.cluster import ClusterLog
from storage_backends import open_store
from tests.agent.harness import plugin, serving
from tests.kit.own_disks import own_disk_config
from tests.storage.test_s3 import S3, s3

__all__ = ["s3"]
pytestmark = [pytest.mark.storage, pytest.mark.timeout(900)]


def test_two_disks_and_a_root_on_s3(tmp_path: Path, s3: S3) -> None:
    url = "s3://bucket/own-disks"
    changes = {"storage_options": s3.options}
    settings = {
        node: own_disk_config(tmp_path, node, root=url, changes=changes) for node in ("n1", "n2")
    }
    written = {}
    with ExitStack() as stack:
        for each in settings.values():
            stack.enter_context(serving(each))
        for node, each in settings.items():
            with plugin(each, uuid=f"plugin-{node}", member=f"member-{node}") as member:
                for number in range(50):
                    key, value = f"{node}-{number}", "x" * 3000
                    assert member.put(**{key: value})[0] == "ack"
                    written[key] = value
        with plugin(settings["n2"], cluster_id="next", uuid="next") as member:
            assert member.values() == written, "the tail of n1 is on its disk alone"
    for node in settings:
        shutil.rmtree(tmp_path / f"disk-{node}")
    assert not ClusterLog(open_store(url, s3.options), "default", "c").state().missing
    with serving(settings["n1"]), plugin(settings["n1"], cluster_id="last", uuid="p") as member:
        assert member.values() == written
