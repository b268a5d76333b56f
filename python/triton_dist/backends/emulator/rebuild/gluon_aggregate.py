# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Aggregates (compat.triton.aggregate): classes of kernel values whose methods are jit functions.

Triton 3.6 has them with a constructor that the class defines; 3.9 also makes one from the fields, with defaults, and
freezes what it has made. Fields are checked against their annotations, as Triton does while it traces.
"""
import inspect
import types
from typing import Any

from triton.language import core
from triton_dist.compat.triton import ConstexprFunction

from triton_dist.backends.emulator.engine.registry import invalid, site
from triton_dist.backends.emulator.memory.descriptors import Descriptor
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.rebuild import rebuild
from triton_dist.backends.emulator.rebuild.statements import RUNTIME
from triton_dist.backends.emulator.values.promotion import NEWER
from triton_dist.backends.emulator.values.scalars import Scalar
from triton_dist.backends.emulator.values.tensors import Tensor
from triton_dist.runtime.errors import UnsupportedFeature

_DESCRIPTORS = ("tensor_descriptor", "tensor_descriptor_base")


class Aggregate:
    """Base of all rebuilt aggregates."""
    _fields: dict = {}                   # name -> annotation
    _open = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise invalid(f"{type(self).__name__} has no field {name!r}")
        if not self._open:
            raise invalid(f"field {name!r} of {type(self).__name__} assigned after its constructor: aggregates are "
                          "immutable, make a copy with aggregate_replace")
        if isinstance(value, core.constexpr):
            value = value.value
        wanted = self._fields[name]
        if not _fits(value, wanted):
            raise invalid(f"field {name!r} of {type(self).__name__}: expected {getattr(wanted, '__name__', wanted)}, "
                          f"found {value!r}")
        object.__setattr__(self, name, value)


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is core.tensor:
        return isinstance(value, (Scalar, Tensor))
    if wanted is core.constexpr:
        return not isinstance(value, RUNTIME)
    if wanted is core.tuple:
        return isinstance(value, tuple)
    if getattr(wanted, "__triton_aggregate__", False):
        return isinstance(value, rebuilt(wanted))
    name = getattr(wanted, "__name__", "")
    if name == "shared_memory_descriptor":
        return isinstance(value, View)
    return isinstance(value, Descriptor) if name in _DESCRIPTORS else True


def _fields_of(kind: Any) -> dict:
    """Names and annotations of the fields; 3.6 keeps them in a closure, as written on the class."""
    if hasattr(kind, "__aggregate_fields__"):
        return dict(kind.__annotations__)
    return dict(inspect.getclosurevars(kind.__setattr__).nonlocals["cls"].__annotations__)


def _constructor(kind: Any, fields: dict) -> Any:
    start = kind.hash_attrs[0]
    if start.__module__ == core.__name__:        # made by Triton 3.9 from the fields
        defaults = kind.__aggregate_defaults__

        def start(self: Any, *args: Any, **kwargs: Any) -> None:
            given = {**defaults, **dict(zip(fields, args)), **kwargs}
            twice = kwargs.keys() & set(list(fields)[:len(args)])
            if len(args) > len(fields) or given.keys() != fields.keys() or twice:
                raise invalid(f"{kind.__name__}: expected the fields {', '.join(fields)}, found {len(args)} by position "
                              f"and {', '.join(kwargs) or 'none'} by name")
            for name in fields:
                setattr(self, name, given[name])
        return start
    if "_semantic" in inspect.signature(getattr(start, "fn", start)).parameters:
        raise UnsupportedFeature(f"the emulator cannot construct {kind.__name__}: its __init__ takes _semantic, at "
                                 f"{site()}")
    if isinstance(start, ConstexprFunction):
        return start.fn
    return rebuild.build(start) if rebuild.is_jit(start) else start


def rebuilt(kind: Any) -> type:
    """An aggregate class as rebuilt code sees it. It is kept on the class itself and goes with it."""
    if "__tdist_rebuilt__" not in vars(kind):
        kind.__tdist_rebuilt__ = _rebuild(kind)
    return kind.__tdist_rebuilt__


def _rebuild(kind: Any) -> type:
    members: dict = {"_fields": _fields_of(kind), "__triton_aggregate__": True, "__doc__": kind.__doc__}
    members["__aggregate_fields__"] = tuple(members["_fields"])
    made = type(kind.__name__, (Aggregate, ), members)
    for name, member in inspect.getmembers(kind):
        if name.startswith("__") or name in ("_get_instance", "_flatten_ir", "_set_name"):
            continue
        if isinstance(member, ConstexprFunction):
            setattr(made, name, member.fn)
        elif rebuild.is_jit(member) or isinstance(member, types.FunctionType):
            setattr(made, name, rebuild.build(member))
    start = _constructor(kind, members["_fields"])

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        if len(self.__dict__) != len(self._fields):
            missing = [name for name in self._fields if name not in self.__dict__]
            raise invalid(f"the constructor of {kind.__name__} did not set {', '.join(missing)}")
        if NEWER:
            object.__setattr__(self, "_open", False)

    made.__init__ = construct
    return made
