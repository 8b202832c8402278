"""What a terminal can show. With LC_ALL=C, the output is ASCII: other characters are escapes."""

from __future__ import annotations

import codecs
import os
import sys

_MARKS = {"–": "-", "→": "->", "…": "...", "▶": ">"}


def encoding(*, err: bool = False) -> str:
    """The encoding of the output: `ascii` if the user asked for the locale C, although Python then
    writes UTF-8."""
    stream = sys.stderr if err else sys.stdout
    if not os.environ.get("PYTHONIOENCODING") and os.environ.get("PYTHONUTF8") != "1":
        locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
        if locale in ("C", "POSIX"):
            return "ascii"
    try:
        return codecs.lookup(stream.encoding or "utf-8").name
    except (AttributeError, LookupError):
        return "utf-8"


def is_unicode(*, err: bool = False) -> bool:
    return encoding(err=err).startswith("utf")


def suited(text: str, *, err: bool = False) -> str:
    """The text with escapes such as \\xe9 for what the output's encoding does not have."""
    if text.isascii() or is_unicode(err=err):
        return text
    for mark, plain in _MARKS.items():
        text = text.replace(mark, plain)
    name = encoding(err=err)
    return text.encode(name, "backslashreplace").decode(name)
