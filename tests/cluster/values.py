"""Values that a Python client stores and for which a member has no class, and entry processors
whose class only the members have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hazelcast.serialization.api import (
    CompactReader,
    CompactSerializer,
    CompactWriter,
    IdentifiedDataSerializable,
)


@dataclass(frozen=True)
class Flight:
    carrier: str
    number: int
    delays: tuple[int, ...] = ()


class FlightSerializer(CompactSerializer[Flight]):
    def read(self, reader: CompactReader) -> Flight:
        delays = reader.read_array_of_int32("delays") or []
        return Flight(reader.read_string("carrier"), reader.read_int32("number"), tuple(delays))

    def write(self, writer: CompactWriter, obj: Flight) -> None:
        writer.write_string("carrier", obj.carrier)
        writer.write_int32("number", obj.number)
        writer.write_array_of_int32("delays", list(obj.delays))

    def get_class(self) -> type[Flight]:
        return Flight

    def get_type_name(self) -> str:
        return "flight"


@dataclass(frozen=True)
class Leg:
    """Contains a Compact value whose schema the outer bytes do not name."""

    flight: Flight
    seat: str


class LegSerializer(CompactSerializer[Leg]):
    def read(self, reader: CompactReader) -> Leg:
        return Leg(reader.read_compact("flight"), reader.read_string("seat"))

    def write(self, writer: CompactWriter, obj: Leg) -> None:
        writer.write_compact("flight", obj.flight)
        writer.write_string("seat", obj.seat)

    def get_class(self) -> type[Leg]:
        return Leg

    def get_type_name(self) -> str:
        return "leg"


class _OnMember(IdentifiedDataSerializable):
    CLASS = 0

    def get_factory_id(self) -> int:
        return 9001

    def get_class_id(self) -> int:
        return self.CLASS

    def write_data(self, output: Any) -> None: ...

    def read_data(self, input: Any) -> None: ...


@dataclass
class Parcel(_OnMember):
    name: str = ""
    number: int = 0
    CLASS = 1

    def write_data(self, output: Any) -> None:
        output.write_string(self.name)
        output.write_int(self.number)

    def read_data(self, input: Any) -> None:
        self.name = input.read_string()
        self.number = input.read_int()


class Add(_OnMember):
    """Adds to a number, or begins one."""

    CLASS = 2

    def __init__(self, amount: int = 0) -> None:
        self.amount = amount

    def write_data(self, output: Any) -> None:
        output.write_long(self.amount)


class Remove(_OnMember):
    """Sets a value to null."""

    CLASS = 3


CLIENT_OPTIONS: dict[str, Any] = {
    "compact_serializers": [FlightSerializer(), LegSerializer()],
    "data_serializable_factories": {9001: {1: Parcel}},
    "default_int_type": "LONG",
}
