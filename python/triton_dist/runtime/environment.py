# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Environment variables that hold numbers or sizes. docs/environment.md lists every variable of ours."""
import math
import os
import re
from pathlib import Path
from typing import Any, Callable

from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.folders import own_cache


def number(name: str, default: float, least: float = -math.inf, kind: Callable = float) -> float:
    """Value of a variable, as `kind` (float or int); `default` where it is unset or empty.

    Raises InvalidArgument for what is no finite number, or below `least`.
    """
    return _value(name, default, lambda text: parse_number(text, least, kind))


def parse_number(text: str, least: float = -math.inf, kind: Callable = float) -> float:
    """`text` as `kind`. Raises ValueError that says what was expected."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"expected {what}" + (f" of at least {least}" if least > -math.inf else ""))
    return value


def parse_size(text: str) -> int:
    """Bytes, with suffixes k, m, g. Raises ValueError that says what was expected."""
    match = re.fullmatch(r"(.+?)([kmg]?)(?:i?b)?", text.lower())
    try:
        size = int(float(match[1]) * 1024**" kmg".index(match[2] or " ")) if match else 0
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ValueError("expected a positive size such as 512M or 4G")
    return size


def heap_size(default: int) -> int:
    """TRITON_DIST_HEAP_SIZE: bytes of symmetric heap a rank, or the backend's default, rounded up to 2 MiB."""
    return -(-_value("TRITON_DIST_HEAP_SIZE", default, parse_size) // (2 << 20)) * (2 << 20)


def parse_nodes(text: str) -> tuple[int, int]:
    """(nodes, ranks of each) of words such as 2x4. Raises ValueError that says what was expected."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.lower())
    if match is None:
        raise ValueError("expected nodes x ranks per node, such as 2x4")
    return int(match[1]), int(match[2])


def nodes(world_size: int) -> int:
    """TRITON_DIST_NODES: into how many nodes of equal size a world of so many ranks is cut; 1 where it is unset.

    Raises InvalidArgument where the two do not fit.
    """
    count, each = _value("TRITON_DIST_NODES", (1, world_size), parse_nodes)
    if count * each != world_size:
        raise InvalidArgument(f"TRITON_DIST_NODES={count}x{each}: expected {world_size} ranks, as many as the world has, found "
                              f"{count * each}; start {count * each} ranks, or set other nodes")
    return count


def wait_timeout() -> float:
    """TRITON_DIST_WAIT_TIMEOUT: seconds after which a device wait gives up; 0 when waits are unbounded."""
    return min(number("TRITON_DIST_WAIT_TIMEOUT", 0.0, least=0), 1e9)      # 30 years: in nanoseconds it fits the context


def debug() -> bool:
    """TRITON_DIST_DEBUG: whether ops compare their calls over the ranks."""
    return os.environ.get("TRITON_DIST_DEBUG", "") not in ("", "0")


def traced() -> bool:
    """TRITON_DIST_TRACE: whether kernels are compiled to record what they do."""
    return os.environ.get("TRITON_DIST_TRACE", "") not in ("", "0")


SHARED = "TRITON_DIST_SHARE_GPUS: ranks that share a GPU take turns, so their times say nothing; unset it"


def share_gpus() -> bool:
    """TRITON_DIST_SHARE_GPUS: whether several ranks may run on one GPU. Results are right; times say nothing."""
    return os.environ.get("TRITON_DIST_SHARE_GPUS", "") not in ("", "0")


def logs() -> list[str]:
    """TRITON_DIST_LOG: names of the logs to print, such as "plans"; none where it is unset.

    Raises InvalidArgument for the name of no log.
    """
    return _value("TRITON_DIST_LOG", [], parse_logs)


def parse_logs(text: str) -> list[str]:
    """Names of logs, separated by commas. Raises ValueError that says what was expected."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if any(name != "plans" for name in names):
        raise ValueError("expected plans, the only log there is")
    return names


def cache_dir() -> Path:
    """TRITON_DIST_CACHE_DIR, or ~/.triton_dist."""
    return own_cache(os.environ)


def prebuilt() -> str | None:
    """USE_TRITON_DISTRIBUTED_AOT: the folder of a library of kernels, "" for its usual place, or None: none is used."""
    text = os.environ.get("USE_TRITON_DISTRIBUTED_AOT", "").strip()
    return None if text in ("", "0") else "" if text == "1" else text


def aot_record() -> str | None:
    """TRITON_DIST_AOT_RECORD: the file that rank 0 records launches in; None on others, and where it is unset."""
    text = os.environ.get("TRITON_DIST_AOT_RECORD", "").strip()
    return text if text and os.environ.get("RANK", "0") == "0" else None


def autotune() -> str:
    """TRITON_DIST_AUTOTUNE: "0" (never measure), "1" (measure shapes that no table has) or "force" (measure all again)."""
    return _value("TRITON_DIST_AUTOTUNE", "0", parse_autotune)


def parse_autotune(text: str) -> str:
    """`text` if it is a mode of tuning. Raises ValueError that says what was expected."""
    if text.lower() not in ("0", "1", "force"):
        raise ValueError("expected 0, 1 or force")
    return text.lower()


def _value(name: str, default: Any, parse: Callable) -> Any:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidArgument(f"{name}={text!r}: {error}") from None
