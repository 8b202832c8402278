"""Encryption of segments and Parquet files. The only module that imports `cryptography`.

    ring's key ─HKDF─▶ archive key ─▶ Parquet's own encryption
         │     ├─HKDF─▶ check value ─▶ in the cluster's manifest, under the key's id
         │     └─HKDF─▶ border keys ─▶ AES-256-GCM of the keys between two files, in manifests
         │
         └─HKDF, segment id, place─▶ frame key  ─▶ AES-256-GCM of each frame's msgpack stream
                                     header key ─▶ HMAC-SHA256 of the header: its check value

    place                        namespace, cluster, node, log directory, epoch, number

    associated data of a frame   offset, body length, type and count, last synced offset
    nonce                        12 random bytes: after a failed write, another frame may be written
                                 at the same offset

The segment id is random, so no two segments have the same keys, and a frame cannot be decrypted as
part of another segment. The keys also depend on the segment's place. If the header is damaged, the
caller passes the place; a segment that was moved there cannot be decrypted. The header's check
value shows a wrong key before a frame is read. So a frame with a correct CRC and a wrong tag is
forged or moved, never a torn tail.
"""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack

from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.errors import EncryptionError, Forged, InvalidSetting
from imap_wal.format import (
    FRAME_HEADER_BYTES,
    KEY_CHECK_BYTES,
    SYNCED_BYTES,
    Frame,
    Home,
    SegmentHeader,
    decode_header,
    with_crc,
)
from imap_wal.security.encryption_keys import NO_KEYS, PLAIN, KeyRing, Keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES, TAG_BYTES = 12, 16
SEAL_BYTES = NONCE_BYTES + TAG_BYTES
"""The number of bytes that encryption adds to a frame."""
_CONTEXT = struct.Struct("<QIIQ")
_CRC_BYTES = 4
_UNCHECKED = bytes(KEY_CHECK_BYTES)


def keys_from(source: str) -> Keys:
    """The keys of a source; none if it is "". Raises `InvalidSetting`."""
    if not source:
        return NO_KEYS
    _library()
    return Keys(source)


# ---- segments ------------------------------------------------------------------------------------


class SegmentCipher:
    """Encrypts (`seal`) and decrypts (`open`) the frames of one segment."""

    def __init__(self, key: bytes, randomness: Randomness) -> None:
        self._cipher = _library()(key)
        self._token = randomness.token

    def seal(
        self, offset: int, kind: int, count: int, synced: int, payload: list[bytes]
    ) -> list[bytes]:
        """Nonce, ciphertext and tag. They replace the payload in the frame at `offset`."""
        stream = b"".join(payload)
        length = SYNCED_BYTES + len(stream) + SEAL_BYTES
        nonce = self._token()[:NONCE_BYTES]
        return [
            nonce,
            self._cipher.encrypt(
                nonce, stream, _CONTEXT.pack(offset, length, kind | count << 8, synced)
            ),
        ]

    def open(self, frame: Frame, file: str) -> Frame:
        """The frame with its msgpack stream decrypted. Raises `Forged`."""
        from cryptography.exceptions import InvalidTag

        sealed = frame.payload
        length = frame.end - frame.offset - FRAME_HEADER_BYTES
        context = _CONTEXT.pack(frame.offset, length, frame.kind | frame.count << 8, frame.synced)
        try:
            return frame._replace(
                payload=self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
            )
        except (InvalidTag, ValueError):  # ValueError: the payload is too short
            reason = (
                "the checksum of this frame is right, but it was not encrypted for this place: "
                "it was forged or moved here"
            )
            advice = (
                "find out who can write to this storage; bring the file back from a copy, or "
                "write a repaired copy with `imap-wal repair`"
            )
            raise Forged(file, frame.offset, reason, advice) from None


def sealed(
    key_ring: KeyRing, header: SegmentHeader, randomness: Randomness
) -> tuple[SegmentHeader, SegmentCipher | None]:
    """The header of a new segment, and the cipher for its frames; None: they are not encrypted.
    `key_ring`: the keys, already checked against the cluster's (`imap_wal.manifest.key_checks`)."""
    if key_ring.active == PLAIN:
        return header, None
    header = header._replace(key_id=key_ring.active, key_check=_UNCHECKED)
    frame_key, header_key = _segment_keys(
        key_ring.keys[key_ring.active], header.segment_id, header.home
    )
    return header._replace(key_check=_check(header_key, header.encode())), SegmentCipher(
        frame_key, randomness
    )


def cipher_of(
    keys: Keys,
    header: SegmentHeader,
    head: bytes,
    file: str,
    randomness: Randomness | None = None,
) -> SegmentCipher | None:
    """The cipher for the frames of a segment; None: they are not encrypted. `head`: the bytes of
    its header. Raises `EncryptionError`."""
    if not header.key_id:
        keys.demand_plain(file)
        return None
    frame_key, header_key = _segment_keys(
        keys.find(file, header.key_id), header.segment_id, header.home
    )
    if not hmac.compare_digest(header.key_check, _check(header_key, head)):
        reason = (
            f"the key {header.key_id!r} that is given is not the one it was written with, or its "
            "header was forged"
        )
        raise EncryptionError(
            file,
            header.key_id,
            reason,
            f"bring back the key that had the id {header.key_id!r}; nothing was changed",
        )
    return SegmentCipher(frame_key, randomness or SystemRandomness())


def cipher_that_opens(
    keys: Keys, segment_id: bytes, home: Home, frame: Frame, file: str
) -> SegmentCipher | None:
    """The cipher that decrypts a frame of a segment at `home` whose header is damaged, found by
    trying all keys; None: no key fits."""
    for key in keys.key_ring.keys.values():
        cipher = SegmentCipher(_segment_keys(key, segment_id, home)[0], SystemRandomness())
        try:
            cipher.open(frame, file)
        except Forged:
            continue
        return cipher
    return None


def resealed(keys: Keys, head: bytes, file: str) -> bytes:
    """A changed header with a new check value and CRC. Raises the errors of `decode_header`, and
    `EncryptionError` if the key is missing."""
    header, end = decode_header(with_crc(head[:-_CRC_BYTES]), file)
    if not header.key_id:
        return head
    _, header_key = _segment_keys(keys.find(file, header.key_id), header.segment_id, header.home)
    return with_crc(head[: end - _CRC_BYTES - KEY_CHECK_BYTES] + _check(header_key, head[:end]))


def _check(header_key: bytes, head: bytes) -> bytes:
    """The check value over all preceding bytes of a header."""
    return hmac.digest(header_key, head[: -_CRC_BYTES - KEY_CHECK_BYTES], "sha256")[
        :KEY_CHECK_BYTES
    ]


def _segment_keys(key: bytes, segment_id: bytes, home: Home) -> tuple[bytes, bytes]:
    both = _derived(key, segment_id, b"imap-wal segment" + msgpack.packb(tuple(home)), 64)
    return both[:32], both[32:]


def check_value(key: bytes) -> str:
    """The value in the cluster's manifest that identifies a key, as hexadecimal digits."""
    return _derived(key, b"", b"imap-wal key check", KEY_CHECK_BYTES).hex()


# ---- Parquet -------------------------------------------------------------------------------------


def archive_key(key: bytes) -> bytes:
    """The key that encrypts Parquet files, derived from a key of the key ring."""
    return _derived(key, b"", b"imap-wal archives", 32)


def archive_keys(keys: Keys) -> Mapping[str, bytes]:
    """Id → archive key, the active one first."""
    key_ring = keys.key_ring
    return {name: archive_key(key) for name, key in key_ring.keys.items()}


# ---- manifests -----------------------------------------------------------------------------------


def sealed_border(keys: Keys, border: bytes) -> str:
    """The start of a key of a map, as text for a manifest: encrypted, if the log is. The same start
    gives the same text, so that files that are kept look unchanged; only that can be seen."""
    key_ring = keys.key_ring
    if key_ring.active == PLAIN or not border:
        return border.hex()
    key, nonce_key = _border_keys(key_ring.keys[key_ring.active])
    nonce = hmac.digest(nonce_key, border, "sha256")[:NONCE_BYTES]
    data = nonce + _library()(key).encrypt(nonce, border, None)
    return f"{key_ring.active}:{base64.b64encode(data).decode()}"


def opened_border(keys: Keys, text: str) -> bytes:
    """The inverse of `sealed_border`, for any key of the key ring. Raises `ValueError` if the text
    cannot be decrypted."""
    name, separator, sealed = text.rpartition(":")
    if not separator:
        return bytes.fromhex(text)
    named_key = keys.key_ring.keys.get(name)
    if named_key is None:
        raise ValueError(f"there is no key {name!r}")
    data = base64.b64decode(sealed, validate=True)
    from cryptography.exceptions import InvalidTag

    try:
        key = _border_keys(named_key)[0]
        return _library()(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], None)
    except InvalidTag as error:
        raise ValueError("a border was changed, or encrypted with another key") from error


@lru_cache(maxsize=16)
def _border_keys(key: bytes) -> tuple[bytes, bytes]:
    both = _derived(key, b"", b"imap-wal borders", 64)
    return both[:32], both[32:]


def _derived(key: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    _library()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived: Any = HKDF(SHA256(), length, salt or None, purpose).derive(key)
    return bytes(derived)


def _library() -> type[AESGCM]:
    """`AESGCM`; the library is loaded only if a log is encrypted. Raises `InvalidSetting` if it is
    not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidSetting(
            "encryption needs the library cryptography: pip install 'imap-wal[encryption]'"
        ) from error
    return AESGCM
