# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The emulator runs the functions that a script names, as they were when they were imported."""
import gc
import importlib.util
import weakref

import pytest
import torch

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.runtime.errors import InvalidArgument

KERNEL = """
import triton
import triton.language as tl
import triton_dist


@triton.jit
def {name}(x{more}):
    return x * {factor}


@triton_dist.jit
def kernel(out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, {name}(i.to(tl.float32){given}))
"""

# Names that Triton's own modules have functions of, with a module of that name each.
HELPERS = [("math", "exp", 1), ("core", "load", 1), ("standard", "sum", 1), ("random", "rand", 2), ("libdevice", "tanh", 1),
           ("utils", "smid", 1), ("memory", "symm_at", 2), ("index", "index", 1), ("hopper_prims", "pause", 1),
           ("gluon_core", "arange", 1), ("mbarrier", "wait", 1), ("member", "member", 1)]


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")


def load(path, text, name=None):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source(name="scale", factor=3, arguments=1):
    more = "".join(f", a{i}" for i in range(1, arguments))
    return KERNEL.format(name=name, factor=factor, more=more, given=", 0" * (arguments - 1))


def result(kernel):
    def host():
        out = torch.zeros(8)
        kernel[(1,)](out, N=8)
        triton_dist.synchronize()
        return out.tolist()
    return run_ranks(host, 1)[0]


@pytest.mark.parametrize("package", ["", "mykernels."])
@pytest.mark.parametrize("module, name, arguments", HELPERS)
def test_a_users_helper_is_never_taken_for_one_of_tritons(tmp_path, package, module, name, arguments):
    made = load(tmp_path / f"{module}.py", source(name, 3, arguments), f"{package}{module}")
    assert result(made.kernel) == [3.0 * i for i in range(8)]


@pytest.mark.parametrize("change", ["edited", "longer", "gone", "nonsense"])
def test_a_kernel_runs_as_it_was_imported(tmp_path, change):
    path = tmp_path / "kernels.py"
    made = load(path, source(factor=3))
    if change == "edited":
        path.write_text(source(factor=5))
    elif change == "longer":
        path.write_text("# a line\n\n\n" + source(factor=5))
    elif change == "gone":
        path.unlink()
    else:
        path.write_text("def (")
    assert result(made.kernel) == [3.0 * i for i in range(8)]


METHOD = """
import triton.language as tl
import triton_dist
from triton.language import core
from triton.runtime.jit import constexpr_function
import triton


@core._aggregate
class Scale:
    by: tl.constexpr

    @constexpr_function
    def __init__(self, by):
        self.by = core.constexpr(by)

    def times(self, x, _semantic=None):
        return x


@triton_dist.jit
def kernel(out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, Scale(2).times(i.to(tl.float32)))
"""


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_a_function_whose_source_nobody_kept_must_be_in_its_file_still(tmp_path, change):
    path = tmp_path / "aggregates.py"
    made = load(path, METHOD)
    path.write_text(METHOD.replace("return x", "return x + 1")) if change == "edited" else path.unlink()
    with pytest.raises(InvalidArgument, match="times: .*aggregates.py"):
        result(made.kernel)


def test_the_rule_on_tokens_reads_the_source_that_runs(tmp_path):
    """The file is replaced after the import: a load that ignores its token is found all the same."""
    text = """
import triton.language as tl
import triton_dist
import triton_dist.language as dl


@triton_dist.jit
def kernel(data, flags, out):
    if dl.rank() == 0:
        for c in range(2):
            tl.store(dl.symm_at(data, 1) + c, 1.0)
            dl.notify(flags + c, 1)
    else:
        for c in range(2):
            token = dl.wait(flags + c, 1, "sys", "acquire")
            dl.consume_token(data, token)
            tl.store(out + c, tl.load(data + c))
"""
    path = tmp_path / "tokens.py"
    made = load(path, text)
    path.write_text("# " * 40 + "\n" + text.replace("dl.consume_token(data, token)", "data = dl.consume_token(data, token)"))

    def host():
        data = triton_dist.create_symm_tensor((2,), torch.float32, name="data")
        made.kernel[(1,)](data, triton_dist.create_symm_tensor((2,), torch.int32), torch.zeros(2))
        triton_dist.synchronize()
    report = check_kernel(host, 2, schedules=2)
    assert "consume_token" in str(report) and report.faults[0].kind == "race"


def test_nothing_keeps_a_checked_kernel_alive(tmp_path):
    made = load(tmp_path / "kernels.py", source())

    def host():
        made.kernel[(1,)](torch.zeros(8), N=8)          # noqa: F821 - deleted below
        triton_dist.synchronize()
    assert check_kernel(host, 1, schedules=2).clean
    alive = [weakref.ref(made.kernel), weakref.ref(made.scale)]
    del made, host
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
