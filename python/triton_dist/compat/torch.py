# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Private names of torch. What some versions or builds lack is None there; OPTIONAL lists it."""
from typing import Any, Callable, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules import module as modules
from torch.utils import _python_dispatch

__all__ = ["FakeTensor"]

# Modes and the dispatcher. All are of the calling thread.
DispatchKey = torch._C.DispatchKey
ModeKey = torch._C._TorchDispatchModeKey                                # FAKE, PROXY, FUNCTIONAL
dispatch_modes = torch._C._len_torch_dispatch_stack                     # how many TorchDispatchModes are on
dispatch_mode_stack = _python_dispatch._get_current_dispatch_mode_stack     # those TorchDispatchModes
function_modes = torch._C._len_torch_function_stack                     # how many TorchFunctionModes, default devices among them
dispatch_mode = torch._C._get_dispatch_mode                             # the mode of a ModeKey, or None
disable_modes = _python_dispatch._disable_current_modes
DisableTorchFunction = torch._C.DisableTorchFunction
key_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
tracing_state = torch._C._get_tracing_state                             # of torch.jit.trace, or None
transforms = torch._C._functorch.peek_interpreter_stack                 # of torch.func, or None

# Autograd and autocast.
set_grad_enabled = torch._C._set_grad_enabled
any_requires_grad = torch._C._any_requires_grad
after_autograd_keyset = torch._C._after_autograd_keyset
BelowAutograd = torch._C._AutoDispatchBelowAutograd
any_autocast = torch._C._is_any_autocast_enabled
DisableAutocast = torch._C._DisableAutocast
neg_view = torch._neg_view                                              # a view with the negative bit


FORWARD_AD, DUAL_LEVEL = vars(forward_ad), "_current_level"              # FORWARD_AD[DUAL_LEVEL]: see dual_level; the quick way


def dual_level() -> int:
    """How many levels of forward-mode AD are open, less one."""
    return FORWARD_AD[DUAL_LEVEL]


def schema_of(operator: Any) -> Any:
    """The FunctionSchema of an OpOverload."""
    return operator._schema


def hooks_on_all_modules() -> bool:
    """Whether someone listens to the calls of all modules, or changes them."""
    return bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)


# Marks that torch.compile looks for on functions.
def mark_not_compiled(fn: Callable, why: str) -> None:
    """As torch.compiler.disable, without a wrapper: the graph breaks at a call of fn."""
    fn._torchdynamo_disable = True
    fn._torchdynamo_disable_msg = why


def mark_compiled_as(fn: Callable, traced: Callable) -> None:
    """torch.compile looks into `traced` where fn is called, as it does for torch.jit.script."""
    fn._torchdynamo_inline = traced


def mark_constant(fn: Callable) -> None:
    """As torch.compiler.assume_constant_result, without importing the compiler."""
    fn._dynamo_marked_constant = True


# CUDA and ROCm.
cuda_device: Optional[Callable] = getattr(torch._C, "_cuda_getDevice", None)
cuda_raw_stream: Optional[Callable] = getattr(torch._C, "_cuda_getCurrentRawStream", None)
fp32_precision = torch._C._get_fp32_precision_getter                    # "tf32", "ieee" or "none", of a backend and an operation
cuda_sleep: Callable = torch.cuda._sleep                                # a kernel that spins for some cycles
try:                                                                    # what compiled code allocates by, past the dispatcher
    from torch._C._dynamo.guards import _empty_strided_cuda as cuda_empty
except ImportError:
    cuda_empty = None
try:                                                                    # compares types, keys, dtypes, devices, sizes, strides
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None
try:                                                                    # tells torch.compile to leave a code object alone
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
except ImportError:
    set_code_exec_strategy = SKIP = None

OPTIONAL = ("cuda_device", "cuda_raw_stream", "cuda_empty", "TensorGuards", "set_code_exec_strategy", "SKIP")
