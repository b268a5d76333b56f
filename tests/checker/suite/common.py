# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the host functions share."""
import torch

import triton_dist
from triton_dist.runtime.groups import Group, resolve

N = 64                   # elements of a block: 256 bytes of float32, the heap's grain


def symm(*shape: int, dtype: torch.dtype = torch.float32, name: str = "", group: Group | None = None) -> torch.Tensor:
    """A zeroed symmetric tensor of float32."""
    return triton_dist.create_symm_tensor(shape, dtype, group, name=name)


def flags(count: int = 4, name: str = "flags", group: Group | None = None, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Symmetric signal words."""
    return triton_dist.create_symm_tensor((count, ), dtype, group, name=name)


def filled(value: float, n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A local tensor [n] of one value."""
    return torch.full((n, ), value, dtype=dtype)


def meet() -> None:
    """All work of all ranks is done."""
    triton_dist.synchronize()
    resolve().barrier()


def pairs(*found: tuple) -> list:
    """[(found, expected)] as tensors of their own; a number stands for a tensor full of it."""
    return [(got.clone(), want.clone() if isinstance(want, torch.Tensor) else torch.full_like(got, want)) for got, want in found]


def streams(count: int) -> list:
    """New streams, ordered behind what has been done so far: inputs are there."""
    made = [triton_dist.new_stream() for _ in range(count)]
    for stream in made:
        stream.wait_stream(triton_dist.current_stream())
    return made
