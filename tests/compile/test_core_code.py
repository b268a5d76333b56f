# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core compiled for sm_90: the order of its synchronisation, and what it costs."""
import re
import subprocess

import pytest
from compile_util import compile_kernel, instructions, position
from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas
from triton.experimental.gluon import language as gl

from triton_dist.cores.hopper.ag_gemm_ws import ag_gemm_by_sms_ws_kernel, ag_gemm_ws_kernel
from triton_dist.cores.hopper.cores import BOX_BYTES, BOX_ROWS
from triton_dist.cores.hopper.gemm_rs_ws import gemm_rs_ws_kernel

TMA_LOAD, TMA_STORE = r"cp\.async\.bulk\.tensor\.\dd\.shared", r"cp\.async\.bulk\.tensor\.\dd\.global"
_DTYPES = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}


def layout(dtype: str, *block: int):
    return gl.NVMMASharedLayout.get_default_for(list(block), _DTYPES[dtype])


def descriptor(dtype: str, *block: int) -> str:
    return f"tensordesc<{dtype}[{','.join(map(str, block))}],{layout(dtype, *block)!r}>"


def compiled(kernel, dtype: str = "bf16", hop: str | None = None, narrow: bool = False, columns: bool = False,
             gated: bool = False):
    """The core as on H100: 128 x 256 x 64, or 128 x 128 x 64 where sums travel in fp32 or a chunk is less than a wave."""
    hop = hop or dtype
    m, n, k = 128, 128 if hop == "fp32" or narrow else 256, 64
    weights = (k, n) if columns else (n, k)
    constants = dict(HAS_BIAS=True, COLUMNS=columns, STAGES=5 if narrow else 3, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8)
    types = dict(x_desc=descriptor(dtype, m, k), gathered_desc=descriptor(dtype, m, k), w_desc=descriptor(dtype, *weights),
                 out_desc=descriptor(dtype, m, n), bias=f"*{dtype}", flags="*i32", next_flags="*i32", control="*i32")
    types.update({name: descriptor(hop, m, n) for name in ("slots_even", "slots_odd")})
    box = min(m, BOX_ROWS), min(n, BOX_BYTES * 8 // _DTYPES[hop].primitive_bitwidth)
    types.update({name: descriptor(hop, *box) for name in ("next_even", "next_odd")})
    if kernel is not gemm_rs_ws_kernel:
        width = n // 2 if gated else n
        types["out_desc"], types["out_narrow_desc"] = descriptor(dtype, 1, m, width), descriptor(dtype, 1, m, width // 2)
        types["w_desc"] = descriptor(dtype, *(weights if columns else (width, k)))
        types["w_narrow_desc"] = descriptor(dtype, *(weights if columns else (width // 2, k)))
        constants.update(STAGING=layout(dtype, m, width), NARROW=not columns, GATED=gated)
        constants["STAGES"] += gated
    if kernel is ag_gemm_by_sms_ws_kernel:
        constants.update(MOST=32)
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    return compile_kernel(kernel, signature, constants, "sm_90", num_warps=8)


@pytest.fixture(scope="module")
def ring():
    return instructions(compiled(gemm_rs_ws_kernel))


@pytest.fixture(scope="module")
def gather():
    return instructions(compiled(ag_gemm_ws_kernel))


@pytest.fixture(scope="module")
def gather_by_sms():
    return instructions(compiled(ag_gemm_by_sms_ws_kernel))


@pytest.mark.parametrize("which", ["ring", "gather", "gather_by_sms"])
def test_a_peers_data_is_loaded_behind_acquire_and_proxy_fence(which, request):
    """Protocol rule 2, in the loader warp: poll, acquire at system scope, async-proxy fence, TMA load."""
    lines = request.getfixturevalue(which)
    fences = [i for i, line in enumerate(lines) if "fence.proxy.async.global" in line]
    after_wait = [i for i in fences if any("fence.acquire.sys" in lines[j] or "ld.acquire.sys" in lines[j]
                                           for j in range(max(0, i - 12), i))]
    assert after_wait, "no proxy fence after an acquire"
    assert sum(bool(re.search(r"ld\.(relaxed|acquire)\.sys", line)) for line in lines) >= len(after_wait), "who polls?"
    for fence in after_wait:
        acquire = max(j for j in range(fence) if "fence.acquire.sys" in lines[j] or "ld.acquire.sys" in lines[j])
        position(lines, TMA_LOAD, fence)
        assert not any(re.search(TMA_LOAD, lines[j]) for j in range(acquire, fence)), "a TMA load before the proxy fence"


def test_a_tile_is_signalled_behind_its_completed_store(ring):
    """Protocol rule 1, in the storer warp: TMA store, wait for completion (not just .read), proxy fence, release."""
    release = position(ring, r"st\.release\.sys\.global|red\.release\.sys\.global")
    wait = max(i for i in range(release) if re.search(r"cp\.async\.bulk\.wait_group 0", ring[i]))
    store = max(i for i in range(wait) if re.search(TMA_STORE, ring[i]))
    read = max(i for i in range(wait) if "wait_group.read" in ring[i])
    fence = position(ring, r"fence\.proxy\.async\.global", wait)
    assert store < read < wait < fence < release
    free = position(ring, r"mbarrier\.arrive", read)
    assert free < wait, "the staging buffer is freed after the read, before the write is complete"


@pytest.mark.parametrize("which", ["ring", "gather", "gather_by_sms"])
def test_roles_keep_their_registers_and_tensor_cores(which, request):
    text = "\n".join(request.getfixturevalue(which))
    assert "wgmma.mma_async.sync.aligned.m64n256k16" in text
    assert re.search(r"setmaxnreg\.inc\S*\s+240", text) and re.search(r"setmaxnreg\.dec\S*\s+24", text)
    assert "bar.sync 0" not in text.split("fence.proxy.async.global")[1], "a CTA barrier inside a role"


def assert_assembles_well(built, tmp_path):
    """ptxas keeps wgmma asynchronous, spills a few words a tile, and none inside a loop over K.

    Where it cannot, it waits after every wgmma: 25 % slower, measured on H100.
    """
    source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(built.asm["ptx"])
    told = subprocess.run([get_ptxas(90).path, "-v", "--gpu-name", "sm_90a", source, "-o", cubin], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "serialized" not in told.stderr, told.stderr
    assert int(re.search(r"(\d+) bytes spill stores", told.stderr)[1]) <= 64, told.stderr
    sass = subprocess.run([knobs.nvidia.nvdisasm.path, cubin], capture_output=True, text=True, check=True).stdout
    loops = loops_with_wgmma(sass)
    assert loops, "no loop over K"
    for loop in loops:
        assert not re.search(r"\b(LDL|STL)\b", loop), loop


def loops_with_wgmma(sass: str) -> list[str]:
    """The innermost loops that multiply: from a label to a branch back to it, with no other label's loop inside."""
    lines, found = sass.splitlines(), []
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if re.fullmatch(r"\.L\w+:", line.strip())}
    for end, line in enumerate(lines):
        branch = re.search(r"\bBRA\b.*`\((\.L\w+)\)", line)
        if branch and labels.get(branch[1], end) < end:
            found.append((labels[branch[1]], end))
    innermost = [one for one in found if not any(one[0] <= other[0] and other[1] <= one[1] for other in found if other != one)]
    texts = ["\n".join(lines[start:end]) for start, end in innermost]
    return [text for text in texts if "HGMMA" in text]


@pytest.mark.parametrize("kernel, options", [
    (ag_gemm_ws_kernel, {}), (ag_gemm_by_sms_ws_kernel, {}), (gemm_rs_ws_kernel, {}), (gemm_rs_ws_kernel, {"narrow": True}),
    (ag_gemm_ws_kernel, {"columns": True}), (gemm_rs_ws_kernel, {"columns": True}), (ag_gemm_ws_kernel, {"gated": True}),
    (ag_gemm_by_sms_ws_kernel, {"gated": True})])
def test_the_assembler_keeps_wgmma_asynchronous(kernel, options, tmp_path):
    assert_assembles_well(compiled(kernel, **options), tmp_path)


@pytest.mark.parametrize("kernel, dtype, hop", [(ag_gemm_ws_kernel, "fp16", None), (gemm_rs_ws_kernel, "fp16", None),
                                                (gemm_rs_ws_kernel, "bf16", "fp32")])
def test_other_types_fit(kernel, dtype, hop):
    built = compiled(kernel, dtype, hop)
    assert built.metadata.num_warps == 12 and built.metadata.shared <= 227 * 1024


@pytest.mark.every("kernel")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kernel", [ag_gemm_ws_kernel, ag_gemm_by_sms_ws_kernel])
def test_gate_and_up_are_joined_in_the_threads_that_have_them(kernel, dtype):
    """Two instructions of the special function unit for each element, nothing by way of other threads, and half-wide stores."""
    built = compiled(kernel, dtype, gated=True)
    assert built.metadata.num_warps == 12 and built.metadata.shared <= 227 * 1024
    text, plain = ("\n".join(instructions(each)) for each in (built, compiled(kernel, dtype)))
    outputs = 128 * (128 + 64) // 256                           # of a thread, in a wide tile and in a narrow one
    assert len(re.findall(r"ex2\.approx\.ftz\.f32", text)) == len(re.findall(r"rcp\.approx\.ftz\.f32", text)) == outputs
    assert not re.search(r"div\.full|\.local", text) and len(re.findall("shfl", text)) == len(re.findall("shfl", plain))
    assert len(re.findall(r"bar\.sync", text)) <= len(re.findall(r"bar\.sync", plain)) + 1
    stores = [len(re.findall(r"stmatrix\S*\.x4", each)) for each in (text, plain)]
    assert stores[0] == outputs // 8 and stores[1] == 2 * stores[0]
    assert len(re.findall(TMA_LOAD, text)) == len(re.findall(TMA_LOAD, plain)) + 2     # of wide tiles and of narrow ones
