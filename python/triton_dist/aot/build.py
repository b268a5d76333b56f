# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Compiles one variant of a kernel for one target. Needs no GPU."""

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator

from triton_dist.aot.layout import Parameter, TensorMap, check_against_gcn, check_against_ptx, parameters_of, tensor_maps_of
from triton_dist.aot.spaces import Variant
from triton_dist.aot.targets import Target
from triton_dist.backends.gpu.device_runtime import library
from triton_dist.backends.gpu.prebuilt import identity
from triton_dist.backends.gpu.thread_functions import library as thread_library
from triton_dist.language._call import LIBRARY
from triton_dist.language.kernels_of_threads import of_threads
from triton_dist.language.threads_abi import LIBRARY as THREAD_LIBRARY
from triton_dist.runtime.context import SYMBOL

_NVSHMEM = b"nvshmemi_device_lib_version_d"


@dataclass(frozen=True)
class Built:
    """A compiled variant.

    key: what it is the compilation of (`backends.gpu.prebuilt.identity`). symbol: its name in `binary`.
    block: threads of a program. shared: bytes of dynamic shared memory. scratch: (bytes of a program, alignment) of global
    memory. context, nvshmem: whether it has the context global, or calls NVSHMEM. overlaps: it waits for the kernel ahead by
    itself, so it may be launched before that one has ended.
    """

    variant: Variant
    target: Target
    key: str
    symbol: str
    binary: bytes
    block: int
    shared: int
    clusters: int
    scratch: tuple
    profile_scratch: tuple
    cooperative: bool
    overlaps: bool
    context: bool
    nvshmem: bool
    parameters: tuple[Parameter, ...]
    maps: tuple[TensorMap, ...]
    assembler: str


def build(kernel: Any, variant: Variant, target: Target) -> Built:
    """Compiles `variant` of `kernel`. Raises what Triton's compiler raises."""
    return _built(variant, target, key_of(kernel, variant, target), compile_variant(kernel, variant, target))


def compile_variant(kernel: Any, variant: Variant, target: Target, lines: bool = False, cache: str | None = None) -> Any:
    """Triton's compilation of `variant` of `kernel`. Raises what Triton's compiler raises.

    Args:
        lines: whether the code has line numbers, which are two thirds of a binary and change no instruction.
        cache: a folder in place of Triton's own cache.
    """
    import triton

    options, constants, attrs = _options(kernel, variant, target), *_by_position(kernel, variant)
    with _environment({} if lines else {"TRITON_DISABLE_LINE_INFO": "1"}, {} if cache is None else {"TRITON_CACHE_DIR": cache}):
        source = _source_class(kernel)(kernel, signature=variant.signature, constexprs=constants, attrs=attrs)
        return triton.compile(source, target=target.triton, options=dict(options))


def key_of(kernel: Any, variant: Variant, target: Target) -> str:
    """The identity of what `build` compiles."""
    from triton_dist.compat.compiler import make_backend

    constants, attrs = _by_position(kernel, variant)
    options = make_backend(target.triton).parse_options(dict(_options(kernel, variant, target)))
    return identity(kernel, variant.signature, constants, attrs, options, str(target))


def _by_position(kernel: Any, variant: Variant) -> tuple[dict, dict]:
    """(constants, attributes) as Triton's compiler takes them."""
    names = list(kernel.arg_names)
    constants = {(names.index(name),): value for name, value in variant.constants.items()}
    return constants, {(names.index(name),): [["tt.divisibility", 16]] for name, hint in variant.hints.items() if hint == 16}


def _source_class(kernel: Any) -> type:
    if kernel.is_gluon():
        from triton_dist.compat.gluon import GluonASTSource

        return GluonASTSource
    from triton_dist.compat.compiler import ASTSource

    return ASTSource


def _options(kernel: Any, variant: Variant, target: Target) -> dict:
    options = dict(variant.options)
    if target.vendor == "hip":
        from triton_dist.backends.amd import machines

        given = {**variant.constexprs, **options}
        options = {name: value for name, value in machines.options(given).items() if name not in variant.constexprs}
    else:
        from triton_dist.backends.nvidia.options import options as of_variables

        options = of_variables(options)
    if target.vendor != "cuda" or target.arch < 90:
        options.pop("launch_pdl", None)  # a hint, which others refuse
    options["extern_libs"] = {**options.get("extern_libs", {}), LIBRARY: library(target.backend)}
    if of_threads(kernel):
        options["extern_libs"][THREAD_LIBRARY] = thread_library(target.backend)
    return options


@contextmanager
def _environment(*values: dict) -> Iterator[None]:
    """With these variables set."""
    new = {name: value for some in values for name, value in some.items()}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _built(variant: Variant, target: Target, key: str, compiled: Any) -> Built:
    meta, binary = compiled.metadata, compiled.asm["cubin" if target.vendor == "cuda" else "hsaco"]
    text = compiled.asm.get("ptx", "")
    parameters, maps = parameters_of(variant, meta), tensor_maps_of(meta)
    if text:
        check_against_ptx(meta.name, parameters, text)
    else:
        check_against_gcn(meta.name, parameters, compiled.asm["amdgcn"])
    threads = re.search(r"\.reqntid (\d+)", text)
    return Built(
        variant,
        target,
        key,
        meta.name,
        binary,
        block=int(threads[1]) if threads else meta.num_warps * meta.warp_size,
        shared=meta.shared,
        clusters=meta.num_ctas,
        scratch=(getattr(meta, "global_scratch_size", 0), getattr(meta, "global_scratch_align", 1)),
        profile_scratch=(meta.profile_scratch_size, meta.profile_scratch_align),
        cooperative=bool(meta.launch_cooperative_grid),
        overlaps="griddepcontrol.wait" in text and not meta.launch_cooperative_grid,
        context=SYMBOL.encode() in binary,
        nvshmem=_NVSHMEM in binary,
        parameters=parameters,
        maps=maps,
        assembler=_assembler(binary, text),
    )


def _assembler(binary: bytes, text: str) -> str:
    """Which assembler made it, as far as can be read off: a driver has to know its version."""
    version = re.search(r"^\.version (\S+)", text, re.M)
    return f"PTX {version[1]}" if version else "LLVM"
