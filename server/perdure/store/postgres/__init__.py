"""The truth in Postgres: the same statements, under the names of the namespaces they are for."""

from perdure.store.postgres.database import PostgresDatabase

__all__ = ["PostgresDatabase"]
