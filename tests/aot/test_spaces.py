# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is declared: signatures, hints, variants, grids, targets, and the words for what makes no sense."""

from types import SimpleNamespace

import pytest
import triton
import triton.language as tl
from aot_mock import HERE
from few_kernels import NAMES

from triton_dist.aot import aot_compile_spaces, spaces_of
from triton_dist.aot.grid import to_c
from triton_dist.aot.kernels import find, read_list
from triton_dist.aot.spaces import name_of, split, variants_of
from triton_dist.aot.targets import parse_targets
from triton_dist.runtime.errors import InvalidArgument


def fresh(spaces: dict, **more):
    """A kernel that is declared so."""

    @triton.jit
    def kernel(x, n, m, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), n + m)

    return aot_compile_spaces(spaces, **more)(kernel)


INFOS = [dict(BLOCK=64, num_warps=1), dict(BLOCK=128, num_warps=2)]


def test_variants_are_all_combinations_of_hints_for_each_info():
    kernel = fresh({"one": {"signature": "*fp16:16, i32:16|1|, i64, %BLOCK", "triton_algo_infos": INFOS}}, name="mine")
    (space,) = spaces_of(kernel)
    found = variants_of(kernel, space)
    assert name_of(kernel) == "mine" and len(found) == 6
    assert [v.hints for v in found[:3]] == [{"x": 16, "n": 16}, {"x": 16, "n": 1}, {"x": 16}]
    assert found[0].types == {"x": "*fp16", "n": "i32", "m": "i64", "BLOCK": "constexpr"}
    assert found[1].signature["n"] == "constexpr" and found[1].constants == {"BLOCK": 64, "n": 1}
    assert found[3].constexprs == {"BLOCK": 128} and found[3].options == {"num_warps": 2}


def test_constexprs_are_put_into_types_and_grids():
    kernel = fresh(
        {
            "one": {
                "signature": "tensordesc<bf16[%BLOCK,64]>, i32, i32, %BLOCK",
                "grid": ["cdiv(n, %BLOCK)", "m", "1"],
                "triton_algo_infos": INFOS,
            }
        }
    )
    first, second = variants_of(kernel, spaces_of(kernel)[0])
    assert first.types["x"] == "tensordesc<bf16[64,64]>" and second.types["x"] == "tensordesc<bf16[128,64]>"
    assert first.grid == ("cdiv(n, 64)", "m", "1")


def test_targets_pick_spaces_and_infos():
    infos = [dict(INFOS[0], targets=["cuda:90"]), INFOS[1]]
    kernel = fresh({"one": {"signature": "*fp16, i32, i32, %BLOCK", "triton_algo_infos": infos, "targets": ["cuda"]}})
    (space,) = spaces_of(kernel)
    counts = {target: len(variants_of(kernel, space, target)) for target in ("cuda:80", "cuda:90", "hip:gfx942")}
    assert counts == {"cuda:80": 1, "cuda:90": 2, "hip:gfx942": 0}


@pytest.mark.parametrize(
    "space, words",
    [
        ({"signature": "*fp16, i32, i32"}, "expected 4 entries"),
        ({"signature": "*fp16, i32, i32, %OTHER"}, "a value for OTHER"),
        ({"signature": "*fp16, int, i32, %BLOCK"}, "expected a type"),
        ({"signature": "*fp16:8, i32, i32, %BLOCK"}, "a hint of 16"),
        ({"signature": "*fp16:1, i32, i32, %BLOCK"}, "a hint of 16"),
        ({"signature": "*fp16, fp32:16, i32, %BLOCK"}, "a hint of 16"),
        ({"signature": "*fp16, i32, i32, %BLOCK", "grid": ["1", "1"]}, "three expressions"),
        ({"signature": "*fp16, i32, i32, %BLOCK", "grids": []}, "expected signature"),
        ({"signature": "*fp16, i32, i32, i32"}, "BLOCK"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(space, words):
    with pytest.raises(InvalidArgument, match=words):
        fresh({"one": {"triton_algo_infos": INFOS, **space}})


def test_names_are_those_of_c():
    with pytest.raises(InvalidArgument, match="a C name"):
        fresh({"one-two": {"signature": "*fp16, i32, i32, %BLOCK", "triton_algo_infos": INFOS}})
    with pytest.raises(InvalidArgument, match="jit function"):
        aot_compile_spaces({})(len)


def test_signatures_are_split_outside_of_brackets():
    assert split("tensordesc<fp16[64,64],L(a=[1, 2], b=(3,))>, i32 , %X") == [
        "tensordesc<fp16[64,64],L(a=[1, 2], b=(3,))>",
        "i32",
        "%X",
    ]


@pytest.mark.parametrize(
    "expression, values, sms, expected",
    [
        ("(n + 128 - 1) / 128", (300,), 1, 3),
        ("cdiv(n, 7)", (15,), 1, 3),
        ("min(sms, n * 2)", (100,), 132, 132),
        ("max(n // 3 - 4, 1)", (9,), 1, 1),
        ("n % 5 + -2", (14,), 1, 2),
    ],
)
def test_grids_are_the_same_in_c_and_python(expression, values, sms, expected):
    text, _ = to_c(expression, {"n": 0})

    class Value:
        class as_:
            integer = values[0]

    python = text.replace("INT64_C", "").replace("tdist_", "").replace(".as.", ".as_.").replace("/", "//")
    assert (
        eval(python, {"values": [Value], "sms": sms, "min": min, "max": max, "cdiv": lambda a, b: -(-a // b)}) == expected
    )


@pytest.mark.parametrize("expression", ["n; system(1)", "f(n)", "x", "1.5", "n if n else 1", "n.real", "'a'", "n ** 2"])
def test_a_grid_that_is_no_expression_is_refused(expression):
    with pytest.raises(InvalidArgument, match="grid"):
        to_c(expression, {"n": 0})


@pytest.mark.parametrize("text", ["", "cuda:sm90", "cuda", "hip:942", "vulkan:1"])
def test_targets_that_make_no_sense_are_refused(text):
    with pytest.raises(InvalidArgument, match="target"):
        parse_targets(text)


def test_a_list_of_kernels_is_relative_to_its_file(tmp_path):
    (tmp_path / "list.txt").write_text("# some\nhere.py:kernel  # one\n\ntriton_dist.aot.ours:gemm_rs\n")
    assert read_list(tmp_path / "list.txt") == [f"{tmp_path / 'here.py'}:kernel", "triton_dist.aot.ours:gemm_rs"]


@pytest.mark.parametrize(
    "word, words",
    [
        ("kernel", "module:name"),
        ("no.such.module:kernel", "cannot import"),
        ("triton_dist.aot.ours:nothing", "no jit function"),
        ("triton_dist.ops.gemm_ar.kernels:gemm_ar_kernel", "no spaces"),
    ],
)
def test_what_is_no_kernel_is_refused(word, words):
    with pytest.raises(InvalidArgument, match=words):
        find(word)


def test_every_kernel_of_the_list_is_there():
    """scripts/aot_kernels.txt, with at least one variant for each of the usual targets."""
    from pathlib import Path

    words = read_list(Path(__file__).parents[2] / "scripts" / "aot_kernels.txt")
    kernels = [find(word) for word in words]
    assert len({name_of(kernel) for kernel in kernels}) == len(kernels) >= 10
    for target in ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942"):
        assert any(variants_of(kernel, space, target) for kernel in kernels for space in spaces_of(kernel))


def test_a_long_build_tells_how_far_it_is(monkeypatch):
    from triton_dist.aot import kernels

    said: list = []
    monkeypatch.setattr(kernels, "TOLD_EVERY", 2)
    monkeypatch.setattr(kernels, "_run", lambda tasks, jobs: (SimpleNamespace(binary=b"") for _ in tasks))
    made = kernels.compile_all([f"{HERE / 'few_kernels.py'}:{name}" for name in NAMES], parse_targets("cuda:90"), 1, said.append)
    total = sum(len(variants) for _, variants in made.values())
    assert said[: total // 2] == [f"{n} of {total} variants are compiled" for n in range(2, total + 1, 2)] and total > 4
