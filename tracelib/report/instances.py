"""What cloud instances cost: a data file with dates, ours or the user's."""

import tomllib
from pathlib import Path

import polars as pl

from tracelib.errors import BadTrace

INSTANCES = pl.Schema(
    {
        "instance": pl.String(),
        "gpus": pl.Int64(),
        "vcpus": pl.Int64(),
        "price_per_hour": pl.Float64(),
        "currency": pl.String(),
        "date": pl.String(),
        "source": pl.String(),
    }
)
_OURS = Path(__file__).with_name("instances.toml")


def instances(path: str | Path = "") -> pl.DataFrame:
    """Return the instances of the TOML file at `path`, or of the table that comes with tracelib.

    One row per instance: `instance` (String), `gpus`, `vcpus` (Int64), `price_per_hour` (Float64, in
    `currency`), `currency`, `date`, `source` (String). In the file's order.

    Raises BadTrace if the file is not TOML, or an instance lacks a column or holds another kind of value.
    """
    file = Path(path) if path else _OURS
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("instance", [])
        return pl.DataFrame([{name: row[name] for name in INSTANCES} for row in rows], schema=INSTANCES)
    except KeyError as error:
        raise BadTrace(file, "instance table", "", f"an instance has no {error}", advice=_ADVICE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, pl.exceptions.PolarsError) as error:
        raise BadTrace(file, "instance table", "", str(error).split("\n")[0], advice=_ADVICE) from error


_ADVICE = f"Each [[instance]] needs {', '.join(INSTANCES)}."
