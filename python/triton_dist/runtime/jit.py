# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton_dist.jit`: triton.jit whose kernels run on whatever this process has, GPU or emulator."""
import functools
import inspect
from typing import Callable, Iterable, Optional

from triton_dist.compat.triton import CompilationError, JITFunction, make_backend, overridden
from triton_dist.language.kernels_of_threads import lowered
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.launch_metadata import describe


class BackendLaunch:
    """Mixin over a JITFunction: hands launches and warm-ups to the backend, which links the device runtime."""

    def run(self, *args, grid, warmup, **kwargs):
        """What kernel[grid](...) and kernel.warmup(...) call."""
        warps = kwargs.get("num_warps", 4)
        if not isinstance(warps, int) or warps < 1 or warps & warps - 1:
            raise InvalidArgument(f"num_warps: expected a power of 2, found {warps!r}")
        if warmup:
            return backend().compile(self, grid, args, kwargs)
        return backend().launch(self, grid, args, kwargs)

    def run_compiled(self, args: tuple, kwargs: dict, grid, warmup: bool, extern_libs: dict):
        """Triton's own run, with `extern_libs` {key: path} linked beside those the caller named. For GPU backends."""
        libraries = {**(dict(kwargs.get("extern_libs") or ())), **extern_libs}
        try:
            return super().run(*args, grid=grid, warmup=warmup, **{**kwargs, "extern_libs": libraries})
        except CompilationError as error:
            cause = error               # in a function that the kernel calls, say dl.wait; Triton's words stop at the call
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if cause is not error:
                error.add_note(f"because: {cause}")
            raise

    def create_binder(self):
        """Triton's own, with TRITON_OVERRIDE_ARCH as the target. Triton takes the variable for an option only."""
        caches, keys, target, compiler, binder = super().create_binder()
        wanted = overridden(target)
        return (caches, keys, target, compiler, binder) if wanted == target else (caches, keys, wanted, make_backend(wanted),
                                                                                  binder)

    def __repr__(self):
        return f"{type(self).__name__}({self.module}:{self.fn.__qualname__})"


class DistJITFunction(BackendLaunch, JITFunction):
    """A JITFunction that leaves its launch to the backend.

    Everything else is Triton's: it can be called from other kernels, wrapped by autotune and heuristics, warmed up, and
    carries Triton's hooks.
    """

    _parsed: tuple = "", None

    def parse(self):
        """The syntax tree that Triton compiles. Triton asks for it each time that a kernel calls this function."""
        if self._parsed[0] != self.src:
            self._parsed = self.src, lowered(super().parse())
        return self._parsed[1]


@functools.cache
def _gluon_class() -> type:
    from triton_dist.compat.gluon import GluonJITFunction

    class DistGluonJITFunction(BackendLaunch, GluonJITFunction):
        """The same over a Gluon kernel."""

    return DistGluonJITFunction


def _decorator(make_class: Callable[[], type], fn: Optional[Callable], options: dict):

    def decorate(function):
        if not inspect.isfunction(function):
            raise InvalidArgument(f"jit expects a Python function, got {type(function).__name__}: put it innermost, "
                                  "below autotune and heuristics, and not above another jit decorator")
        return make_class()(function, **options)

    return decorate if fn is None else decorate(fn)


def jit(fn: Optional[Callable] = None, *, version=None, repr: Optional[Callable] = None,
        launch_metadata: Optional[Callable] = None, do_not_specialize: Optional[Iterable] = None,
        do_not_specialize_on_alignment: Optional[Iterable] = None, debug: Optional[bool] = None,
        noinline: Optional[bool] = None):
    """Decorator for kernels that use `triton_dist.language`. Its arguments are those of triton.jit.

    On a GPU the installed Triton compiles the kernel, with the device runtime linked in. Without a GPU, or with
    TRITON_INTERPRET=1, the kernel runs in the emulator. Without `launch_metadata`, profilers get the kernel's name with shapes of
    tensors, integers and constexprs.

    Example:
        @triton_dist.jit
        def signal(flag, peer):
            dl.notify(flag, peer, 1)
    """
    return _decorator(lambda: DistJITFunction, fn,
                      dict(version=version, do_not_specialize=do_not_specialize,
                           do_not_specialize_on_alignment=do_not_specialize_on_alignment, debug=debug,
                           noinline=noinline, repr=repr, launch_metadata=launch_metadata or describe))


def gluon_jit(fn: Optional[Callable] = None, **options):
    """`jit` for Gluon kernels: the backend launches them, with the device runtime linked in.

    Args:
        fn: the kernel; left out where options are given: `@gluon_jit(do_not_specialize=["n"])`.
        options: those of `gluon.jit`.

    Returns:
        A kernel that is launched as `kernel[grid](...)`.
    """
    return _decorator(_gluon_class, fn, {"launch_metadata": describe, **options})
