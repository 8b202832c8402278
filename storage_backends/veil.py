"""Removes secrets from the errors of drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

from storage_backends.location import HIDDEN

HARMLESS = frozenset(
    [
        "account_name",
        "addressing_style",
        "anon",
        "endpoint",
        "endpoint_url",
        "http_port",
        "kerberos",
        "profile",
        "project",
        "region",
        "region_name",
        "requester_pays",
        "signature_version",
        "sync_on_close",
        "use_https",
        "use_ssl",
        "user",
        "username",
        "version_aware",
    ]
)
"""Options whose values may be shown. All others are treated as secrets."""
SECRET_CHARACTERS_MIN = 4
"""Shorter texts are not hidden: they occur in ordinary words."""

E = TypeVar("E", bound=BaseException)


class Veil:
    """Hides the secrets among options in the errors of drivers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        secrets = {
            form
            for text in _secrets(options)
            for form in (
                text,
                quote(text),
                quote(text, safe=""),
                quote_plus(text),
                repr(text)[1:-1],
            )
        }
        self._secrets = sorted(secrets, key=len, reverse=True)

    def over(self, error: E) -> E:
        """Hide the secrets in the text of this error, and return it."""
        error.args = tuple(self.text(arg) if isinstance(arg, str) else arg for arg in error.args)
        return error

    def cause(self, error: BaseException) -> BaseException | None:
        """The cause to raise an error from. None if it shows a secret: a traceback prints it."""
        return None if self._shown_by(error) else error

    def text(self, text: str) -> str:
        """The text with secrets hidden."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _shown_by(self, error: BaseException) -> bool:
        if not self._secrets:
            return False
        chain: list[BaseException] = []
        waiting: list[BaseException | None] = [error]
        while waiting:
            cause = waiting.pop()
            if cause is not None and cause not in chain:
                chain.append(cause)
                waiting += [cause.__cause__, cause.__context__]
        return any(
            self.text(shown) != shown for cause in chain for shown in (str(cause), repr(cause))
        )


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case Mapping():
            for key, element in value.items():
                yield from _secrets(element, str(key))
        case list() | tuple():
            for element in value:
                yield from _secrets(element, name)
        case bytes():
            yield from _secrets(value.decode(errors="replace"), name)
        case str() if len(value) >= SECRET_CHARACTERS_MIN and (
            name not in HARMLESS or "@" in value
        ):
            yield value
