"""`make test-all` goes on where it was stopped, as long as no file has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import everything


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file; the first part passes, the second one needs the file `mended`."""
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(
        everything,
        "parts",
        lambda record, workers: {
            "lint": ["sh", "-c", f"echo lint >> {record}/ran"],
            "java": ["sh", "-c", f"echo java >> {record}/ran; test -e {tmp_path}/build/mended"],
        },
    )
    (tmp_path / ".gitignore").write_text("/build/\n")
    (tmp_path / "file").write_text("1")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


def ran(root: Path) -> list[str]:
    return (root / "build" / "tested" / everything.tree() / "ran").read_text().split()


def test_what_has_passed_is_not_run_again(root: Path) -> None:
    assert everything.main(1) == 1
    assert everything.main(1) == 1
    assert ran(root) == ["lint", "java", "java"]
    (root / "build" / "mended").touch()
    assert everything.main(1) == 0
    assert everything.main(1) == 0
    assert ran(root) == ["lint", "java", "java", "java"]


def test_any_change_begins_a_new_record(root: Path) -> None:
    (root / "build").mkdir()
    (root / "build" / "mended").touch()
    trees = set()
    for change in ("file", "new file"):
        assert everything.main(1) == 0
        assert ran(root) == ["lint", "java"]
        trees.add(everything.tree())
        (root / change).write_text("2")
    assert everything.main(1) == 0
    assert len(trees | {everything.tree()}) == 3
