"""What `findings.json` promises: its schema, how it is read, and what no schema can say."""

from typing import Any

import msgspec

from tracelib.findings.document import SCHEMA, Device, Document, Window


def read(text: bytes | str) -> Document:
    """Return the document that `findings.json` holds.

    Raises msgspec.DecodeError if it is not JSON, or not what the schema says.
    """
    return msgspec.json.decode(text, type=Document)


def schema() -> dict[str, Any]:
    """Return the JSON schema of `findings.json`."""
    (root,), parts = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    document = parts.pop(root["$ref"].rsplit("/", 1)[1])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **document,
        "title": "What tracelib found in one set of traces",
        "description": "Times are integer nanoseconds on the aligned timeline; shares are 0..1. "
        "A part that could not be computed is null and is in `abstained`; it is never 0.",
        "$defs": parts,
    }


def validate(document: Document) -> list[str]:
    """Return where the document contradicts itself, in a sentence each; an empty list if nowhere.

    Checked: the window's ends and length agree; per device the GPU states add up to the window, idle and
    collective wait to `lost_ns`, and the causes to `lost_ns`, to the nanosecond; files are named by base
    name.
    """
    window = document.window
    length = window.end_ns - window.start_ns
    return [
        *(
            [f"window: end - start is {length} ns, duration_ns says {window.duration_ns}"]
            if length != window.duration_ns
            else []
        ),
        *(
            f"devices[{n}]: {problem}"
            for n, device in enumerate(document.devices or ())
            for problem in _contradictions(device, window)
        ),
        *(
            f"sources[{n}]: {source.file!r} is a path, not a file's name"
            for n, source in enumerate(document.sources)
            if "/" in source.file or "\\" in source.file
        ),
    ]


def _contradictions(device: Device, window: Window) -> list[str]:
    time, lost = device.gpu_time_ns, device.lost_ns
    states = sum(msgspec.structs.astuple(time))
    shared_out = sum(row.ns for row in device.causes or ())
    problems = []
    if states != window.duration_ns:
        problems.append(f"states add up to {states} ns, the window is {window.duration_ns}")
    if lost is not None and lost != time.idle + time.collective_wait:
        problems.append(
            f"lost_ns is {lost}, idle and collective wait make {time.idle + time.collective_wait}"
        )
    if device.causes is not None and shared_out != lost:
        problems.append(f"causes add up to {shared_out} ns, lost_ns is {lost}")
    return problems
