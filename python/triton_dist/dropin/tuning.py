# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published autotuner of host functions, `triton_dist.tune.autotune`."""
import functools
import math
from typing import Any, Callable, Sequence

from triton_dist.dropin.timing import perf_func
from triton_dist.runtime.errors import HangError, InvalidArgument, UnsupportedFeature, describe
from triton_dist.runtime.groups import resolve

_WARM_UPS, _TURNS = 5, 10


def to_hashable(value: Any) -> Any:
    """A key of a tensor: its shape, strides and dtype; of anything else, itself."""
    if hasattr(value, "stride") and hasattr(value, "dtype"):
        return tuple(value.shape), tuple(value.stride()), str(value.dtype)
    return value


def autotune(config_space: Sequence[dict], key_fn: Callable, prune_fn: Callable | None = None) -> Callable:
    """Decorator of a host function that takes a configuration by keyword.

    A call with `autotune=True` times every configuration, once for each key, and keeps the one whose slowest rank is fastest.
    A call without takes the first that `prune_fn` allows, unless the key has been tuned. Collective over the world. What fails
    on one rank is ruled out on all; where nothing is left, all raise UnsupportedFeature with the first reason.
    """
    if not config_space:
        raise InvalidArgument("config_space: expected at least one configuration, found none")

    def decorate(fn: Callable) -> Callable:
        chosen: dict = {}

        @functools.wraps(fn)
        def tuned(*args: Any, autotune: bool = False, autotune_verbose: bool = False, autotune_pg: Any = None,
                  **kwargs: Any) -> Any:
            if set(config_space[0]) & set(kwargs):               # the caller has chosen
                return fn(*args, **kwargs)
            key = key_fn(*args, **kwargs)
            allowed = [c for c in config_space if prune_fn is None or prune_fn(c, *args, **kwargs)] or list(config_space[:1])
            if autotune and key not in chosen:
                mine = [_timed(lambda c=c: fn(*args, **kwargs, **c)) for c in allowed]
                everyone = resolve(autotune_pg).all_gather_object(mine)
                slowest = [max(ms for ms, _ in column) for column in zip(*everyone)]
                if min(slowest) == math.inf:
                    why = next(why for theirs in everyone for _, why in theirs if why)
                    raise UnsupportedFeature(f"{fn.__name__}: each of {len(allowed)} configurations fails on some rank: {why}")
                chosen[key] = allowed[slowest.index(min(slowest))]
                if autotune_verbose:
                    print(f"{fn.__name__}: {chosen[key]}, {min(slowest):.3f} ms", flush=True)
            return fn(*args, **kwargs, **chosen.get(key, allowed[0]))
        return tuned
    return decorate


def _timed(call: Callable) -> tuple[float, str]:
    """(milliseconds of a call, ""), or (infinity, why it failed)."""
    try:
        return perf_func(call, _TURNS, _WARM_UPS)[1], ""
    except HangError:
        raise                           # nothing that ranks could agree on
    except Exception as error:          # whatever a compiler or a driver raises
        return math.inf, describe(error)
