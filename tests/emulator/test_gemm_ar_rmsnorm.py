# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar_rmsnorm on virtual worlds: shapes, dtypes, what is added, methods, cuts of rows, streams, epochs, capture."""
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from unittest import mock

import pytest
import torch
from normed_products import GARN
from scenarios import captures_by_rank  # noqa: F401
from scenarios import BF16, F16, F32, back_to_back

from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks

pytestmark = pytest.mark.usefixtures("captures_by_rank")
op = import_module("triton_dist.ops.gemm_ar_rmsnorm.op")          # triton_dist.ops.gemm_ar_rmsnorm is the function
SHAPES = [(1, 64, 64), (9, 41, 50), (70, 33, 130), (2, 1, 1), (17, 200, 300), (3, 1030, 40)]


@contextmanager
def cut(split=None, boxes=True):
    """Tilings with so many pieces of a tile; operands by descriptor where they can be read so, or by pointer."""
    usual = op.tiling
    with mock.patch.object(op, "tiling", lambda *args: replace(found := usual(*args), split=split or found.split)), \
            mock.patch.object(EmulatorBackend, "copies_boxes", lambda self: boxes):
        yield


@pytest.mark.every("world")
@pytest.mark.parametrize("world, boxes", [(1, True), (2, True), (3, True), (3, False), (4, True), (8, True)])
def test_ragged_shapes_back_to_back(world, boxes):
    """Some can be read by descriptor; of some each row has several programs."""
    shapes = SHAPES if world < 8 else SHAPES[1:4]
    with cut(boxes=boxes):
        run_ranks(lambda: back_to_back([GARN(*shape) for shape in shapes]), world, seed=world)
