"""The form of the Java sources, which no Java linter checks."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.structure import java_uses, strongly_connected

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100
WORDS_MAX = 10
"""The most words in the name of a test."""
TOGETHER = {
    ("plugin/CarriedState", "plugin/PartitionMoves"),
    ("plugin/Change", "plugin/PendingAppend"),
    ("plugin/InquiryOperation", "plugin/TransactionInquiry"),
    ("plugin/LeftOut", "plugin/LookOperation"),
    ("plugin/LoggedDataStore", "plugin/LoggedRecordStore"),
    ("wire/AgentConnection", "wire/Pulse"),
}
"""Classes that name each other: two that are read together. No others do."""
_TEST = re.compile(r"@(?:Parameterized)?Test\b.*?\bvoid (\w+)\(", re.DOTALL)
_WORD = re.compile(r"[a-z0-9]+|[A-Z][a-z0-9]*")


def long_names(source: str) -> list[str]:
    """Names of tests in this source that have too many words."""
    return [name for name in _TEST.findall(source) if len(_WORD.findall(name)) > WORDS_MAX]


def test_no_line_of_java_is_longer_than_100_columns() -> None:
    folders = ("hazelcast_plugin/*/src", "tests")
    sources = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.java")]
    assert sources
    assert [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > WIDTH
    ] == []


def test_only_few_java_classes_name_each_other() -> None:
    """ArchUnit checks the packages of the plug-in; `seatunnel` is one package."""
    groups = strongly_connected(java_uses())
    assert {tuple(sorted(group)) for group in groups if len(group) > 1} == TOGETHER


def test_no_java_test_name_has_more_than_ten_words() -> None:
    sources = list(ROOT.glob("hazelcast_plugin/*/src/test/**/*.java"))
    assert any(_TEST.search(path.read_text("utf-8")) for path in sources)
    assert {
        path.name: found for path in sources if (found := long_names(path.read_text("utf-8")))
    } == {}


def test_a_java_name_of_eleven_words_is_found() -> None:
    """Also of a test with parameters; a name of ten words is allowed."""
    ten = "aWordAWordAWordAWordAWord"
    source = (
        f'@ParameterizedTest @CsvSource("a")\nvoid {ten}More(int a) {{}} @Test void {ten}() {{}}'
    )
    assert long_names(source) == [f"{ten}More"]
