# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's Config, which tunes its kernels. Ours choose their sizes themselves, so nothing in it has an effect."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Sizes of DeepEP's kernels. They are kept and have no meaning here."""
    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: calls reserve what they need in the symmetric heap."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0, likewise."""
        return 0
