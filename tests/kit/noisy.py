"""Work for another process that prints, as drivers of storages and their libraries do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Noisy:
    """Prints in several ways, and returns the text."""

    folder: Path
    text: str

    def run(self, store: Any, report: Any) -> str:
        print(self.text, flush=True)
        os.write(sys.__stdout__.fileno(), self.text.encode())  # type: ignore[union-attr]
        subprocess.run(["echo", self.text], check=True)
        return self.text
