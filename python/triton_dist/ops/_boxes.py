# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor descriptors of matrices, from which kernels load whole boxes."""
import torch
from triton.tools.tensor_descriptor import TensorDescriptor


class Boxes:
    """Makes descriptors for tensors of one shape and alignment: checked once, then only the base changes."""

    def __init__(self, *block: int):
        self.block, self._fields = block, {}

    def __call__(self, t: torch.Tensor) -> TensorDescriptor:
        if not self._fields:
            self._fields = {**vars(TensorDescriptor.from_tensor(t, list(self.block))), "base": None}
        made = object.__new__(TensorDescriptor)
        vars(made).update(self._fields, base=t)
        return made

    @staticmethod
    def can_read(*tensors: torch.Tensor) -> bool:
        """Whether each has an element, a base at 16 bytes, and rows that are whole 16 bytes apart."""
        return all(t.numel() > 0 and t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)
