"""numpy in typed maps: `TypedSerializer(str, np.ndarray, codecs=[imap_wal.NumpyCodec()])`."""

from __future__ import annotations

from typing import Any

from imap_wal.errors import NotSerializable

_KINDS = "?biufcmMSU"
"""Kinds of dtypes whose bytes are the whole value; not Python objects, structures, text of any
length."""
_PLAIN_KINDS = "?biufSU"


class NumpyCodec:
    """Arrays as `{"dtype": "<f8", "shape": [2, 3], "data": bytes}`; a scalar that a number or text
    of Python equals, as that. Not for object arrays, structured dtypes and classes derived from
    `ndarray`."""

    def __init__(self) -> None:
        import numpy as np

        self._numpy = np

    def has(self, kind: type) -> bool:
        return issubclass(kind, self._numpy.ndarray | self._numpy.generic)

    def encode(self, value: Any) -> Any:
        is_scalar = isinstance(value, self._numpy.generic)
        plain = value.item() if is_scalar and value.dtype.kind in _PLAIN_KINDS else None
        if type(plain) in (bool, int, float, str, bytes):
            return plain
        array = self._numpy.asarray(value)
        dtype = array.dtype
        if dtype.kind not in _KINDS or not (is_scalar or type(value) is self._numpy.ndarray):
            raise NotSerializable(f"a {type(value).__name__} of dtype {dtype}")
        return {"dtype": dtype.str, "shape": list(array.shape), "data": array.tobytes()}

    def decode(self, kind: Any, data: Any) -> Any:
        of_scalar = isinstance(kind, type) and issubclass(kind, self._numpy.generic)
        if of_scalar and not isinstance(data, dict):
            scalar = kind(data)
            if scalar == data or scalar != scalar:
                return scalar
            raise ValueError(f"{data!r} is no {kind.__name__}")
        dtype = self._numpy.dtype(data["dtype"])
        if dtype.kind not in _KINDS:
            raise ValueError(f"an array of dtype {dtype}")
        array = self._numpy.frombuffer(data["data"], dtype).reshape(data["shape"]).copy()
        if not of_scalar:
            return array
        if not isinstance(array[()], kind):
            raise ValueError(f"a {dtype} is no {kind.__name__}")
        return array[()]
