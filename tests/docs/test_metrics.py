"""docs/reference/metrics.md names every metric with its type, labels and meaning, and none beside them."""

import re

import pytest
from prometheus_client.metrics import MetricWrapperBase

from mindroom.core.metrics import Metrics
from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
ROWS = {name: (kind, re.findall(r"`(\w+)`", labels), text) for name, kind, labels, text in ROW.findall(PAGE)}
INSTRUMENTS = {
    family.name + ("_total" if family.type == "counter" else ""): (instrument, family)
    for instrument in vars(Metrics()).values()
    if isinstance(instrument, MetricWrapperBase)
    for family in instrument.describe()
}


def test_the_page_names_the_metrics_that_exist() -> None:
    assert set(ROWS) == set(INSTRUMENTS)


@pytest.mark.parametrize("name", sorted(INSTRUMENTS))
def test_a_metric_is_told_with_its_type_and_meaning(name: str) -> None:
    _, family = INSTRUMENTS[name]
    kind, _, text = ROWS[name]
    assert (kind, text) == (family.type, family.documentation)


@pytest.mark.parametrize("name", sorted(INSTRUMENTS))
def test_a_metric_is_told_with_its_labels(name: str) -> None:
    instrument, _ = INSTRUMENTS[name]
    labels = ROWS[name][1]
    if labels:
        instrument.labels(**dict.fromkeys(labels, "any"))
    else:
        assert next(iter(instrument.collect())).samples, "it has labels"


def test_no_metric_is_labelled_by_room_or_user() -> None:
    closed = {"principal", "kind", "class", "outcome", "reason", "stage", "errcode", "name", "action", "direction"}
    closed |= {"state", "cause", "version", "schema"}
    assert {label for _, labels, _ in ROWS.values() for label in labels} <= closed
