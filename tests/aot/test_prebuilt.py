# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops that launch from a library: they find the binary that would be compiled, and go on without one."""

import json
import logging
import os
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from triton_dist.aot import ours, spaces_of
from triton_dist.aot.build import key_of
from triton_dist.aot.spaces import variants_of
from triton_dist.aot.targets import parse_targets
from triton_dist.backends.gpu.device_runtime import library as device_runtime
from triton_dist.backends.gpu.prebuilt import Prebuilt, identity, specialised
from triton_dist.cores.hopper import cores
from triton_dist.runtime import environment
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.device import Device

(HOPPER,) = parse_targets("cuda:90")


@pytest.fixture
def hopper():
    """Triton believes that there is a Hopper device."""
    from triton.runtime import driver

    from triton_dist.runtime.backend import backend

    backend()  # the emulator puts its own driver there, once
    before = driver.active
    driver.set_active(SimpleNamespace(get_current_device=lambda: 0, get_current_target=lambda: GPUTarget("cuda", 90, 32)))
    yield
    driver.set_active(before)


def aligned(*shape, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def words(n: int) -> torch.Tensor:
    return aligned(n, dtype=torch.int32)


def again(kernel):
    """The kernel without its caches, which belong to another driver, and stay without those of this one."""
    return type(kernel)(kernel.fn, do_not_specialize=kernel.do_not_specialize)


def wanted(kernel, args: tuple, options: dict) -> str:
    """The identity of what a launch would compile."""
    kernel = again(kernel)
    signature, constexprs, attrs, parsed, target = specialised(
        kernel, args, dict(options, extern_libs={"tdist": device_runtime("nvidia")})
    )
    return identity(kernel, signature, constexprs, attrs, parsed, target)


def has(kernel, args: tuple, options: dict) -> bool:
    """Whether one of the variants that are declared is that."""
    key = wanted(kernel, args, options)
    return key in {
        key_of(kernel, variant, HOPPER) for space in spaces_of(kernel) for variant in variants_of(kernel, space, "cuda:90")
    }


def gemm_plan(m: int, n: int, k: int, config: GemmConfig):
    """As much of a plan as the core's arguments are made of; two ranks."""
    pitch = -(-m // config.block_m) * config.block_m
    halves = [aligned(2 * pitch * k), aligned(2 * pitch * k)]
    gather = SimpleNamespace(
        control=words(1024),
        programs=4,
        pushers=4,
        most=32,
        pieces=2,
        piece_tiles=1,
        half_rows=2 * pitch,
        data=aligned((4 * pitch + 1) * k),
    )
    return SimpleNamespace(
        m=m,
        n=n,
        k=k,
        config=config,
        pitch=pitch,
        dtype=torch.bfloat16,
        hop_dtype=torch.bfloat16,
        hops=1,
        columns=False,
        gated=False,
        group=SimpleNamespace(size=2, rank=0, world_ranks=(0, 1)),
        gather=gather,
        halves=halves,
        programs=8,
        space=SimpleNamespace(
            flags=words(4096), control=words(2048), halves=lambda dtype: halves, derived=lambda key, make: make()
        ),
    )


@pytest.mark.parametrize("block_n, stages, bias", [(256, 3, True), (128, 5, False)])
@pytest.mark.parametrize("n", [2304, 256])
def test_the_library_has_what_ag_gemm_launches_on_hopper(hopper, block_n, stages, bias, n):
    """Wide tiles alone, or with a last wave in halves."""
    plan = gemm_plan(256, n, 256, GemmConfig(128, block_n, 64, group_m=8, num_warps=8, num_stages=stages))
    x, weight, out, b = aligned(plan.m, plan.k), aligned(n, plan.k), aligned(2 * plan.m, n), aligned(n) if bias else None
    for bind, kernel in ((cores._AgGemm, ours.ag_gemm), (cores._AgGemmBySms, ours.ag_gemm_by_sms)):
        call = bind(plan, bias)
        assert has(kernel, call.described(x, weight, b, out, 1), call.options)


@pytest.mark.parametrize("block_n, stages", [(256, 3), (128, 5)])
def test_the_library_has_what_gemm_rs_launches_on_hopper(hopper, monkeypatch, block_n, stages):
    monkeypatch.setattr(cores, "peer_tensor", lambda t, rank: t)
    plan = gemm_plan(256, 512, 256, GemmConfig(128, block_n, 64, group_m=8, num_warps=8, num_stages=stages))
    call = cores._GemmRs(plan, False)
    x, weight, out = aligned(512, 256), aligned(512, 256), aligned(256, 512)
    assert has(ours.gemm_rs, call.described(x, weight, None, out), dict(call.options, launch_cooperative_grid=True))
    assert not has(ours.gemm_rs, call.described(x, weight, None, out), call.options), "not cooperative"


@pytest.mark.parametrize("pieces", [1, 3])
def test_the_library_has_what_pushes_shards(hopper, pieces):
    args = (
        aligned(1 << 20),
        aligned(1 << 21),
        words(4096),
        words(1024),
        words(400),
        1 << 20,
        1 << 19,
        1 << 19,
        1 << 18,
        pieces,
        4,
    )
    assert has(ours.ag_gemm_push, args, dict(BLOCK=8192, MOST=32, num_warps=16))
    assert not has(ours.ag_gemm_push, (args[0][1:], *args[1:]), dict(BLOCK=8192, MOST=32, num_warps=16)), "off by two bytes"


def test_the_library_has_what_all_reduce_launches(hopper):
    x = aligned(1 << 16)
    args = x, x, words(1 << 16), 1 << 15, words(256), words(400), 1 << 16, 1 << 13, 1
    options = dict(THREADS=1024, EACH=1, num_warps=32, WORLD=2, OP="sum", WHOLE=True, num_stages=1)
    assert has(ours.all_reduce_one_hop, args, dict(options, SCATTER=False)) and has(ours.all_reduce_two_hops, args, options)
    assert not has(ours.all_reduce_two_hops, args, dict(options, OP="max"))
    pushed = x, x, aligned(1 << 18), 1 << 17, words(4096), 2048, words(1024), words(400), 1 << 16, 16, 1
    push = dict(WORLD=2, RANKS=2, BLOCK=4096, OP="sum", num_warps=8, num_stages=1)
    assert has(ours.all_reduce_push, pushed, push) and has(ours.all_reduce_push_one_hop, pushed, dict(push, SCATTER=False))


def test_an_identity_is_of_source_types_hints_options_and_libraries(hopper):
    x = aligned(4096)
    args = x, x, words(1 << 14), 1 << 13, words(256), words(400), 4096, 512, 1
    options = dict(SCATTER=False, THREADS=128, EACH=1, num_warps=4, WORLD=2, OP="sum", WHOLE=True, num_stages=1)
    kernel = ours.all_reduce_one_hop
    usual = wanted(kernel, args, options)
    half = aligned(4096, dtype=torch.float16)
    others = [
        wanted(kernel, (half, half, *args[2:]), options),
        wanted(kernel, (x[1:], *args[1:]), options),
        wanted(kernel, args, dict(options, EACH=2)),
        wanted(kernel, args, dict(options, num_warps=8)),
        wanted(kernel, (*args[:3], 7, *args[4:]), options),
        wanted(ours.all_reduce_two_hops, args, {name: value for name, value in options.items() if name != "SCATTER"}),
    ]
    assert len({usual, *others}) == 7
    assert usual == wanted(kernel, (*args[:6], 8192, 1024, 2), options), "these are not specialised"


def test_without_a_library_one_line_is_logged_and_kernels_are_compiled(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        missing = Prebuilt(str(tmp_path / "none"), tells=True)
        assert (
            missing.prepare(again(ours.gemm_rs), (1,), (), {}, ()) is None
            and missing.prepare(again(ours.gemm_rs), (1,), (), {}, ()) is None
        )
        missing.set_context(bytes(560))
        Prebuilt(str(tmp_path / "none"), tells=False)
    (line,) = caplog.messages
    assert "compiled as they are used" in line and "gen_aot_code.sh" in line


def test_what_a_library_lacks_is_logged_once_for_a_kernel(mock, library, hopper, caplog):
    with caplog.at_level(logging.WARNING):
        found, kernel = Prebuilt(str(library), tells=True), again(ours.gemm_rs)
        for n in (16, 32):
            assert found.prepare(kernel, (1,), (), {}, ()) is None
    assert [message for message in caplog.messages if "gemm_rs" in message] == caplog.messages and len(caplog.messages) == 1


def test_with_bounded_waits_no_kernel_comes_from_the_library_and_one_line_says_why(mock, library, hopper, caplog):
    with caplog.at_level(logging.WARNING):
        found = Prebuilt(str(library), tells=True, bounded=True)
        assert found.prepare(again(ours.gemm_rs), (1,), (), {}, ()) is None
        found.set_context(bytes(560))
    (line,) = caplog.messages
    assert "TRITON_DIST_WAIT_TIMEOUT is set" in line


def test_a_kernel_of_the_library_is_launched_by_its_own_code(mock, library):
    """The key of the manifest, arguments that vary, and those that stay."""
    done = mock.python(
        """
import json
entry = next(e for e in lib.manifest["variants"] if e["space"] == "add_fp32" and e["target"] == "cuda:90"
             and e["hints"].get("n") == 16 and e["options"]["BLOCK"] == 1024)
launch = lib.prepare(entry["key"], (7, 1, 1), (0x1000, 0x2000, 0x3000, 4096), (0, 1, 2))
launch(0x88, (0x4000, 0x5000, 0x6000))
launch.again()
print(code(launch, 0, (0x4008, 0x5000, 0x6000)))
""",
        library,
    )
    first, again = done.named("cuLaunchKernelEx")
    assert (
        "grid=7,1,1" in first
        and "stream=0x88" in first
        and "p0=0040000000000000 p1=0050000000000000 p2=0060000000000000 p3=00100000" in first
    )
    assert "p0=0040000000000000" in again and "(2, 'NOT_BUILT" in done.out


@pytest.mark.parametrize("text, expected", [("", None), ("0", None), ("1", ""), ("/some/folder", "/some/folder")])
def test_the_variable_names_the_usual_library_or_another(monkeypatch, text, expected):
    monkeypatch.setenv("USE_TRITON_DISTRIBUTED_AOT", text)
    assert environment.prebuilt() == expected


def test_a_device_that_runs_source_says_that_it_has_no_use_for_a_library(caplog):
    from triton_dist.runtime.backend import backend

    with caplog.at_level(logging.WARNING):
        backend().use_prebuilt("", True)
        backend().use_prebuilt("", False)
        backend().use_prebuilt(None, True)
    (line,) = caplog.messages
    assert "emulator" in line and "no use" in line


def test_the_argument_is_a_bool_or_a_folder():
    import triton_dist

    with pytest.raises(triton_dist.InvalidArgument, match="aot"):
        triton_dist.initialize_distributed(aot=3)


def test_a_world_says_where_its_kernels_come_from(monkeypatch):
    """By the variable, or by the argument, which counts for more; also of a world that has been joined."""
    import triton_dist
    from triton_dist.runtime.backend import backend

    asked = []
    monkeypatch.setattr(backend(), "use_prebuilt", lambda folder, tells: asked.append((folder, tells)))
    for variable, argument in (("", None), ("1", None), ("/there", None), ("1", False), ("", True), ("", "/here")):
        monkeypatch.setenv("USE_TRITON_DISTRIBUTED_AOT", variable)
        triton_dist.initialize_distributed(aot=argument, initialize_shmem=False)
        triton_dist.initialize_distributed(initialize_shmem=False)
        triton_dist.finalize_distributed()
    assert asked == [(folder, True) for folder in (None, "", "/there", None, "", "/here")]
    monkeypatch.setenv("USE_TRITON_DISTRIBUTED_AOT", "")
    triton_dist.initialize_distributed(initialize_shmem=False)
    triton_dist.initialize_distributed(initialize_shmem=False, aot="/later")
    triton_dist.finalize_distributed()
    assert asked[-1] == ("/later", True)


@pytest.mark.full
def test_a_script_runs_emulated_with_the_variable_set():
    import subprocess
    from aot_mock import HERE

    done = subprocess.run(
        ["bash", str(HERE.parents[1] / "launch.sh"), "--nproc_per_node", "2", "test_ag_gemm.py", "64", "64", "64"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "USE_TRITON_DISTRIBUTED_AOT": "1", "TRITON_DIST_BACKEND": "emulator"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("no use for a library") == 1 and "match" in done.stdout


def test_a_source_digest_is_of_all_that_a_kernel_reaches(monkeypatch):
    """Also through modules, aggregates and functions of Python; and it does not depend on what was asked for before."""
    from triton_dist.backends.gpu import source_digest as module
    from triton_dist.ops.device import packets

    names = {name.rpartition(":")[2] for name in module.sources_of(ours.ag_gemm_by_sms)}
    assert {
        "ag_gemm_by_sms_ws_kernel",
        "Gather",
        "Gather.acquire",
        "gemm_ws",
        "wait",
        "fence_proxy_async",
        "_COPIES",
    } <= names, names
    kernel = ours.all_reduce_one_hop
    usual = module.source_digest(kernel)
    again = module.source_digest(type(kernel)(kernel.fn))
    monkeypatch.setattr(packets.count_call, "_src", packets.count_call._src + "    # changed\n")
    assert usual == again != module.source_digest(type(kernel)(kernel.fn))


def test_recorded_launches_are_compiled_to_the_very_binaries(hopper, monkeypatch, tmp_path):
    """Two launches of one kernel and one with tensor descriptors and a layout; a launch that repeats is not written again."""
    from triton_dist.aot.command import main
    from triton_dist.aot.kernels import find, recorded
    from triton_dist.backends.gpu.recording import Recorder
    from triton_dist.runtime.errors import InvalidArgument

    path = tmp_path / "launches.jsonl"
    with pytest.raises(InvalidArgument, match="TRITON_DIST_AOT_RECORD=/dev/null/one: cannot be written: Not a directory"):
        Recorder("/dev/null/one")
    recorder, keys = Recorder(str(path)), []
    plan = gemm_plan(256, 512, 256, GemmConfig(128, 256, 64, group_m=2, num_warps=8, num_stages=3))
    call = cores._AgGemm(plan, True)
    core = call.described(aligned(256, 256), aligned(512, 256), aligned(512), aligned(512, 512), 1), call.options
    pushed = aligned(1 << 20), aligned(1 << 21), words(4096), words(1024), words(400), 1 << 20, 1 << 19, 1 << 19, 1 << 18
    push = dict(BLOCK=2048, MOST=32, num_warps=8)
    launches = [(ours.ag_gemm, *core), (ours.ag_gemm_push, (*pushed, 1, 4), push), (ours.ag_gemm_push, (*pushed, 3, 4), push)]
    for kernel, args, options in [*launches, launches[0]]:
        fresh = type(kernel)(kernel.fn, do_not_specialize=kernel.do_not_specialize)
        given = dict(options, extern_libs={"tdist": device_runtime("nvidia")})
        recorder.add(fresh, args, given)
        keys.append(wanted(kernel, args, options))
    assert len(path.read_text().splitlines()) == 3
    kernels = [find(word) for word in recorded(path)]
    found = [key_of(k, v, HOPPER) for k in kernels for space in spaces_of(k) for v in variants_of(k, space)]
    assert sorted(found) == sorted(keys[:3]) and not any(has(*launch) for launch in launches), "tilings that are not listed"
    assert main([f"@{path}", "--target", "cuda:90", "--out", str(tmp_path / "library"), "--compiler", "none"]) == 0
    manifest = json.loads((tmp_path / "library" / "manifest.json").read_text())
    assert sorted(entry["key"] for entry in manifest["variants"]) == sorted(keys[:3])


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "expected what"),
        ('{"kernel": 1}', "kernel"),
        ('{"kernel": "triton_dist.aot.ours:none", "types": {}, "hints": {}, "constexprs": {}, "options": {}}', "no kernel"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(tmp_path, capsys, text, words):
    from triton_dist.aot.command import main

    (tmp_path / "one.jsonl").write_text(text + "\n")
    assert main([f"@{tmp_path / 'one.jsonl'}", "--out", str(tmp_path / "library")]) == 2
    assert words in capsys.readouterr().err


def test_constants_are_not_evaluated():
    from triton_dist.backends.gpu.recording import read_value
    from triton_dist.runtime.errors import InvalidArgument

    assert read_value(3) == 3 and read_value(None) is None
    for text in ("__import__('os').system('true')", "NVMMASharedLayout(open('x'))", "print", "nothing(1)"):
        with pytest.raises(InvalidArgument):
            read_value({"gluon": text})
