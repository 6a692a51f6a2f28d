"""Plans of our statements as PostgreSQL really runs them: prepared, with the settings of the pool, on filled tables."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindroom.db.engine import Tx


@dataclass(frozen=True)
class Plan:
    """One executed plan."""

    nodes: tuple[dict[str, Any], ...]

    def indexes(self) -> set[str]:
        """Every index that was read."""
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    def scanned(self) -> set[str]:
        """Tables that were read from end to end."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}

    def rows_read(self, table: str) -> int:
        """Rows of a table that were touched, kept or thrown away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes
            if node.get("Relation Name") == table and "Scan" in node["Node Type"]
        )


async def explain(tx: Tx, statement: str, *args: Any) -> Plan:
    """Run a statement inside `tx` and tell how; the caller rolls back what it wrote."""
    await tx.execute(f"PREPARE explained AS {statement}")
    values = f"({', '.join(_literal(arg) for arg in args)})" if args else ""
    (row,) = await tx.fetch(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE explained{values}")
    (top,) = json.loads(row["QUERY PLAN"])
    await tx.execute("DEALLOCATE explained")
    return Plan(tuple(_nodes(top["Plan"])))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        value = "{" + ",".join("NULL" if v is None else json.dumps(str(v)) for v in value) + "}"
    return "'" + str(value).replace("'", "''") + "'"
