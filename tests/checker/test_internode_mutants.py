# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Each synchronisation of the kernels over nodes deleted or weakened: the checker reports it."""
from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from checking import MODES, SCHEDULES
from mutants import load, source_of
from mutation import mutants
from scenarios import RS, overtaking

from triton_dist.checker import check_kernel
from triton_dist.ops import all_gather_2d, reduce_scatter_2d
from triton_dist.ops.gemm_rs.nodes import RingsOverNodes
from triton_dist.ops.internode import op

KERNELS, GEMM = "triton_dist.ops.internode.kernels", "triton_dist.ops.gemm_rs.nodes_kernel"
PLACES = {KERNELS: ((op.AllGather2d, "all_gather_kernel"), (op.ReduceScatter2d, "reduce_scatter_kernel")),
          GEMM: ((RingsOverNodes, "gemm_rs_nodes_kernel"),)}


class Collectives:
    """One call of each, of [rows, 64] a rank: a piece for each 64 rows."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, seed, group):
        x = torch.full((self.rows * group.size, 64), float(group.rank + seed))
        all_gather_2d(x[:self.rows])
        reduce_scatter_2d(x)
        return lambda: None


SCENARIOS = {KERNELS: lambda: overtaking([Collectives(128), Collectives(8), Collectives(8)]),
             GEMM: lambda: overtaking([RS(40, 40, 64), RS(20, 24, 64)])}
# Mutants that are right, and why.
EQUIVALENT = {
    'another form (its semantic) of dl.wait(signal,': "SHMEM's wait behind it acquires",
    'another form (its scope) of dl.wait(signal,': "SHMEM's wait behind it is of system scope",
    'deletion of dl.consume_token(signal,': "SHMEM's wait polls by itself",
}
ALL = [(module, mutant) for module in PLACES for mutant in mutants(source_of(module))
       if not any(str(mutant).startswith(text) for text in EQUIVALENT)]


@pytest.mark.parametrize("module, mutant", ALL, ids=[f"{module[16:]}: {mutant.line} {mutant}" for module, mutant in ALL])
def test_mutant_is_reported(module, mutant, tmp_path):
    changed = load("kernels", mutant.source, tmp_path)
    with ExitStack() as patches:
        for place, kernel in PLACES[module]:
            patches.enter_context(mock.patch.object(place, "kernel", getattr(changed, kernel)))
        report = check_kernel(SCENARIOS[module], 4, 12, nodes=2, modes=MODES, num_sms=16)
    assert not report.clean, f"survived: {mutant}"


@SCHEDULES
@pytest.mark.parametrize("module", PLACES)
def test_the_kernel_itself_is_clean(module, schedules):
    report = check_kernel(SCENARIOS[module], 4, schedules, nodes=2, modes=MODES, num_sms=16)
    assert report.clean, str(report)
