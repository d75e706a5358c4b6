"""Work done once per distinct text: columns repeat few of them, and looking up by number is nearly free."""

import polars as pl

#: Where more of the first texts than this differ, as arguments of system calls may, looking for equal ones
#: costs more than it saves.
TRIED, MOST_DISTINCT = 1000, 600
EACH = pl.col("text")


class Texts:
    """Texts numbered as they come, also from several threads; `kind` is the type of columns of them."""

    def __init__(self) -> None:
        self.kind = pl.Categorical(pl.Categories.random())
        self._held = pl.Series([], dtype=self.kind)  # Polars forgets the texts of a type that no column has

    def codes(self, texts: pl.Series) -> pl.Series:
        """Return the number of each text, UInt32; null for null."""
        return codes_of(texts.cast(self.kind))

    def all(self) -> pl.Series:
        """Return the texts; the place of each is its number."""
        return self.kind.categories.to_series().alias("text")


class Listed:
    """One list of the texts of several columns; what hardly repeats is listed as often as it comes."""

    def __init__(self) -> None:
        self._parts: list[pl.Series] = []
        self._count = 0

    def add(self, texts: pl.Series, made: pl.Expr = EACH) -> pl.Series:
        """List what `made` makes of `text`; return its place for each of `texts`, null where it is null."""
        different, places = distinct(texts)
        different = different.to_frame().select(made).to_series()
        if different.null_count():
            places = places.set(different.is_null()[places], None)
        first, self._count = self._count, self._count + different.len()
        self._parts.append(different.fill_null(""))
        return (places + first).cast(pl.UInt32)

    def all(self) -> pl.Series:
        """Return the texts in the list."""
        return pl.concat(self._parts) if self._parts else pl.Series("text", [], pl.String)


def codes_of(interned: pl.Series) -> pl.Series:
    """Return the numbers that stand for the texts of a Categorical column, UInt32."""
    return interned.to_physical()


def distinct(texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the distinct texts, and for each of `texts` its place among them.

    Texts that hardly repeat are returned as they are: equal ones may occur more than once.
    """
    if texts.head(TRIED).n_unique() > MOST_DISTINCT:
        return texts.alias("text"), pl.int_range(texts.len(), dtype=pl.UInt32, eager=True)
    interned = Texts()
    places = interned.codes(texts)
    return interned.all(), places


def per_distinct(texts: pl.Series, *made: pl.Expr) -> pl.DataFrame:
    """Return what the expressions make of `text`, one row per text, each distinct one looked at once."""
    different, places = distinct(texts)
    return different.to_frame().select(*made)[places]
