"""Notebook files, with types: nbformat has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
from nbformat import NotebookNode

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NotebookNode", "markdown_cell", "read", "write"]


def read(path: Path) -> NotebookNode:
    """Return the notebook at `path`."""
    node: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return node


def write(node: NotebookNode, path: Path) -> None:
    """Write the notebook to `path`."""
    nbformat.write(node, path)  # type: ignore[no-untyped-call]


def markdown_cell(source: str, *tags: str) -> NotebookNode:
    """Return a Markdown cell with `tags`."""
    cell: NotebookNode = nbformat.v4.new_markdown_cell(source)  # type: ignore[no-untyped-call]
    cell.metadata["tags"] = list(tags)
    return cell
