"""Tables that lie beside the code that reads them, as TOML."""

import tomllib
from pathlib import Path
from typing import Any


def data(module: str, name: str) -> Any:
    """Return the tables in the TOML file called `name` beside the `module`, which gives its `__file__`."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))
