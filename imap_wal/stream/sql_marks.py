"""Marks in the database of the consumer, in the SQL transaction of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.stream.marks import StreamView
from imap_wal.stream.transaction import Mark, StreamRecord
from storage_backends.extras import needs

with needs("stream"):
    import sqlalchemy as sql

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Row


class SqlView(StreamView):
    """`connection`: an open one of SQLAlchemy, for reading; it is rolled back."""

    def __init__(self, mark: Mark, connection: Connection) -> None:
        super().__init__(mark)
        self.connection = connection

    def all(self, query: str, **parameters: Any) -> Sequence[Row[Any]]:
        """The rows of a query. Parameters are named in it as `:name`."""
        return self.connection.execute(sql.text(query), parameters).all()

    def one(self, query: str, **parameters: Any) -> Row[Any] | None:
        """The only row of a query; None: there is none. Raises `MultipleResultsFound`."""
        return self.connection.execute(sql.text(query), parameters).one_or_none()


class SqlMarks:
    """Marks in a table of a database. `function` gets the record and a connection of SQLAlchemy in
    a transaction, which commits the changes of the function together with the mark. So each
    transaction counts once, also if several processes apply it: one of them gets `LostRace`.

    `engine`: of SQLAlchemy. The table is created if it is missing."""

    def __init__(self, engine: Engine, table: str = "imap_wal_marks") -> None:
        self._engine = engine
        self._table = sql.Table(
            table,
            sql.MetaData(),
            sql.Column("consumer", sql.String(255), primary_key=True),
            sql.Column("partition_number", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("id", sql.BigInteger, nullable=False),
            sql.Column("position", sql.String(255), nullable=False),
        )
        try:
            self._table.metadata.create_all(engine)
        except sql.exc.DBAPIError:  # another process may have created it meanwhile
            if not sql.inspect(engine).has_table(table):
                raise

    def load(self, consumer: str, partition: int) -> Mark:
        with self._engine.connect() as connection:
            return self._load(connection, consumer, partition)

    def _load(self, connection: Connection, consumer: str, partition: int) -> Mark:
        table = self._table.c
        row = connection.execute(
            sql.select(table.id, table.position).where(
                table.consumer == consumer, table.partition_number == partition
            )
        ).one_or_none()
        return Mark(partition) if row is None else Mark(partition, row.id, row.position)

    def apply(
        self,
        consumer: str,
        before: Mark,
        records: Sequence[StreamRecord],
        function: Callable[[StreamRecord, Connection], object],
    ) -> None:
        with self._engine.begin() as connection:
            transaction = connection.get_transaction()
            # The row is locked until the commit, so another process waits here.
            self._replace(connection, consumer, before, before)
            for record in records:
                function(record, connection)
                if transaction is None or not transaction.is_active:
                    raise InvalidSetting(
                        f"the function of consumer {consumer!r} has ended the SQL transaction of "
                        "its mark: it must not commit or roll back"
                    )
            # At the end: had the function committed, it would be stored without what follows.
            self._replace(connection, consumer, before, records[-1].mark)

    def _replace(self, connection: Connection, consumer: str, before: Mark, mark: Mark) -> None:
        table = self._table.c
        values = {"id": mark.id, "position": mark.position}
        is_row = table.consumer == consumer, table.partition_number == mark.partition
        changed = connection.execute(
            sql.update(self._table).where(*is_row, table.id == before.id).values(values)
        ).rowcount
        if changed:
            return
        try:
            if before.id == 0:
                values |= {"consumer": consumer, "partition_number": mark.partition}
                connection.execute(sql.insert(self._table).values(values))
                return
        except sql.exc.IntegrityError:
            pass
        raise LostRace(
            f"consumer {consumer!r} is not at transaction {before.id} of partition "
            f"{mark.partition} any more: another process applies it too, or another stream has a "
            "consumer of this name"
        )

    @contextmanager
    def view(self, consumer: str, partition: int) -> Iterator[SqlView]:
        with self._engine.connect() as connection:
            yield SqlView(self._load(connection, consumer, partition), connection)
