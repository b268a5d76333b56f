# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The state of the process that later tests would meet: what a test changes, it puts back.

A test that leaves such a change behind passes, and another one fails, in some orders only. So each test is compared before and
after (`conftest.py`).
"""
import functools
import os
import signal
import sys
import threading
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._config_module import _UNSET_SENTINEL, ConfigModule

from triton_dist.compat import torch as private

# Variables that libraries set at a first use. Inductor sets those of Triton in a process with GPUs.
SET_BY_LIBRARIES = ("PYTEST_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "KINETO_",
                    *(("TRITON_PTXAS_PATH", "TRITON_CACHE_DIR") if torch.cuda.is_available() else ()))


def process_state() -> dict[str, Any]:
    """{name: value} of torch's modes and defaults, the settings of its compiler, the environment, signal handlers and so on."""
    return {
        "grad mode": torch.is_grad_enabled(), "inference mode": torch.is_inference_mode_enabled(),
        "autocast": private.any_autocast(),
        "dispatch modes": private.dispatch_modes(), "function modes": private.function_modes(),
        "default dtype": torch.get_default_dtype(), "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "threads": torch.get_num_threads(),
        "folder": os.getcwd(), "trace function": sys.gettrace(), "profile function": sys.getprofile(),
        "switch interval": sys.getswitchinterval(),
        **({"SIGINT": signal.getsignal(signal.SIGINT), "SIGTERM": signal.getsignal(signal.SIGTERM)}
           if threading.current_thread() is threading.main_thread() else {}),
        **{f"${name}": value for name, value in os.environ.items() if not name.startswith(SET_BY_LIBRARIES)},
        **{f"{module.__name__}.{name}": value for module in config_modules(len(sys.modules))
           for name, value in settings(module).items()}}


@functools.lru_cache(1)
def config_modules(count: int) -> list[ConfigModule]:
    """The settings of torch among the modules that are imported. count: of these, which tells whether there may be more."""
    return [module for module in [*sys.modules.values()] if isinstance(module, ConfigModule)]


def settings(module: ConfigModule) -> dict[str, Any]:
    """The values that code has set, and the names that deleting has hidden, whose defaults are lost."""
    found = {}
    for name, entry in module._config.items():
        usual = entry.default if entry.env_value_default is _UNSET_SENTINEL else entry.env_value_default
        value = entry.user_override.get() if isinstance(entry.user_override, ContextVar) else entry.user_override
        if entry.hide:
            found[name] = "hidden"
        elif value is not _UNSET_SENTINEL and value != usual:
            found[name] = value
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for each name that has another value."""
    return [f"{name}: {before.get(name, 'not set')}, then {after.get(name, 'not set')}" for name in sorted({*before, *after})
            if before.get(name, changes) != after.get(name, changes)]
