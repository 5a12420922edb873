"""The bytes of one page: a frame with its id, columns of scalars as JSON, and typed JSON for what is no scalar. No pickle.

    frame    magic WNDP · version · crc32 · length · body
    body     page id u64 · length u32 · zlib( JSON of times, numbers, kind, names, cells ) · typed payloads, if kind is "typed"

Times and numbers are differences. Rows of scalars, which is what windows mostly hold, are one flat list of cells: they cost no
Python call a value. `kind` says what they were: "scalars", "rows" (tuples of one width), "records" (dicts with the same keys),
"named" (namedtuples, which come back as Records: read by attribute, name or position), "tuples" (topology
Tuples, with a table of where they came from), "typed" (anything else that the core's codec knows).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from windowing.core.codec import dumps, frame, loads, unframe
from windowing.core.pages import Rows
from windowing.errors import CorruptStateError, shown
from windowing.topology.records import Record, record_type
from windowing.topology.tuples import Fields, Origin, Tuple

__all__ = ["PAGE_MAGIC", "decode_page", "encode_page"]

PAGE_MAGIC = b"WNDP"
_HEAD = struct.Struct(">QI")
_SCALARS = {int, str, float, bool, type(None)}
_MAX_INFLATED = 2**31

_NO_TASKS: Mapping[str, range] = {}

Columns = dict[str, Any]


def encode_page(page_id: int, rows: Rows) -> bytes:
    """Return the bytes of a page. Raises TypeError for a payload that is not plain data. Cost: about 1 us a row of 3 numbers."""
    columns, typed = _payload_columns(rows.payloads)
    columns |= {"times": _differences(rows.timestamps), "numbers": _differences(rows.sequences)}
    text = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 1)
    return frame(PAGE_MAGIC, _HEAD.pack(page_id, len(text)) + text + typed)


def decode_page(page_id: int, blob: bytes, what: str, task_ids: Mapping[str, range] = _NO_TASKS) -> Rows:
    """Return the rows of `encode_page`; `what` names the page in the CorruptStateError, `task_ids` are today's."""
    body = unframe(PAGE_MAGIC, blob, what)
    try:
        stored_id, size = _HEAD.unpack_from(body)
        if stored_id != page_id:
            raise CorruptStateError(f"{what} holds page {stored_id} instead; restore from a copy, nothing was reset")
        split = _HEAD.size + size
        columns = json.loads(_inflated(body[_HEAD.size : split], what))
        payloads = _payloads(columns, body[split:], what, task_ids)
        return Rows(list(accumulate(columns["times"])), payloads, list(accumulate(columns["numbers"])))
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, IndexError) as problem:
        raise CorruptStateError(f"{what} cannot be read: {problem}; nothing was reset") from problem


def _inflated(data: bytes, what: str) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_INFLATED)
    if inflater.unconsumed_tail or not inflater.eof:
        raise CorruptStateError(f"{what} does not inflate to at most {_MAX_INFLATED} bytes; nothing was reset")
    return text


def _differences(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *(two - one for one, two in pairwise(numbers))]


def _payload_columns(payloads: list[Any]) -> tuple[Columns, bytes]:
    """Return payloads as columns, and as bytes what does not fit into them."""
    kinds = set(map(type, payloads))
    if kinds <= _SCALARS:
        return {"kind": "scalars", "cells": payloads}, b""
    if kinds == {tuple} and (cells := _cells(payloads)) is not None:
        return {"kind": "rows", "width": len(payloads[0]), "cells": cells}, b""
    if kinds == {dict} and (cells := _record_cells(payloads)) is not None:
        return {"kind": "records", "names": list(payloads[0]), "cells": cells}, b""
    if all(issubclass(kind, Tuple) for kind in kinds):
        return _tuple_columns(payloads)
    if any(hasattr(kind, "_fields") for kind in kinds):
        return _named_columns(payloads)
    return {"kind": "typed"}, dumps(payloads)


def _cells(rows: list[Any]) -> list[Any] | None:
    """Return the values of all rows, row by row, if they are scalars in rows of one width, and not of none."""
    if len(set(map(len, rows))) > 1 or not rows[0]:
        return None
    cells = list(chain.from_iterable(rows))
    return cells if set(map(type, cells)) <= _SCALARS else None


def _record_cells(records: list[dict[Any, Any]]) -> list[Any] | None:
    names = list(records[0])
    if set(map(type, names)) != {str} or any(list(each) != names for each in records):
        return None
    return _cells([each.values() for each in records])


def _tuple_columns(tuples: list[Tuple]) -> tuple[Columns, bytes]:
    """Return tuples of a topology: where each came from, by number, and their values. Their anchors are left behind."""
    numbers: dict[tuple[str, int, str, tuple[str, ...]], int] = {}
    origins = [
        numbers.setdefault(
            (each.source_component, each._origin.task, each.source_stream, tuple(each.get_fields())), len(numbers)
        )
        for each in tuples
    ]
    values, typed = _payload_columns([tuple(each.get_values()) for each in tuples])
    return {"kind": "tuples", "table": list(numbers), "origins": origins, "values": values}, typed


def _named_columns(rows: list[Any]) -> tuple[Columns, bytes]:
    """Return namedtuples: the names of each, by number, and their values."""
    numbers: dict[tuple[str, ...], int] = {}
    named = []
    for row in rows:
        names = row._positions if isinstance(row, Record) else getattr(row, "_fields", None)
        if names is None:
            raise TypeError(
                f"a window holds rows with names and one without: {shown(row)}; emit rows of one kind to a bolt with "
                "max_events_in_memory"
            )
        named.append(numbers.setdefault(tuple(names), len(numbers)))
    values, typed = _payload_columns(list(map(tuple, rows)))
    return {"kind": "named", "table": list(numbers), "named": named, "values": values}, typed


def _payloads(columns: Columns, typed: bytes, what: str, task_ids: Mapping[str, range] = _NO_TASKS) -> list[Any]:
    match columns["kind"]:
        case "scalars":
            return list(columns["cells"])
        case "rows":
            return _by_width(columns["cells"], columns["width"])
        case "records":
            names = columns["names"]
            return [dict(zip(names, row, strict=True)) for row in _by_width(columns["cells"], len(names))]
        case "named":
            makers = [record_type(tuple(names))._make for names in columns["table"]]
            values = _payloads(columns["values"], typed, what)
            return [makers[number](row) for row, number in zip(values, columns["named"], strict=True)]
        case "tuples":
            table = [
                Origin(component, task, Fields(fields), stream, task_ids)
                for component, task, stream, fields in columns["table"]
            ]
            values = _payloads(columns["values"], typed, what)
            return [Tuple(row, table[number]) for row, number in zip(values, columns["origins"], strict=True)]
        case "typed":
            return list(loads(typed, what))
    raise CorruptStateError(f"{what} has payloads of kind {columns['kind']!r}; use the version that wrote it")


def _by_width(cells: list[Any], width: int) -> list[Any]:
    each = iter(cells)
    return list(zip(*[each] * width, strict=True))
