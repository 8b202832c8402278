"""How programs use typed maps, for type checkers: mypy checks this file with all others, and
test_typing.py checks it with pyright. It is never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, assert_type

import imap_wal
from imap_wal import AsyncMap, AsyncStore, DurableMap, Store


@dataclass
class Order:
    customer: str
    total: float


class Place(NamedTuple):
    row: int
    column: int


class Film(TypedDict):
    title: str


def maps(store: Store) -> None:
    orders = store.map("orders", key=str, value=Order)
    assert_type(orders, DurableMap[str, Order])
    assert_type(store.map("places", key=Place, value=list[int]), DurableMap[Place, list[int]])
    assert_type(store.map("films", key=int, value=Film), DurableMap[int, Film])
    assert_type(store.map("raw", raw=True), DurableMap[bytes, bytes])
    assert_type(store.map("any"), DurableMap[Any, Any])
    assert_type(store.map("pickled", serializer="pickle"), DurableMap[Any, Any])
    named = imap_wal.TypedSerializer(str, Order, name="msgpack[str, Purchase]")
    assert_type(store.map("named", serializer=named), DurableMap[str, Order])
    union: DurableMap[str, Order | None] = store.map("union", key=str, value=Order | None)
    union["x"] = None


def reads(orders: DurableMap[str, Order]) -> Iterator[str]:
    assert_type(orders["42"], Order)
    assert_type(orders.get("42"), Order | None)
    assert_type(orders.snapshot(), dict[str, Order])
    for key, order in orders.items():
        assert_type(key, str)
        assert_type(order, Order)
    yield from orders
    orders[42]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    orders.ttl(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def changes(orders: DurableMap[str, Order], hits: DurableMap[str, int]) -> None:
    order = Order("ann", 12.5)
    orders["42"] = order
    orders.put("42", order, ttl=60)
    orders.update({"42": order}, last=order)
    orders.update([("42", order)], ttl=5)
    assert_type(orders.pop("42"), Order)
    assert_type(orders.pop("42", None), Order | None)
    assert_type(orders.popitem(), tuple[str, Order])
    assert_type(orders.setdefault("42", order), Order)
    assert_type(hits.add("home"), int)
    assert_type(orders.replace("42", order, order), bool)
    assert_type(orders.change("42", lambda old: old or order), Order | None)
    orders.change("42", lambda old: imap_wal.DELETE)
    orders["42"] = "text"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    orders.put(42, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.update({"42": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.add_new("42", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def together(store: Store, orders: DurableMap[str, Order], hits: DurableMap[str, int]) -> None:
    order = Order("ann", 12.5)
    with store.batch() as batch:
        batch.put(orders, "42", order)
        batch.delete(hits, "home")

    @store.transaction
    def pay(transaction: imap_wal.Transaction, key: str) -> float:
        assert_type(transaction[orders][key], Order)
        transaction[hits]["paid"] = transaction[hits].get("paid", 0) + 1
        transaction[hits]["paid"] = "1"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
        return transaction[orders][key].total

    assert_type(pay("42"), float)


async def with_asyncio(store: AsyncStore) -> None:
    orders = store.map("orders", key=str, value=Order)
    assert_type(orders, AsyncMap[str, Order])
    order = Order("ann", 12.5)
    await orders.set("42", order)
    await orders.update({"42": order})
    assert_type(orders["42"], Order)
    assert_type(await orders.pop("42"), Order)
    assert_type(await orders.pop("42", None), Order | None)
    assert_type(await orders.setdefault("42", order), Order)
    assert_type(await orders.popitem(), tuple[str, Order])
    assert_type(await orders.change("42", lambda old: order), Order | None)
    orders.set("42", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.put(42, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
