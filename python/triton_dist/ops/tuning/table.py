# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tables of measured times: what a file of them holds, and how it is read and written.

A file is {"format": 1, "entries": [...]}. An entry says where it was taken (Place), of what (Shape), when, and of each way to
run the op (Choice) the milliseconds, or why it failed. Shipped tables and the cache of a user have the same format.
"""
import json
import math
import os
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.files import locked, make_folder, write_shared

FORMAT = 1
_LOCK_SECONDS = 10.0            # a writer holds the lock for milliseconds


class Choice(NamedTuple):
    """A way to run an op: its method; of fused ones the tiling; inside a node in how many pieces a shard is pushed at most, 0:
    the op's own rule; and by how many SMs, 0: by the copy engine, over nodes by the op's own rule.

    in_graphs: for captured calls. The copy engine's pushes are such as a graph can hold, or comm_sms is the most that a rank
    uses. It is not measured, and no part of a table.
    """
    method: str
    config: GemmConfig | None = None
    pieces: int = 0
    comm_sms: int = 0
    in_graphs: bool = False

    def __str__(self) -> str:
        c = self.config
        tiling = f" {c.block_m}x{c.block_n}x{c.block_k} groups of {c.group_m}, {c.num_stages} stages" if c else ""
        pieces = f", {self.pieces} piece{'s' * (self.pieces > 1)}" if self.pieces else ""
        pushed = ", pushed by copies that a graph can hold" if self.in_graphs else ""
        if self.comm_sms:
            pushed = f", pushed by {'up to ' * self.in_graphs}{self.comm_sms} SM{'s' * (self.comm_sms > 1)}"
        return self.method + tiling + pieces + pushed


@cache
def choices(method: str, *configs: GemmConfig) -> tuple[Choice, ...]:
    """The method with each of these tilings."""
    return tuple([Choice(method, config) for config in configs])


@dataclass(frozen=True)
class Place:
    """What times depend on beside the shape. topology: ranks on each node, such as "4" or "8+8"; kernels: a hash of sources."""
    device: str
    world: int
    topology: str
    triton: str
    kernels: str


@dataclass(frozen=True)
class Shape:
    """Global sizes, summed over the ranks where they hold parts. dtype: torch's name, with that of the hops if it differs."""
    op: str
    dtype: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} M={self.m} N={self.n} K={self.k}"

    def kind(self) -> tuple:
        """Its class: sizes to the nearest power of two. A shape without figures of its own takes those of its class."""
        return (self.op, self.dtype, *[round(math.log2(max(1, size))) for size in (self.m, self.n, self.k)])

    _kind = cached_property(kind)

    def distance(self, other: "Shape") -> float:
        """How far apart two shapes of one class are."""
        return sum(abs(math.log2(max(1, a) / max(1, b)))
                   for a, b in ((self.m, other.m), (self.n, other.n), (self.k, other.k)))


@dataclass(frozen=True)
class Entry:
    """What was measured of one shape at one place: milliseconds of each choice, or why it failed."""
    place: Place
    shape: Shape
    date: str
    ms: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)

    def covers(self, methods: Iterable[str]) -> bool:
        """Whether it tells of each of these methods."""
        return set(methods) <= {choice.method for choice in (*self.ms, *self.failed)}

    def with_more(self, other: "Entry") -> "Entry":
        """This entry with the figures of a newer one in it."""
        ms = {choice: ms for choice, ms in self.ms.items() if choice not in other.failed}
        failed = {choice: why for choice, why in self.failed.items() if choice not in other.ms}
        return Entry(other.place, other.shape, other.date, {**ms, **other.ms}, {**failed, **other.failed})


def find(entries: dict, shape: Shape) -> Entry | None:
    """Of {Shape: Entry}: the shape's own, else the nearest of its class. Equal tables give equal answers on all ranks."""
    kind = shape.kind()                 # of a shape that is asked for once, and those of figures, which are kept
    alike = [other for other in entries if other._kind == kind]
    if len(alike) > 1:
        return entries[min(alike, key=lambda other: (other.distance(shape), str(other)))]
    return entries[alike[0]] if alike else None


def read(path: Path) -> list[Entry]:
    """The entries of a file; none where there is no file. Raises ValueError for what is no table, OSError where it must not."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"expected a table of format {FORMAT}")
        return [_entry(record) for record in content["entries"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (RecursionError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no table of measured times: {type(error).__name__}: {error}") from None


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Puts entries into a file, over those of the same place and shape. Others may do so at the same time.

    A file that is no table is moved aside, to a name with .bad behind. Raises OSError where the folder cannot be written to.
    """
    make_folder(path.parent)
    with locked(path, _LOCK_SECONDS):
        try:
            known = read(path)
        except ValueError:
            os.replace(path, f"{path}.bad")
            known = []
        merged = {(entry.place, entry.shape): entry for entry in (*known, *entries)}
        _write(path, merged.values())


def _write(path: Path, entries: Iterable[Entry]) -> None:
    ordered = sorted(entries, key=lambda entry: (str(entry.place), str(entry.shape)))
    lines = ",\n".join(json.dumps(_record(entry)) for entry in ordered)
    write_shared(path, f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n')


def _record(entry: Entry) -> dict:
    tried = [{**_choice_record(choice), "ms": float(f"{ms:.5g}")} for choice, ms in entry.ms.items()]
    tried += [{**_choice_record(choice), "failed": why} for choice, why in entry.failed.items()]
    return {**asdict(entry.place), **asdict(entry.shape), "date": entry.date, "tried": tried}


def _choice_record(choice: Choice) -> dict:
    found = {"method": choice.method}
    if choice.config is not None:
        found["config"] = choice.config._asdict()
    return {**found, **{name: count for name, count in (("pieces", choice.pieces), ("comm_sms", choice.comm_sms)) if count}}


def _entry(record: dict) -> Entry:
    entry = Entry(_made(Place, record), _made(Shape, record), str(record["date"]))
    for tried in record["tried"]:
        config = tried.get("config")
        choice = Choice(str(tried["method"]), None if config is None else _made(GemmConfig, config), int(tried.get("pieces", 0)),
                        int(tried.get("comm_sms", 0)))
        if "failed" in tried:
            entry.failed[choice] = str(tried["failed"])
        else:
            entry.ms[choice] = float(tried["ms"])
            if not 0 < entry.ms[choice] < math.inf:
                raise ValueError(f"ms: expected a time, found {tried['ms']!r}")
    return entry


def _made(cls: type, record: dict) -> Any:
    """A class whose fields are whole numbers and words, from a record that has them."""
    values = {name: record[name] for name in cls.__annotations__}
    for name, kind in cls.__annotations__.items():
        if type(values[name]) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}, found {values[name]!r}")
    return cls(**values)
