# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published lazy allocator: tensors that are described first and made together, so that their size is known before."""
import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from triton_dist.dropin import host


@dataclass
class LazyTensorSpec:
    """What a tensor will be."""
    name: str
    shape: list
    dtype: torch.dtype
    fill_value: float | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


class LazyTensor:
    """A tensor that is made later. Attributes and items are those of the tensor, once there is one."""

    def __init__(self, spec: LazyTensorSpec):
        self.spec, self._tensor = spec, None

    @property
    def is_materialized(self) -> bool:
        return self._tensor is not None

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor. Raises RuntimeError before it is made."""
        if self._tensor is None:
            raise RuntimeError(f"{self.spec.name} is not made yet: call sync() of its allocator first")
        return self._tensor

    def make(self, tensor: torch.Tensor) -> None:
        """Becomes this tensor, filled as asked."""
        self._tensor = tensor if self.spec.fill_value is None else tensor.fill_(self.spec.fill_value)

    def fill_(self, value: float) -> "LazyTensor":
        """Fills the tensor, now or when it is made."""
        self.spec.fill_value = value
        if self._tensor is not None:
            self._tensor.fill_(value)
        return self

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_tensor") is None and name in ("shape", "dtype", "nbytes"):
            return torch.Size(self.spec.shape) if name == "shape" else getattr(self.spec, name)
        return getattr(self.tensor, name)

    def __getitem__(self, key: Any) -> Any:
        return self.tensor[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[key] = value


class LazyAllocator:
    """Makes tensors by `create_tensor_fn(shape, dtype)`: at once, or all at `sync()` where it is lazy."""

    def __init__(self, create_tensor_fn: Callable, free_tensor_fn: Callable | None = None, lazy: bool = False):
        self._create, self._free, self.lazy = create_tensor_fn, free_tensor_fn, lazy
        self._tensors: list = []
        self.is_materialized = not lazy

    def create_tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype, fill_value: float | None = None) -> LazyTensor:
        made = LazyTensor(LazyTensorSpec(name, list(shape), dtype, fill_value))
        self._tensors.append(made)
        if self.is_materialized:
            made.make(self._create(shape, dtype))
        return made

    def sync(self) -> None:
        """Makes all tensors that are not made yet."""
        for lazy in self._tensors:
            if not lazy.is_materialized:
                lazy.make(self._create(lazy.spec.shape, lazy.spec.dtype))
        self.is_materialized = True

    materialize = sync

    def get_total_size(self) -> int:
        """Bytes of all tensors, made or not."""
        return sum(lazy.spec.nbytes for lazy in self._tensors)

    def get_total_size_gb(self) -> float:
        return self.get_total_size() / 2**30

    def get_total_size_mb(self) -> float:
        return self.get_total_size() / 2**20

    get_total_nvshmem_size, get_total_nvshmem_size_gb, get_total_nvshmem_size_mb = (get_total_size, get_total_size_gb,
                                                                                    get_total_size_mb)

    def get_tensor_breakdown(self) -> dict:
        """Bytes by name."""
        return {lazy.spec.name: lazy.spec.nbytes for lazy in self._tensors}

    def free_tensor(self, tensor: Any) -> None:
        """Frees a tensor, lazy or not."""
        found = tensor.tensor if isinstance(tensor, LazyTensor) and tensor.is_materialized else tensor
        if self._free is not None and isinstance(found, torch.Tensor):
            self._free(found)

    def __len__(self) -> int:
        return len(self._tensors)


class NVSHMEMLazyAllocator(LazyAllocator):
    """A LazyAllocator of symmetric tensors."""

    def __init__(self, lazy: bool = False):
        super().__init__(host.nvshmem_create_tensor, host.nvshmem_free_tensor_sync, lazy)
