"""Notebooks small enough to run in a test."""

import nbformat


def notebook(path, *cells, parameters="count: int = 1  # how many\nname: str = 'a'"):
    """Write a notebook: a parameters cell, then code cells; a text that starts with `# ` is Markdown."""
    node = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    first = nbformat.v4.new_code_cell(parameters)
    first.metadata["tags"] = ["parameters"]
    node.cells = [first, *(new(cell) for cell in cells)]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(node, path)
    return path


def new(source):
    """Return the cell for `source`."""
    return (
        nbformat.v4.new_markdown_cell(source)
        if source.startswith(("# ", "## "))
        else nbformat.v4.new_code_cell(source)
    )
