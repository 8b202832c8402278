"""Errors as `hazelcast-python-client` makes them. On real members: tests/cluster/test_faults.py."""

from __future__ import annotations

import pytest
from hazelcast.errors import HazelcastError, IllegalStateError, UndefinedErrorCodeError

from imap_wal.errors import ImapWalError, NotAppended, OutcomeUnknown
from imap_wal.hazelcast import LogUnavailable, error_of

STACK = "\n \tat io.imapwal.hazelcast.AgentLink.fail(AgentLink.java:7)"


def of_member(name: str, text: str) -> UndefinedErrorCodeError:
    return UndefinedErrorCodeError(f"Exception from server: {name}: {text}{STACK}", name)


@pytest.mark.parametrize("kind", [NotAppended, OutcomeUnknown, LogUnavailable])
def test_member_error_has_its_named_class_and_text(
    kind: type[ImapWalError],
) -> None:
    """An error of a member becomes the class of its name, with the member's text."""
    raised = of_member(
        f"io.imapwal.hazelcast.{kind.__name__}", 'map "orders": not appended by tcp://a:1'
    )
    found = error_of(raised)
    assert type(found) is kind
    assert str(found) == 'map "orders": not appended by tcp://a:1'
    assert found.__cause__ is raised


def test_a_member_error_is_found_inside_another_error() -> None:
    cause = of_member("io.imapwal.hazelcast.OutcomeUnknown", "no acknowledgement")
    assert isinstance(
        error_of(IllegalStateError("Exception from server: ...", cause)), OutcomeUnknown
    )
    outer = RuntimeError("the order was not stored")
    outer.__cause__ = cause
    assert isinstance(error_of(outer), OutcomeUnknown)


@pytest.mark.parametrize(
    "other",
    [
        ValueError("io.imapwal.hazelcast.NotAppended"),
        HazelcastError("no connection"),
        of_member("com.example.Mine", "io.imapwal.hazelcast.NotAppended: quoted by a user's class"),
        UndefinedErrorCodeError(),
    ],
)
def test_an_error_that_only_quotes_the_name_is_none(other: BaseException) -> None:
    assert error_of(other) is None


def test_a_cycle_of_causes_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert error_of(first) is None
