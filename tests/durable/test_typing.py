"""Type checkers know the types of maps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests/durable/typed_uses.py"
PYRIGHT = ROOT / "build/pyright"


def run(*words: object) -> str:
    ended = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@thorough
def test_typed_maps_are_clean_in_strict_mypy() -> None:
    """Without the settings of this project; `make lint` checks the file with them."""
    run(
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
        "--ignore-missing-imports", USES,
    )  # fmt: skip


@thorough
def test_typed_maps_are_clean_in_strict_pyright(tmp_path: Path) -> None:
    """Each `pyright: ignore` must be needed, so a wrong use is an error."""
    if not (PYRIGHT / "bin/pyright").exists():
        run(sys.executable, "-m", "uv", "venv", "--clear", PYRIGHT)
        run(
            sys.executable, "-m", "uv", "pip", "install", "--python", PYRIGHT / "bin/python",
            "pyright[nodejs]",
        )  # fmt: skip
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [str(USES)],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": "strict",
                "enableTypeIgnoreComments": False,
                "reportUnnecessaryTypeIgnoreComment": "error",
                "pythonVersion": "3.11",
            }
        )
    )
    run(PYRIGHT / "bin/pyright", "--project", config, "--pythonpath", sys.executable)
