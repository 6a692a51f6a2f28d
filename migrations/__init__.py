"""The schema's history: Alembic revisions, the same schema as SQLAlchemy tables, and the child process that upgrades.

Nothing in the runtime process imports this package: SQLAlchemy and Alembic live here alone. `mindroom.db.schema` starts
it as `python -m migrations` in a checkout and as `python -m mindroom_migrations` from an installed wheel.
"""
