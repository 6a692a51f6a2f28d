"""docs/reference/configuration.md and the schema say the same."""

import re
from pathlib import Path

from mindroom.config import parse_config
from mindroom.config.keys import all_keys

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
TABLE_KEYS = set(re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE))


def test_every_key_of_the_schema_is_documented() -> None:
    assert set(all_keys()) - TABLE_KEYS == set()


def test_every_documented_key_is_in_the_schema() -> None:
    assert TABLE_KEYS - set(all_keys()) == set()


def test_the_walk_over_the_schema_reaches_every_depth() -> None:
    assert {"matrix.accounts.<name>.token_env", "models.<name>.base_url", "http.port"} <= set(all_keys())


def test_the_example_of_the_page_is_a_valid_configuration() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert set(parse_config(example).agents) == {"assistant", "helper"}
