"""What the engine sends instead of an object: a cache handle, and what ``put`` gives where there is none."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arena.errors import InvalidHandle
from arena.hashing import DIGEST_BYTES
from arena.protocol.slots import Grant
from arena.shm.segment import ID_BYTES

MAC_BYTES = 32
_VERSION = 1
_FIELDS = struct.Struct("<B16sIQ32s")

Key = bytes | str
"""What objects are cached under: best an ``arena.hashing.object_key``."""


def check_key(key: Key) -> None:
    """Refuses what nothing can be cached under.

    Raises:
        TypeError: a key is bytes or str.
        ValueError: it is empty, as an id that a client has not sent: all such objects would be one.
    """
    if not isinstance(key, (bytes, str)):
        raise TypeError(f"key={key!r}: must be bytes or str, for example arena.object_key(value)")
    if not key:
        raise ValueError(f"key={key!r}: is empty, and would be one key for all; for example arena.object_key(value)")


def several(keys: Iterable[Key]) -> list[Key]:
    """Keys as a list; one key, whose characters would be taken for several, is a TypeError."""
    if isinstance(keys, (bytes, str)):
        raise TypeError(f"keys={keys!r}: must be several keys, as [key]; this is one")
    return list(keys)


def key_digest(key: Key) -> bytes:
    """The 32 bytes that stand for a key in handles and in ``CacheMiss.keys``; 32 bytes stand for themselves.

    Raises:
        TypeError, ValueError: as ``check_key``.
    """
    check_key(key)
    if isinstance(key, bytes):
        return key if len(key) == DIGEST_BYTES else _digest(key, b"bytes")
    return _digest(key.encode("utf-8", "surrogatepass"), b"str")


def _digest(data: bytes, kind: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"arena key", salt=kind).digest()


@dataclass(frozen=True)
class CacheHandle:
    """An object's address: 93 bytes as ``to_bytes()``, picklable, and small enough for any message.

    It may be lost, repeated, kept or reordered: it leads to that object or to a ``CacheMiss``, never to another's bytes.

    Attributes:
        segment_id: which cache.
        slot: which slot of it.
        generation: which of the objects that the slot has had.
        key: the digest of the object's key.
        mac: HMAC-SHA256 of all that, under the segment's secret.
    """

    segment_id: bytes
    slot: int
    generation: int
    key: bytes
    mac: bytes

    def to_bytes(self) -> bytes:
        """For whatever carries bytes, as msgpack; JSON does not: ``to_bytes().hex()``, and ``bytes.fromhex`` there."""
        return self._authenticated() + self.mac

    @staticmethod
    def from_bytes(data: bytes) -> CacheHandle:
        """The handle that ``to_bytes`` wrote.

        Raises:
            InvalidHandle: it was cut short or comes from another version.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) != _FIELDS.size + MAC_BYTES:
            raise InvalidHandle(f"{data!r:.100}: a cache handle has {_FIELDS.size + MAC_BYTES} bytes")
        version, segment_id, slot, generation, key = _FIELDS.unpack_from(data)
        if version != _VERSION:
            raise InvalidHandle(f"a cache handle of version {version}; this is {_VERSION}")
        return CacheHandle(segment_id, slot, generation, key, bytes(data[_FIELDS.size :]))

    def __repr__(self) -> str:
        """To tell handles apart in a log; not the authentication, which would let a log's reader make one."""
        return (
            f"CacheHandle(key={_short(self.key)}, slot={self.slot!r:.20}, generation={self.generation!r:.20}, "
            f"cache={_short(self.segment_id)})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheHandle.from_bytes, (self.to_bytes(),)

    @property
    def grant(self) -> Grant:
        """The slot and its generation."""
        return Grant(self.slot, self.generation)

    @staticmethod
    def sealed(secret: bytes, segment_id: bytes, grant: Grant, key: bytes) -> CacheHandle:
        """A handle with its authentication."""
        bare = CacheHandle(segment_id, grant.slot, grant.generation, key, b"")
        return CacheHandle(segment_id, grant.slot, grant.generation, key, bare._mac(secret))

    def check(self, secret: bytes, segment_id: bytes) -> None:
        """Raises:
        InvalidHandle: it is another cache's, or was altered.
        """
        if self.segment_id != segment_id:
            raise InvalidHandle(f"{self!r:.300} is a handle of another cache; this one is {segment_id.hex()}")
        if not isinstance(self.mac, bytes) or not hmac.compare_digest(self.mac, self._mac(secret)):
            raise InvalidHandle(f"{self!r:.300} was altered: its authentication does not fit")

    def _mac(self, secret: bytes) -> bytes:
        return hmac.digest(secret, self._authenticated(), "sha256")

    def _authenticated(self) -> bytes:
        numbers = type(self.slot) is int and type(self.generation) is int  # True is not 1 here
        names = isinstance(self.segment_id, bytes) and isinstance(self.key, bytes)
        if not (numbers and names and len(self.segment_id) == ID_BYTES and len(self.key) == DIGEST_BYTES):
            raise InvalidHandle(f"{self!r:.300} is not a cache handle")
        try:
            return _FIELDS.pack(_VERSION, self.segment_id, self.slot, self.generation, self.key)
        except struct.error as error:
            raise InvalidHandle(f"{self!r:.300} is not a cache handle: {error}") from error


@dataclass(frozen=True)
class Uncached:
    """What ``put`` gives where it gives no handle; false, so that ``if handle:`` tells the two apart.

    Attributes:
        reason: ``oversize`` (larger than ``max_object_bytes`` or the cache), ``no_slot`` or ``no_extent`` (what is there
            is in use, or what is free lies in pieces), ``no_memory`` (the machine has none).
        nbytes: what the object would have taken.
    """

    reason: str
    nbytes: int

    def __bool__(self) -> bool:
        return False


def _short(name: object) -> str:
    return f"{name.hex()[:8]}..." if isinstance(name, bytes) else f"{name!r:.20}"
