# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a profiler is told of a launch: Triton's launch hooks, and so Proton, get it. Nothing is computed where none is set."""
from typing import Any, Callable

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8e4m3",
           "float8_e5m2": "fp8e5m2", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "i1"}


def describe(grid: tuple, metadata: Any, args: dict) -> dict:
    """The launch_metadata of every kernel of `triton_dist.jit` that has none of its own.

    Args:
        grid: of the launch.
        metadata: the compiled kernel's.
        args: its arguments by name, constexprs too.

    Returns:
        name: the kernel with shapes of tensors, integers and constexprs. constexprs: {name: value}.
    """
    shown = {name: _words(value) for name, value in args.items() if value is not None}
    tensors = [f"{name}={text}" for name, text in shown.items() if text and not name.isupper()]
    constexprs = {name: value for name, value in args.items() if name.isupper() and value is not None}
    words = [*tensors, *(f"{name}={value}" for name, value in constexprs.items() if isinstance(value, (bool, int, float, str)))]
    return {"name": f"{metadata.name}({', '.join(words)})", "constexprs": constexprs}


def counting(count: Callable[[dict], dict]) -> Callable[[tuple, Any, dict], dict]:
    """`describe` with what `count` gives of the arguments by name: flops16, bytes and the like, in Proton's words.

    Example:
        @jit(launch_metadata=counting(lambda args: {"flops16": 2.0 * args["m"] * args["n"] * args["k"]}))
    """
    def metadata(grid: tuple, compiled: Any, args: dict) -> dict:
        return {**describe(grid, compiled, args), **count(args)}
    return metadata


def product(rows: Callable[[dict], int], passes: int | Callable[[dict], int] = 1) -> Callable[[tuple, Any, dict], dict]:
    """Metadata of a product [rows, k] x [n, k]^T whose kernel has parameters n, k, and x or x_desc.

    Args:
        rows: gives the number of rows of the arguments by name.
        passes: how often each element of the output is loaded or stored; or a function that gives that number.
    """
    def count(args: dict) -> dict:
        size, m, n, k = itemsize(args.get("x", args.get("x_desc"))), rows(args), args["n"], args["k"]
        moves = passes(args) if callable(passes) else passes
        return {f"flops{8 * size}": 2.0 * m * n * k, "bytes": size * (m * k + n * k + moves * m * n)}
    return counting(count)


def itemsize(value: Any, default: int = 2) -> int:
    """Bytes of an element of a tensor or of a tensor descriptor."""
    value = getattr(value, "base", value) if not hasattr(value, "element_size") else value
    return value.element_size() if hasattr(value, "element_size") else default


def leading(value: Any) -> int | None:
    """Rows of a tensor or descriptor [rows, ...]; None for what has no shape."""
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None


def _words(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(getattr(value, "base", value), "dtype", None)
    if shape is not None and dtype is not None:
        kind = str(dtype).removeprefix("torch.")
        return f"{_DTYPES.get(kind, kind)}[{','.join(map(str, shape))}]"
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else ""
