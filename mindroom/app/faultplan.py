"""Reads a fault plan from the environment; only the fault driver sets one (K1)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mindroom.core.errors import UserError
from mindroom.core.faults import Fault, FaultPlan

VARIABLE = "MINDROOM_FAULT_PLAN"


def read_fault_plan(environ: Mapping[str, str] = os.environ) -> FaultPlan | None:
    """The plan, or None in every ordinary process. Raises UserError for a malformed one."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    try:
        raw = json.loads(text)
        return FaultPlan(
            record=Path(raw["record"]) if "record" in raw else None,
            point=raw.get("point", ""),
            moment=raw.get("moment", "before"),
            hit_number=int(raw.get("hit_number", 1)),
            fault=Fault(raw.get("fault", "kill")),
            armed_by=Path(raw["armed_by"]) if "armed_by" in raw else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{VARIABLE} is not a fault plan: {error}") from error
