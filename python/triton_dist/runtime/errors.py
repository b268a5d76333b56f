# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every exception triton_dist raises on purpose. Messages say what was expected, what was found, what to do."""


class TritonDistError(RuntimeError):
    """Base class of all errors of triton_dist."""


class InvalidArgument(TritonDistError, ValueError):
    """A public function was called with an argument it cannot accept."""


class CollectiveMismatch(InvalidArgument):
    """Ranks call different collectives, or the same with different arguments."""


class NotInitialized(TritonDistError):
    """Something needs `triton_dist.initialize_distributed()` (or a virtual world) first."""


class OutOfHeap(TritonDistError, MemoryError):
    """The symmetric heap has no common free range of the requested size."""


class NotSymmetric(InvalidArgument):
    """A tensor that must lie in the symmetric heap does not."""


class UnsupportedFeature(TritonDistError, NotImplementedError):
    """A backend lacks something a kernel or an op asked for."""


class WorkspacePoisoned(TritonDistError):
    """An earlier call on this workspace failed after it took its epoch, so ranks may disagree."""


class DeviceFault(TritonDistError):
    """A kernel did something the device would fault on: out of bounds, misaligned, use after free."""

    kind = ""              # 'out-of-bounds', 'use-after-free', 'barrier-misuse', 'race' where it is known


class HangError(TritonDistError):
    """Nothing can move: ranks wait for each other, for a signal that nobody sends, or for a rank that has died."""


class WaitTimeout(HangError):
    """A bounded device wait (TRITON_DIST_WAIT_TIMEOUT) expired."""


def describe(error: BaseException) -> str:
    """The first line of `error`, with its type."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".removesuffix(": ")
