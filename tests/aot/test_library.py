# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A library that was built without a GPU, launched on a driver that records: parameters, attributes, modules, errors."""

import json
import re
import shutil
import struct
import subprocess
import sys

import pytest
from aot_mock import HERE, KERNELS, TARGETS, WARNINGS, compile_c, forked, parameters

from triton_dist.aot.library import FLAGS, LIBRARY, MANIFEST
from triton_dist.runtime.backend import device_nodes

LAUNCH = "cuLaunchKernelEx"


def sources(library):
    return sorted([*(library / "kernels").glob("*.c"), *(library / "runtime").glob("*.c")])


def includes(library):
    return f"-I{library / 'runtime'}", f"-I{library / 'kernels'}"


def test_every_target_is_in_the_manifest(library):
    found = json.loads((library / MANIFEST).read_text())["variants"]
    assert {one["target"] for one in found} == set(TARGETS.split(","))
    assert len({one["key"] for one in found}) == len(found) > len(KERNELS) * 4
    assert all(one["bytes"] > 1000 for one in found) and (library / LIBRARY).stat().st_size > sum(
        one["bytes"] for one in found
    )


def test_integers_that_are_multiples_or_one_take_the_variant_for_it(mock, library):
    done = mock.python(
        """
for n in (4096, 77, 1):
    lib.launch("add_fp32", 0, [0x1000, 0x2000, 0x3000, n])
lib.launch("add_fp32", 0, [0x1000, 0x2000, 0x3000, 77], options={"BLOCK": 256})
lib.launch("add_fp16", 0x55, [0x1002, 0x2000, 0x3000, 77])
""",
        library,
    )
    one, other, equal, small, half = done.named(LAUNCH)
    pointers = [struct.pack("<Q", 0x1000 * i) for i in (1, 2, 3)]
    nothing = [bytes(8)] * 2
    assert parameters(one) == [*pointers, struct.pack("<i", 4096), *nothing] and "grid=4,1,1 block=128" in one
    assert parameters(other) == [*pointers, struct.pack("<i", 77), *nothing] and "grid=1,1,1" in other
    assert parameters(equal) == [*pointers, *nothing], "a parameter that is 1 is no parameter"
    assert "block=64" in small
    assert parameters(half)[0] == struct.pack("<Q", 0x1002) and "stream=0x55" in half
    assert len(done.named("cuModuleLoadData")) == 5, "five variants, each loaded once"


def test_scalars_have_the_bits_that_triton_gives_them(mock, library):
    done = mock.python(
        'lib.launch("scalars", 0, [0x100, 1, -2, 200, -3, 70000, -5, 2**63 - 1, 1 / 3, 1 / 3, 1 / 3, 1 / 3], '
        'grid=(1,), options={"SIGN": -1.5, "FLAG": True})\n'
        'print(code(lib.launch, "scalars", 0, [0x100, *[0] * 11], grid=(1,), options={"SIGN": 2}))\n'
        'print(code(lib.launch, "scalars", 0, [0x100, *[0] * 11]))',
        library,
    )
    (launch,) = done.named(LAUNCH)
    bfloat = struct.pack("<f", 1 / 3)[2:]  # Triton's launcher cuts a bfloat16 off a float
    assert parameters(launch)[1:12] == [
        b"\1",
        struct.pack("b", -2),
        b"\xc8",
        struct.pack("<h", -3),
        struct.pack("<i", 70000),
        struct.pack("<q", -5),
        struct.pack("<Q", 2**63 - 1),
        struct.pack("<e", 1 / 3),
        bfloat,
        struct.pack("<f", 1 / 3),
        struct.pack("<d", 1 / 3),
    ]
    assert "(2, " in done.out and "SIGN" in done.out and "(1, " in done.out and "without a grid" in done.out


BOXES = """
import torch
from triton.tools.tensor_descriptor import TensorDescriptor
x = torch.empty(128, 256, dtype=torch.bfloat16)
start = x.data_ptr() // 16 * 16 + 16
class At:
    def __init__(self, address): self.address = address
    def data_ptr(self): return self.address
def box(padding="zero"):
    d = TensorDescriptor.from_tensor(x, [64, 64])
    object.__setattr__(d, "base", At(0x10000))
    object.__setattr__(d, "padding", padding)
    return d
lib.launch("copy_box", 0, [box("nan"), box(), 64], grid=(2, 1, 1))
"""


def test_descriptors_are_encoded_in_c_where_there_is_tma(mock, library):
    done = mock.python(BOXES, library)
    (launch,) = done.named(LAUNCH)
    found = parameters(launch)
    assert [len(p) for p in found] == [128, 4, 4, 8, 8] * 2 + [4, 8, 8]
    first, second = found[0], found[5]
    assert (first[0], first[1], first[3], second[3]) == (9, 2, 1, 0)  # bf16, rank, NaN outside, zeros outside
    assert struct.unpack("<Q2I", first[8:24]) == (0x10000, 256, 128), "dimensions, innermost first"
    assert struct.unpack("<2I", first[32:40]) == (64, 64) and struct.unpack("<Q", first[48:56]) == (512,), (
        "the box; a stride in bytes"
    )
    assert found[1:5] == [struct.pack("<i", 128), struct.pack("<i", 256), struct.pack("<q", 256), struct.pack("<q", 1)]


def test_descriptors_are_taken_apart_where_there_is_none(mock, library):
    done = mock.python(BOXES, library, TDIST_MOCK_ARCH="86")  # runs what was built for sm_80
    (launch,) = done.named(LAUNCH)
    found = parameters(launch)
    import triton

    rounding = 0 if triton.__version__.startswith("3.6") else 1
    shape, strides = [struct.pack("<q", size) for size in (128, 256)], [struct.pack("<q", size) for size in (256, 1)]
    narrow = [struct.pack("<i", size) for size in (128, 256)]
    one = [struct.pack("<Q", 0x10000), *shape, *strides, b"\1", *[b"\0"] * rounding, *narrow, *strides]
    assert found[: len(one)] == one and found[len(one) + 5] == b"\0"
    assert not done.named("cuTensorMapEncodeTiled")


def test_scratch_is_as_large_as_the_grid_and_ordered_on_the_stream(mock, library):
    done = mock.python('lib.launch("copy_by_made_descriptor", 0x77, [0x100, 0x200, 64, 64], grid=(2, 3, 1))', library)
    order = [line.split()[0] for line in done.calls if line.startswith(("cuMem", LAUNCH))]
    assert order == ["cuMemAllocAsync", LAUNCH, "cuMemFreeAsync"]
    (allocated,) = done.named("cuMemAllocAsync")
    assert allocated == "cuMemAllocAsync 1536 0x77", "256 bytes a program"
    assert parameters(done.named(LAUNCH)[0])[4] != bytes(8)


def test_cooperative_clustered_and_overlapping_launches_say_so(mock, library):
    done = mock.python(
        """
lib.launch("fill", 0, [0x100, 100000])
lib.launch("fill_in_clusters", 0, [0x100, 100000], grid=(5,))
lib.launch("after_the_last", 0, [0x100], grid=(1,))
lib.launch("add_fp16", 0, [0x100, 0x100, 0x100, 0])
""",
        library,
    )
    cooperative, clusters, overlapping = done.named(LAUNCH)  # the last one's grid is empty: no launch
    assert "grid=132,1,1" in cooperative and re.findall(r"attribute=(\S+)", cooperative) == ["2:1"]
    assert "grid=10,1,1" in clusters and re.findall(r"attribute=(\S+)", clusters) == ["4:2", "5:1"]
    assert re.findall(r"attribute=(\S+)", overlapping) == ["6:1"]


def test_the_context_is_written_at_load_and_when_the_world_changes(mock, library):
    done = mock.python(
        """
from triton_dist.runtime.context import Context
print(code(lib.launch, "who_am_i", 0, [0x100, 0x200], grid=(1,)))
lib.set_world(Context(rank=1, world_size=2, bases=[1, 2]).pack())
lib.launch("who_am_i", 0, [0x100, 0x200], grid=(1,))
lib.set_world(Context(rank=0, world_size=2, bases=[1, 2]).pack())
print(code(lib.set_world, bytes(8)))
""",
        library,
    )
    assert "(7, 'NO_WORLD" in done.out and "(4, 'VERSION" in done.out
    assert len(done.named("cuMemcpyHtoDAsync 560")) == 2 and len(done.named(LAUNCH)) == 1
    other = mock.python(
        """
from triton_dist.runtime.context import Context
lib.set_world(Context().pack())
lib.launch("who_am_i", 0, [0x100, 0x200], grid=(1,))
""",
        library,
    )
    assert [line.split()[0] for line in other.calls if line.startswith(("cuMem", LAUNCH))] == ["cuMemcpyHtoDAsync", LAUNCH]


@pytest.mark.parametrize(
    "call, environ, code, words",
    [
        ("lib.launch, 'add_fp32', 0, [0x1004, 0x2000, 0x3000, 16]", {}, 2, "value of x"),
        ("lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16], options={'BLOCK': 512}", {}, 2, "BLOCK"),
        ("lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16]", {"TDIST_MOCK_ARCH": "121"}, 3, "sm_121"),
        ("lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16]", {"TDIST_MOCK_ARCH": "75"}, 3, "sm_75"),
        (
            "lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16]",
            {"TDIST_MOCK_FAIL": "cuModuleLoadData,209"},
            5,
            "cuModuleLoadData",
        ),
        ("lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16]", {"TDIST_MOCK_FAIL": "cuLaunchKernelEx,719"}, 5, "719"),
        ("lib.launch, 'add_fp32', 0, [0x1000, 0x2000, 0x3000, 16]", {"TDIST_MOCK_FAIL": "cuInit,100"}, 5, "cuInit"),
    ],
)
def test_what_cannot_be_launched_says_why(mock, library, call, environ, code, words):
    done = mock.python(f"print(code({call}))\nprint(code({call}))", library, **environ)
    first, second = done.out.splitlines()
    assert first == second and first.startswith(f"({code}, ") and words in first


@pytest.mark.skipif(device_nodes(), reason="this machine has a driver")
def test_without_a_driver_there_is_an_error_and_no_more(library, tmp_path):
    words = forked("print(*code(lib.launch, 'add_fp32', 0, [0, 0, 0, 16]))", library, tmp_path / "out")
    assert words.startswith("6 NO_DRIVER") and "libcuda.so.1" in words, words


def test_every_thread_is_told_the_code_with_which_the_driver_does_not_start(mock, library):
    done = mock.python(
        """
import threading
def try_it():
    print(code(lib.launch, "fill", 0, [0x100, 7])[0], lib._library.tdist_driver_code())
try_it()
thread = threading.Thread(target=try_it)
thread.start()
thread.join()
""",
        library,
        TDIST_MOCK_FAIL="cuInit,802",
    )
    assert done.out.split() == ["5", "802"] * 2


KEPT = """
def kept(space, args):
    entry = next(e for e in lib.manifest["variants"] if e["space"] == space and e["target"] == "cuda:90")
    full = args + [None] * (len(entry["types"]) - len(args))
    return lib.prepare(entry["key"], (1, 1, 1), full, ())
def give(launch, index, value):
    lib.check(lib._library.tdist_launch_set(ctypes.c_void_p(launch._handle), ctypes.c_size_t(index), ctypes.c_int64(value)))
"""


def test_kept_launches_refuse_what_they_cannot_take(mock, library):
    """A tensor without memory had the tensor map of no tensor; a number that was not taken was not refused."""
    done = mock.python(
        KEPT
        + """
import torch
scalars = kept("scalars", [0x100, 1, -2, 200, -3, 70000, -5, 7, 0.5, 0.5, 0.5, 0.5])
for index in (5, 9, 12):
    print(code(give, scalars, index, 4))
boxes = [torch.empty(128, 256, dtype=torch.bfloat16)] * 2
boxes = kept("copy_box", boxes + [64])
print(code(give, boxes, 0, 0))
empty = torch.empty(0, 256, dtype=torch.bfloat16)
print(code(kept, "copy_box", [empty, empty, 64]))
""",
        library,
    )
    taken, real, constexpr, null, empty = done.out.splitlines()
    assert taken == "(0, '')", taken
    assert real.startswith("(1, 'ARGUMENT") and "floating-point" in real and "a constexpr" in constexpr
    assert null.startswith("(17, 'TENSOR") and empty.startswith("(17, 'TENSOR")


def test_two_libraries_of_a_process_keep_to_themselves(library, tmp_path):
    """A program that is linked with both has one table of symbols: each must find its own functions there."""
    other = tmp_path / "other.so"
    shutil.copy(library / LIBRARY, other)
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import ctypes, sys\n"
            "libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]\n"
            "libraries[1].tdist_last_error.restype = ctypes.c_char_p\n"
            "assert libraries[1].fill(None, None, 7), 'no driver, or no device'\n"
            "print(libraries[1].tdist_last_error().decode())\n",
            str(library / LIBRARY),
            str(other),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip(), "the words are in the other library"


def test_a_first_launch_is_not_captured_and_a_later_one_is(mock, library):
    done = mock.python(
        """
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0)
args = "add_fp32", stream.value, [0x1000, 0x2000, 0x3000, 16]
cuda.cuStreamBeginCapture_v2(stream, 0)
print(code(lib.launch, *args)[0])
cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
print(code(lib.launch, *args)[0])
cuda.cuStreamBeginCapture_v2(stream, 0)
print(code(lib.launch, *args)[0])
""",
        library,
    )
    assert done.out.split() == ["10", "0", "0"]


def test_shared_memory_is_asked_for_and_refused_where_the_device_has_less(mock, tmp_path_factory):
    from triton_dist.aot.command import main

    source = tmp_path_factory.mktemp("wide") / "wide.py"
    source.write_text(
        "import triton\nimport triton.language as tl\nfrom triton_dist.aot import aot_compile_spaces\n"
        "@aot_compile_spaces({'wide': {'signature': '*fp16:16, *fp32:16, %N', 'triton_algo_infos': ["
        "dict(N=512, num_warps=4, num_stages=1)]}})\n@triton.jit\ndef wide(x, out, N: tl.constexpr):\n"
        "    rows, k, columns = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, 16)\n"
        "    a, b = tl.load(x + rows[:, None] * N + k[None, :]), tl.load(x + k[:, None] * 16 + columns[None, :])\n"
        "    tl.store(out + rows[:, None] * 16 + columns[None, :], tl.dot(a, b))\n"
    )
    folder = source.parent / "library"
    assert main([f"{source}:wide", "--target", "cuda:80", "--out", str(folder)]) == 0
    shared = json.loads((folder / MANIFEST).read_text())["variants"][0]["shared"]
    assert shared > 48 << 10
    call = "print(code(lib.launch, 'wide', 0, [0x100, 0x200], grid=(1,)))"
    done = mock.python(call, folder, TDIST_MOCK_ARCH="80")
    assert done.out.startswith("(0,") and done.named("cuFuncSetAttribute") and f"shared={shared}" in done.named(LAUNCH)[0]
    done = mock.python(call, folder, TDIST_MOCK_ARCH="80", TDIST_MOCK_SHARED=str(64 << 10))
    assert done.out.startswith("(9, 'SHARED_MEMORY")


def test_generated_code_has_no_warnings(library, tmp_path):
    for source in sources(library):
        compile_c(tmp_path / "one.o", "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", *WARNINGS, *includes(library), source)


@pytest.mark.parametrize("sanitizers", [pytest.param(each, marks=pytest.mark.full) for each in ("address,undefined", "thread")])
def test_calls_from_c_on_two_devices_under_sanitizers(mock, library, tmp_path, sanitizers):
    """No leak, race or undefined behaviour; a variant is loaded once for each device, whoever comes first."""
    program = tmp_path / "calls"
    extra = ["-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-Werror", *includes(library)]
    flags = [flag for flag in FLAGS if flag != "-O2"]
    compile_c(
        program,
        *flags,
        "-O0",
        *extra,
        HERE / "calls.c",
        *sources(library),
        f"-L{mock.folder}",
        "-l:libcuda.so.1",
        "-lpthread",
        "-ldl",
    )
    suppressed = tmp_path / "suppressions"
    suppressed.write_text("leak:libcuda.so.1\n")
    done = mock.run(program, LSAN_OPTIONS=f"suppressions={suppressed}", UBSAN_OPTIONS="halt_on_error=1")
    assert done.code == 0 and "all as expected" in done.out, done.out + done.err
    assert "Sanitizer" not in done.err.replace("Suppressions used", "")
    loaded = len(done.named("cuModuleLoadData"))
    assert loaded == len(done.named("cuModuleUnload")) == 2 * 3 + 500 + 4, "three variants on two devices, then more on one"


@pytest.mark.full
def test_cmake_builds_it_as_well(library, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    for words in (["-S", str(library), "-B", str(tmp_path / "build")], ["--build", str(tmp_path / "build")]):
        done = subprocess.run(["cmake", *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    assert (tmp_path / "build" / LIBRARY).exists()
