"""Cases of the fault matrix are counted where they run."""

from __future__ import annotations

import pytest

from tests.faults.working_copy import WorkingCopy, of_python
from tests.kit import counts

cases = counts.cases


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> WorkingCopy:
    """The sources in Python, in which defects are tried."""
    return of_python(tmp_path_factory.mktemp("python"))


def pytest_sessionfinish(exitstatus: int) -> None:
    counts.write(exitstatus)
