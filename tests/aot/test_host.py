# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The host side in C on a mock driver: worlds of processes that pass real file descriptors, and what happens when one is missing,
dies, or asks for something else. Copies and flags are real there, kernels are not."""

import json
import re
import shutil
import struct
import subprocess
import time
from types import SimpleNamespace

import pytest
from aot_mock import HERE, WARNINGS, compile_c, parameters
from few_kernels import NAMES

from triton_dist.aot import emit
from triton_dist.aot.library import FLAGS, MANIFEST


@pytest.fixture(scope="module")
def few(own_caches, tmp_path_factory):
    """A library of a few variants of our kernels for sm_90."""
    from triton_dist.aot.command import main

    folder = tmp_path_factory.mktemp("few") / "library"
    assert (
        main(
            [
                *(f"{HERE / 'few_kernels.py'}:{name}" for name in NAMES),
                "--target",
                "cuda:90",
                "--out",
                str(folder),
                "-j",
                "1",
            ]
        )
        == 0
    )
    return folder


def sources(library):
    return sorted([*(library / "kernels").glob("*.c"), *(library / "runtime").glob("*.c")])


@pytest.fixture(scope="module")
def host(mock, few, tmp_path_factory):
    """Runs host.c, under address and undefined-behaviour sanitizers."""
    folder = tmp_path_factory.mktemp("host")
    compile_c(
        folder / "host",
        *[flag for flag in FLAGS if flag != "-O2"],
        "-O0",
        "-g",
        "-fsanitize=address,undefined",
        *WARNINGS,
        "-fno-sanitize-recover=all",
        f"-I{few / 'runtime'}",
        f"-I{few / 'kernels'}",
        HERE / "host.c",
        *sources(few),
        f"-L{mock.folder}",
        "-l:libcuda.so.1",
        "-lpthread",
        "-ldl",
    )

    def run(scenario: str, ranks: int, **environ):
        environ.setdefault("TDIST_MOCK_DEVICES", str(ranks))
        done = mock.run(folder / "host", scenario, ranks, timeout=40, ASAN_OPTIONS="detect_leaks=0", **environ)
        assert done.code == 0, done.out + done.err
        lines = {
            rank: [line.partition(": ")[2] for line in done.out.splitlines() if line.startswith(f"rank {rank}: ")]
            for rank in range(ranks)
        }
        return SimpleNamespace(calls=done.calls, named=done.named, lines=lines)

    return run


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_world_passes_handles_and_pushes_shards(host, few, ranks):
    """Objects of the heap are seen by peers; three calls of ag_gemm leave every peer's rows and flags in the right half."""
    if ranks != 2:
        done = host("full", ranks)
        assert all(lines[0] == "world: OK" and lines[1] == "alloc: OK" for lines in done.lines.values())
        return
    done = host("ops", ranks)
    for lines in done.lines.values():
        assert lines[0] == "world: OK" and lines[-1] == "left: OK"
        assert any(line.startswith("off by two bytes: TENSOR") for line in lines)
        assert any(line.startswith("captured copies: CAPTURE") and "comm_sms" in line for line in lines)
    assert len(done.named("cuMemExportToShareableHandle")) == ranks
    assert len(done.named("cuMemImportFromShareableHandle")) == ranks * (ranks - 1)
    assert len(done.named("cuMemRelease")) == ranks * ranks == len(done.named("cuMemMap"))
    assert len(done.named("cuMemUnmap")) == len(done.named("cuMemAddressFree")) == ranks * ranks
    launches = {
        name: done.named(f"cuLaunchKernelEx {name} ")
        for name in (
            "ag_gemm_ws_kernel",
            "push_kernel",
            "ag_gemm_by_sms_ws_kernel",
            "gemm_rs_ws_kernel",
            "one_hop_self_flagged",
            "two_hops_self_flagged",
            "one_hop_push",
        )
    }
    assert {name: len(found) for name, found in launches.items()} == {
        "ag_gemm_ws_kernel": 2 * 5,
        "push_kernel": 2 * 2,
        "ag_gemm_by_sms_ws_kernel": 2 * 2,
        "gemm_rs_ws_kernel": 2,
        "one_hop_self_flagged": 2,
        "two_hops_self_flagged": 2,
        "one_hop_push": 2,
    }
    assert all("attribute=2:1" in line for line in launches["gemm_rs_ws_kernel"]), "rings are launched cooperatively"
    epochs = [struct.unpack("<i", parameters(line)[36])[0] for line in launches["ag_gemm_ws_kernel"]]
    assert sorted(epochs) == sorted([1, 2, 3, 4, 5] * 2)
    for line in launches["ag_gemm_ws_kernel"]:
        found = [struct.unpack("<i", word)[0] for word in parameters(line)[37:45]]
        assert found[0] in (0, 1) and found[1] == 2 and found[2] in (200, 600) and found[3:6] == [256, 64, 1], found
        assert found[7] == 0, "fewer tiles than multiprocessors are all cut in half"
        assert f"grid={4 * -(-found[2] // 128)},1,1" in line
    options = {one["key"]: one["options"] for one in json.loads((few / MANIFEST).read_text())["variants"]}
    for lines in done.lines.values():
        (key,) = [line.removeprefix("variant: ") for line in lines if line.startswith("variant: ")]
        assert options[key]["NARROW"] and options[key]["BLOCK_N"] == 256 and options[key]["HAS_BIAS"]


@pytest.mark.parametrize(
    "scenario, ranks, expected",
    [
        (
            "late",
            3,
            {
                0: ["world: TIMEOUT: meeting: rank 1 did not come"],
                2: ["world: TIMEOUT: rank 0: meeting: rank 1 did not come"],
            },
        ),
        ("first is late", 2, {1: ["world: TIMEOUT: meeting: rank 0 did not come"]}),
        ("sizes", 2, {0: ["world: TIMEOUT: meeting: rank 1"], 1: ["world: MISMATCH: rank 0: rank 0 has a world of 2"]}),
        ("twice", 3, {0: ["world: TIMEOUT: meeting: rank 2"]}),
        (
            "heaps",
            2,
            {0: ["world: MISMATCH: rank 1 has version 1 and a heap of 33554432"], 1: ["world: MISMATCH: rank 0 has"]},
        ),
        ("device", 2, {0: ["world: MISMATCH: ranks 0 and 1 have the same device"], 1: ["world: MISMATCH: ranks 0 and 1"]}),
        (
            "die",
            3,
            {
                0: [
                    "world: OK",
                    "barrier: PEER: barrier: rank 1 has left",
                    "barrier: PEER: barrier: an earlier",
                    "left: PEER",
                ],
                2: ["world: OK", "barrier: PEER: rank 0: barrier: rank 1 has left", "barrier: PEER", "left: PEER"],
            },
        ),
        (
            "sleep",
            2,
            {
                0: ["world: OK", "barrier: TIMEOUT: barrier: rank 1 did not come within 1500 ms"],
                1: ["world: OK", "barrier: TIMEOUT: rank 0"],
            },
        ),
        (
            "alloc",
            2,
            {0: ["world: OK", "alloc: MISMATCH: an allocation: rank 1 has 200"], 1: ["world: OK", "alloc: MISMATCH"]},
        ),
        ("full", 2, {r: ["world: OK", "alloc: OK", "alloc: OUT_OF_HEAP: 2097152 bytes", "alloc: OK"] for r in (0, 1)}),
        (
            "confused",
            2,
            {
                0: ["world: OK", "call: MISMATCH: barrier: rank 1 does something else"],
                1: ["world: OK", "call: MISMATCH: rank 0"],
            },
        ),
        (
            "variant",
            2,
            {
                0: ["world: OK", "plan: NOT_BUILT: rank 1 has no plan", "barrier: OK"],
                1: [
                    "world: OK",
                    "plan: NOT_BUILT: ag_gemm_ws: no variant of these types has GROUP_M as asked",
                    "barrier: OK",
                ],
            },
        ),
        (
            "shape",
            2,
            {
                0: ["world: OK", "plan: MISMATCH: a plan: rank 1 has another"],
                1: ["world: OK", "plan: MISMATCH: a plan: rank 0"],
            },
        ),
        ("odd", 2, {r: ["world: OK", "plan: TENSOR: n, k: expected multiples of 8", "plan: VERSION"] for r in (0, 1)}),
    ],
)
def test_every_rank_is_told_what_is_wrong(host, scenario, ranks, expected):
    start = time.monotonic()
    lines = host(scenario, ranks).lines
    assert time.monotonic() - start < 12, "bounded waits"
    for rank, wanted in expected.items():
        assert len(lines[rank]) == len(wanted), lines
        for line, beginning in zip(lines[rank], wanted):
            assert line.startswith(beginning), lines


def test_streams_may_go_when_the_program_is_done_with_them(host):
    """A call follows the last one through an event: that one's stream may be gone, and a new one may have its handle."""
    done = host("streams", 2)
    for lines in done.lines.values():
        assert lines == ["world: OK", *["call: OK"] * 8, "left: OK"], lines
    assert len(done.named("cuStreamWaitEvent")) == 2 * 4, "once at each change of streams"
    assert len(done.named("freed")) == len(done.named("cuMemAlloc ")), "also where the thread has no context of its own"


@pytest.mark.parametrize(
    "files, expected",
    [("1 9", {0: "world: SYSTEM: meeting: Too many open files", 1: "world: PEER"}),
     ("9 4 9", {0: "world: PEER", 1: "world: SYSTEM: memory of ranks: rank 0: Too many open files"})],
)
def test_a_rank_that_can_open_no_more_files_says_so_at_once(host, files, expected):
    start = time.monotonic()
    lines = host("files", len(files.split()), TDIST_FILES=files).lines
    assert time.monotonic() - start < 1.4, "not for as long as a peer is waited for"
    assert all(lines[rank][0].startswith(words) for rank, words in expected.items()), lines


def test_the_longest_timeout_is_no_negative_one(host):
    assert host("forever", 2).lines == {rank: ["world: OK"] for rank in range(2)}


def test_ranks_may_share_a_device_where_the_variable_says_so(host):
    lines = host("device", 2, TRITON_DIST_SHARE_GPUS="1").lines
    assert [line[0] for line in (lines[0], lines[1])] == ["world: OK", "world: OK"], lines
    lines = host("device", 2, TRITON_DIST_SHARE_GPUS="0").lines
    assert all("TRITON_DIST_SHARE_GPUS=1 lets them take turns" in lines[rank][0] for rank in (0, 1)), lines


def test_two_worlds_of_a_process_and_its_own_launches_keep_apart(host):
    """Kernels of each see their own ranks and heaps. They shared one module, and the last world made was everybody's."""
    for lines in host("worlds", 2).lines.values():
        assert lines == ["world: OK", "world: OK", "left: OK"], lines


@pytest.fixture
def mocked_device(monkeypatch):
    """The sizes that Python's ops would choose on the mock's device."""
    from triton_dist.cores.hopper import cores
    from triton_dist.ops.exchange import sizes

    device = SimpleNamespace(num_sms=lambda: 132, warp_size=32)
    monkeypatch.setattr(sizes, "backend", lambda: device)
    monkeypatch.setattr(cores, "backend", lambda: device)
    return SimpleNamespace(cores=cores, sizes=sizes)


def integers(line: str, first: int, count: int) -> list:
    return [struct.unpack("<i", word[:4])[0] for word in parameters(line)[first : first + count]]


def test_c_lays_calls_out_as_python_does(host, mocked_device):
    """all_reduce of 4096 elements on two ranks, by every method, and the pace of gemm_rs."""
    import torch

    done, sizes = host("ops", 2), mocked_device.sizes
    half = (64 << 10) // 4  # int32 words of the smallest half of a workspace, which has 64 KiB
    for name, count in (("one_hop_self_flagged", 512), ("two_hops_self_flagged", 256)):
        programs, rounds, options = sizes.grid_of_vectors(count, 2)
        for line in done.named(f"cuLaunchKernelEx {name} "):
            assert f"grid={programs},1,1 block={options['THREADS']}" in line
            assert integers(line, 3, 1) == [half] and integers(line, 6, 3) == [4096, count, rounds]
    blocks, programs, rounds, options = sizes.grid_of_blocks(4096, torch.bfloat16, 2)
    for line in done.named("cuLaunchKernelEx one_hop_push "):
        assert f"grid={programs},1,1 block={32 * options['num_warps']}" in line
        assert (
            integers(line, 3, 1) == [2 * half]
            and integers(line, 5, 1) == [512]
            and integers(line, 8, 3) == [4096, blocks, rounds]
        )
    plan = SimpleNamespace(
        config=SimpleNamespace(block_m=128, block_n=128), pitch=256, n=256, k=64, programs=8, hop_dtype=torch.bfloat16,
        group=SimpleNamespace(size=2),
    )
    for line in done.named("cuLaunchKernelEx gemm_rs_ws_kernel "):
        assert "grid=8,1,1" in line and integers(line, 40, 4) == [2, 200, 256, 64]
        assert integers(line, 44, 2) == [*mocked_device.cores._pace(plan, 32 * 64 * 2)]


@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAlloc_v2",
    ],
)
def test_a_driver_that_fails_on_one_rank_ends_all(host, call):
    lines = host("driver", 2, TDIST_RANK_1_FAILS=f"{call},999").lines
    assert lines[1][0].startswith("world: DRIVER: ") and call.removesuffix("_v2") in lines[1][0]
    assert re.match(r"world: PEER: .*rank 1 has left", lines[0][0])


def test_a_call_that_fails_poisons_its_workspace(host):
    lines = host("launch", 2, TDIST_MOCK_FAIL="cuStreamWriteValue32_v2,719").lines
    assert all(
        found[1].startswith("call: DRIVER: cuStreamWriteValue32") and found[2].startswith("call: POISONED")
        for found in lines.values()
    )


def test_another_architecture_has_no_plan(host):
    lines = host("variant", 2, TDIST_MOCK_ARCH="80").lines
    assert all(found[1].startswith("plan: WRONG_ARCH: ag_gemm_ws: not built for sm_80") for found in lines.values())


def test_the_example_builds_by_cmake_and_runs(mock, few, tmp_path):
    """Without a GPU its results cannot be right, so they are not looked at; all else runs."""
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("no cmake, or no C++ compiler")
    example = HERE.parents[1] / "examples" / "cpp"
    for words in (
        ["-S", str(example), "-B", str(tmp_path / "build"), f"-DAOT={few}", "-DCMAKE_CXX_FLAGS=-Werror"],
        ["--build", str(tmp_path / "build"), "-j2"],
    ):
        done = subprocess.run(["cmake", *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    done = mock.run(tmp_path / "build" / "ag_gemm", "--shape", 512, 512, 128, "--calls", 3, "--no-check", timeout=60)
    assert done.code == 0 and "on 2 ranks" in done.out and "not checked" in done.out, done.out + done.err
    assert mock.run(tmp_path / "build" / "ag_gemm", "--shape", 511, 512, 128).code == 1


def test_headers_are_those_of_cplusplus(few, tmp_path):
    """Parameters of kernels too may be called what is a word of the language, or a macro of the compiler."""
    words = ("virtual", "xor", "typename", "export", "linux", "co_await", "n")
    built = SimpleNamespace(variant=SimpleNamespace(grid=None, types=dict.fromkeys(words, "i32")))
    source = tmp_path / "one.cpp"
    source.write_text(
        '#include "triton_dist.h"\n#include "ag_gemm_ws.h"\nint main() { return tdist_world_size(nullptr) == 0; }\n'
        f"int of_any_name({emit._prototype(built)});\n"
    )
    folders = f"-I{few / 'runtime'}", f"-I{few / 'kernels'}"
    for standard in ("c++11", "gnu++20"):
        compile_c(tmp_path / "one.o", "-x", "c++", f"-std={standard}", *WARNINGS, *folders, "-c", source)
