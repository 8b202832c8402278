"""`memoize`: a function whose results are in a durable map, as those of `functools.cache` are in
memory.

The key of a call is the name of the function, and the bytes of its arguments. Each argument is
under the name of its parameter, defaults included: `f(1, 2)`, `f(1, b=2)` and `f(a=1, b=2)` are one
call. Arguments of different types are different calls, even if they are equal, such as 1 and True.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

from imap_wal.adapters.any_map import AnyMap, MapSource, call, map_of
from imap_wal.embedded.asyncio_map import AsyncMap
from imap_wal.embedded.durable_map import DurableMap, checked_ttl
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.serializer import MsgpackSerializer

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
L = TypeVar("L")

LEAVES = frozenset(
    (type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID)
)
ABSENT = object()


class CacheInfo(NamedTuple):
    """Counts of a function of `memoize`, with the names of `functools`. `hits`, `misses`: calls of
    this process. `currsize`: the number of results in the map, including those of earlier
    processes. `maxsize`: there is no limit; use a `ttl`."""

    hits: int
    misses: int
    maxsize: None
    currsize: int


class Memoized(Protocol[P, R_co]):
    """A function of `memoize`. `__wrapped__`: the function itself."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def __get__(self, instance: object, owner: type | None = None) -> Memoized[..., R_co]: ...

    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, bytes]:
        """The key of a call, to delete its result from the map."""

    def cache_clear(self) -> None:
        """Delete all entries of the map."""

    def cache_info(self) -> CacheInfo:
        """How often the map had the result."""


class AsyncMemoized(Protocol[P, R_co]):
    """The same for a coroutine function."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def __get__(self, instance: object, owner: type | None = None) -> AsyncMemoized[..., R_co]: ...

    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, bytes]: ...

    async def cache_clear(self) -> None: ...

    async def cache_info(self) -> CacheInfo: ...


class Memoize(Protocol):
    """The decorator that `memoize` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as every decorator of both kinds
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncMemoized[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Memoized[P, R]: ...


def memoize(
    map: MapSource,
    *,
    ttl: float | None = None,
    name: str | None = None,
    key: Callable[..., Any] | None = None,
) -> Memoize:
    """A decorator: the results of a function are in a durable map, and are found again after a
    restart. The map is of `open` or `connect`; for a coroutine function, it may be of `aopen`.

        @imap_wal.memoize(store.map("prices"), ttl=3600)
        def price(article: str) -> Decimal: ...

    Threads, or tasks of one event loop, that call it with the same arguments at the same time wait
    for one computation. Other processes of a store of `connect` may compute the same result at the
    same time. An error is raised to the caller and not stored: the next call computes again. The
    caller that computes a result gets it as it is, the others an equal copy.

    Args:
        map: the map of this function, or a function that returns it, if its store is opened later.
            Give each function a map of its own: `cache_clear` deletes all its entries.
        ttl: how long a result counts, in seconds; None: it does not expire.
        name: in the keys; None: module and name of the function. Results are found again only
            under the same name, so change it when the function returns something else.
        key: a function that gets the arguments and returns what the result depends on: for a
            method, or arguments that cannot be stored.

    Raises:
        InvalidSetting: `ttl` is not valid, or the map is not one for this function.
        NotSerializable: of a call: an argument is not None, bool, int, float, str, bytes, a date or
            time, Decimal, UUID, or a list, tuple, set or dict of these; or the map does not take
            the result. Objects of derived classes are refused too, such as those of an enum.
    """
    if ttl is not None:
        checked_ttl(ttl)

    def decorate(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise TypeError("memoize takes a map, and then the function: @memoize(store.map(name))")
        results = _Results(function, map, ttl, name, key)
        return _asynchronous(results) if inspect.iscoroutinefunction(function) else _plain(results)

    return cast("Memoize", decorate)


class _Results:
    """What a function and the map of its results need. Thread-safe."""

    def __init__(
        self,
        function: Callable[..., Any],
        source: MapSource,
        ttl: float | None,
        name: str | None,
        key: Callable[..., Any] | None,
    ) -> None:
        self.function, self.source, self.ttl, self._key = function, source, ttl, key
        try:
            self.name = name or f"{function.__module__}.{function.__qualname__}"
            self._signature = None if key is not None else inspect.signature(function)
        except (AttributeError, ValueError) as error:  # a `partial`; some functions in C
            raise InvalidSetting(
                f"{function!r} has no name or no list of parameters; pass `name` and `key` to "
                "memoize, or a function that calls it"
            ) from error
        self._mutex = threading.Lock()
        self._hits = self._misses = 0

    def key(self, *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        """The key of a call: different for different arguments."""
        if self._signature is None:
            assert self._key is not None
            arguments = self._key(*args, **kwargs)
        else:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
        try:
            _demand_plain(arguments)
            return self.name, MsgpackSerializer().dump(arguments)
        except RecursionError:
            error = NotSerializable("they have too many levels")
        except NotSerializable as refused:
            error = refused
        raise error.at(f"the arguments of {self.name}") from error

    def count(self, *, hit: bool) -> None:
        with self._mutex:
            self._hits, self._misses = self._hits + hit, self._misses + (not hit)

    def info(self, target: AnyMap) -> CacheInfo:
        return CacheInfo(self._hits, self._misses, None, len(target))


def _demand_plain(argument: Any) -> None:
    """Raise `NotSerializable` for an object that would be stored as one of another class: the
    results for both may differ."""
    kind = type(argument)
    if kind in (list, tuple, set, frozenset):
        for item in argument:
            _demand_plain(item)
    elif kind is dict:
        for pair in argument.items():
            _demand_plain(pair)
    elif kind not in LEAVES:
        raise NotSerializable(
            f"a {kind.__name__} cannot be part of a key; pass plain values, or give memoize a "
            "function `key` that returns plain values for the arguments"
        )


class _Locks(Generic[L]):
    """A lock for each key in use."""

    def __init__(self, create: Callable[[], L]) -> None:
        self._create, self._mutex = create, threading.Lock()
        self._used: dict[Hashable, tuple[L, int]] = {}

    @contextmanager
    def of(self, key: Hashable) -> Iterator[L]:
        with self._mutex:
            lock, users = self._used.get(key) or (self._create(), 0)
            self._used[key] = lock, users + 1
        try:
            yield lock
        finally:
            with self._mutex:
                lock, users = self._used.pop(key)
                if users > 1:
                    self._used[key] = lock, users - 1


def _plain(results: _Results) -> Any:
    # A call inside one with the same arguments is a RecursionError, as without `memoize`.
    locks = _Locks(threading.RLock)

    def opened() -> DurableMap[Any, Any]:
        target = map_of(results.source)
        if isinstance(target, AsyncMap):
            raise InvalidSetting(
                f"{results.name} is not an `async def` function, but the map {target.name!r} is of "
                "`aopen`: open the store with imap_wal.open, or define the function by `async def`"
            )
        return target

    @wraps(results.function)
    def memoized(*args: Any, **kwargs: Any) -> Any:
        target, key = opened(), results.key(*args, **kwargs)
        result = target.get(key, ABSENT)
        if result is ABSENT:
            with locks.of(key) as lock, lock:
                result = target.get(key, ABSENT)
                if result is ABSENT:
                    results.count(hit=False)
                    result = results.function(*args, **kwargs)
                    target.put(key, result, results.ttl)
                    return result
        results.count(hit=True)
        return result

    return _with(
        memoized,
        cache_key=results.key,
        cache_clear=lambda: opened().clear(),
        cache_info=lambda: results.info(opened()),
    )


def _asynchronous(results: _Results) -> Any:
    locks = _Locks(asyncio.Lock)

    def opened() -> AnyMap:
        return map_of(results.source)

    @wraps(results.function)
    async def memoized(*args: Any, **kwargs: Any) -> Any:
        target, key = opened(), results.key(*args, **kwargs)
        result = await call(target, lambda target: target.get(key, ABSENT))
        if result is ABSENT:
            with locks.of((asyncio.get_running_loop(), key)) as lock:
                async with lock:
                    result = await call(target, lambda target: target.get(key, ABSENT))
                    if result is ABSENT:
                        results.count(hit=False)
                        result = await results.function(*args, **kwargs)
                        await call(target, lambda target: target.put(key, result, results.ttl))
                        return result
        results.count(hit=True)
        return result

    async def cache_clear() -> None:
        await call(opened(), lambda target: target.clear())

    async def cache_info() -> CacheInfo:
        info: CacheInfo = await call(opened(), results.info)
        return info

    return _with(memoized, cache_key=results.key, cache_clear=cache_clear, cache_info=cache_info)


def _with(function: Callable[..., Any], **attributes: Callable[..., Any]) -> Any:
    for name, attribute in attributes.items():
        setattr(function, name, attribute)
    return function
