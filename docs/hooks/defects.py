"""On the page of reliability, the tables of deliberate defects: `<!-- deliberate defects -->` and
`<!-- defects at random places -->` become the lists that the tests use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.faults.java_defects import IN_JAVA
from tests.faults.mutation import Mutation
from tests.faults.mutations import MUTATIONS
from tests.faults.picked_defects import PICKED, PICKED_IN_JAVA

TABLES = {
    "<!-- deliberate defects -->": (*MUTATIONS, *IN_JAVA),
    "<!-- defects at random places -->": (*PICKED, *PICKED_IN_JAVA),
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "reliability.md":
        return markdown
    for mark, defects in TABLES.items():
        before, _, after = markdown.partition(mark)
        if not after:
            raise ValueError(f"docs/reliability.md has no {mark}")
        markdown = f"{before}{table(defects)}{after}"
    return markdown


def table(defects: Iterable[Mutation]) -> str:
    """Each defect, its file, and the test that must fail."""
    lines = ["| defect | in | caught by |", "|---|---|---|"]
    for defect in defects:
        file = defect.file.rpartition("/")[2] if defect.file.endswith(".java") else defect.file
        test = defect.test.rpartition("::")[2]
        lines.append(f"| {defect.name} | `{file}` | `{test}` |")
    return "\n".join(lines)
