# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The table of published names: each name that it calls there can be imported, and the host's and the ops' do their work."""
import importlib
import sys
from pathlib import Path

import pytest
import torch
from launched import python

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.dropin import host, lazy, stream_calls, timing
from triton_dist.dropin.names import DEVICE, HOST, OPS, TABLES
from triton_dist.kernels import nvidia
from triton_dist.kernels.nvidia import allreduce
from triton_dist.dropin.tuning import autotune
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve

DOCS = Path(__file__).resolve().parents[2] / "docs"
EVERY = [name for names in TABLES.values() for name in names]


@pytest.mark.parametrize("module", sorted({name.module for name in EVERY}))
def test_names_are_where_scripts_import_them(module):
    names = [name for name in EVERY if name.module == module]
    if all(name.missing for name in names):
        with pytest.raises((ImportError, AttributeError)):
            getattr(importlib.import_module(module), names[0].name)
        return
    found = importlib.import_module(module)
    assert not [name.name for name in names if bool(name.missing) == hasattr(found, name.name)]


def test_every_name_has_a_clean_form_or_a_reason():
    assert all(bool(name.clean) != bool(name.missing) for name in EVERY)
    assert len(HOST) == 59 and len(DEVICE) > 139 and len(OPS) > 80
    assert len({(name.module, name.name) for name in EVERY}) == len(EVERY)


def test_the_page_is_what_its_script_writes(tmp_path):
    python(str(DOCS / "write_migration.py"), str(tmp_path / "page.md")).check_returncode()
    assert (DOCS / "migration.md").read_text() == (tmp_path / "page.md").read_text(), "write it: python docs/write_migration.py"


def host_names() -> None:
    group = host.initialize_distributed(seed=3)
    rank, size = group.rank(), group.size()
    assert host.is_shmem_initialized() and host.get_triton_dist_world() is not None
    own = host.nvshmem_create_tensor((4,), host.NVSHMEM_SIGNAL_DTYPE)
    every = host.nvshmem_create_tensors((4,), torch.float32, rank, size)
    every[rank].fill_(rank)
    host.nvshmem_barrier_all_on_stream()
    assert [t[0].item() for t in every] == list(range(size))
    side = triton_dist.new_stream()
    stream_calls.wait_eq(own[1], 7, side)
    stream_calls.set_signal(own[2], 5, side)
    assert own[2] == 0, "the stream waits"
    stream_calls.set_signal(own[1], 7)
    side.synchronize()
    assert own.tolist() == [0, 7, 5, 0]
    source, copied = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    stream_calls.memcpy(copied, source, 64, side)
    side.synchronize()
    assert torch.equal(source, copied)
    pool = lazy.NVSHMEMLazyAllocator(lazy=True)
    first = pool.create_tensor("first", [4, 8], torch.bfloat16)
    second = pool.create_tensor("second", [3], torch.int32, fill_value=9)
    assert pool.get_total_nvshmem_size() == 64 + 12 and not first.is_materialized and first.shape == (4, 8)
    pool.sync()
    assert second.tensor.tolist() == [9, 9, 9] and pool.get_tensor_breakdown() == {"first": 64, "second": 12}
    for tensor in (second, first):
        pool.free_tensor(tensor)
    host.nvshmem_free_tensor_sync(every[rank])
    host.nvshmem_free_tensor_sync(own)


def op_names() -> None:
    group = host.initialize_distributed()
    rank, size = group.rank(), group.size()
    torch.manual_seed(1)
    x, b = torch.randn(size * 8, 32), torch.randn(32, size * 16)
    mine, columns = x[rank * 8:(rank + 1) * 8].contiguous(), b[:, rank * 16:(rank + 1) * 16]
    ctx = nvidia.create_ag_gemm_context(size * 8, size * 16, 32, torch.float32, rank, size, num_local_ranks=size)
    for given in (columns, columns.t().contiguous().t()):
        timing.assert_allclose(nvidia.ag_gemm(mine, given, ctx=ctx), x @ columns, rtol=1e-4, atol=1e-4, verbose=False)
    assert ctx.symm_workspace.shape == (size * 8, 32) and len(ctx.symm_barriers) == size
    ctx.finalize()
    part, weight = torch.randn(size * 8, 32), torch.randn(32, 16)
    total = nvidia.gemm_rs(part, weight, nvidia.create_gemm_rs_context(size * 8, 16, rank, size, size, torch.float32))
    timing.assert_allclose(total, size * (part @ weight)[rank * 8:(rank + 1) * 8], rtol=1e-4, atol=1e-4, verbose=False)
    timing.assert_allclose(nvidia.gemm_allreduce_op(None, part, weight.t().contiguous()), size * (part @ weight), rtol=1e-4,
                           atol=1e-4, verbose=False)
    by = allreduce.create_allreduce_ctx(1 << 16, rank, size, size)
    reduced = allreduce.all_reduce(mine, allreduce.AllReduceMethod.OneShot, by)
    timing.assert_allclose(reduced, x.view(size, 8, 32).sum(0), rtol=1e-5, atol=1e-5, verbose=False)
    rows = torch.zeros(size * 2, 4)
    rows[rank * 2:rank * 2 + 2] = rank + 1
    gathered = nvidia.fast_allgather(rows, nvidia.create_fast_allgather_context(rank, 0, size, 1))
    assert gathered[::2, 0].tolist() == [1.0 + r for r in range(size)]


@pytest.mark.parametrize("case", [host_names, op_names])
def test_names_do_their_work(case):
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    try:
        run_ranks(case, 2)
    finally:                                        # the published set-up asks for deterministic algorithms
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def test_data_and_timing():
    assert host.rand_tensor((64,), torch.int8).dtype == torch.int8 and abs(host.rand_tensor((64,), torch.float16)).max() <= 1
    made = next(host.generate_data([((3, 4), torch.float32, (2.0, 1.0)), None]))
    first, nothing = made
    assert first.shape == (3, 4) and nothing is None and (first - 1).abs().max() <= 2
    calls = []
    assert timing.perf_func(lambda: calls.append(1) or 5, iters=3, warmup_iters=2)[0] == 5 and len(calls) == 5
    with pytest.raises(AssertionError):
        timing.assert_allclose(torch.ones(3), torch.zeros(3))
    with pytest.raises(RuntimeError, match="a call of the driver failed"):
        host.CUDA_CHECK(2)
    assert timing.bitwise_equal(torch.ones(3), torch.ones(3)) and not timing.bitwise_equal(torch.zeros(1), torch.tensor([-0.0]))


def test_old_names_of_cuda_python_lead_to_its_bindings(monkeypatch, tmp_path):
    from triton_dist.dropin import packages
    for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    bindings = tmp_path / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for name in ("driver", "runtime", "nvrtc"):
        (bindings / f"{name}.py").write_text(f"WHAT = {name!r}\n")
    (tmp_path / "cuda" / "nvrtc.py").write_text("WHAT = 'own'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        packages.old_names_of_cuda_python()
        from cuda import cuda, cudart, nvrtc        # pyright: ignore
        assert (cuda.WHAT, cudart.WHAT, nvrtc.WHAT) == ("driver", "runtime", "own")
    finally:
        for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
            del sys.modules[name]


def test_what_fails_on_one_rank_is_ruled_out_on_all():
    def script():
        rank, seen = resolve().rank, []

        def decorated(fails):
            @autotune([{"ways": 0}, {"ways": 1}], key_fn=lambda: 0)
            def chosen(ways):
                if fails(ways):
                    raise ValueError(f"no way {ways}")
                seen.append(ways)
                return ways
            return chosen
        assert decorated(lambda ways: ways == 0 and rank == 1)(autotune=True) == 1
        assert (0 in seen) == (rank == 0)
        with pytest.raises(UnsupportedFeature, match="each of 2 configurations fails on some rank: ValueError: no way"):
            decorated(lambda ways: ways == rank)(autotune=True)
        resolve().barrier()
    run_ranks(script, 2)
    with pytest.raises(InvalidArgument, match="config_space: expected at least one"):
        autotune([], key_fn=lambda: 0)
