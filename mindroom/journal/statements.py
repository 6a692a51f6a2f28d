"""The statements of the journal, loaded once."""

from mindroom.db.sql import load

SQL = load("mindroom.journal", "journal.sql")
