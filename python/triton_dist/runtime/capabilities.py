# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ops ask of a device beyond its contract: tilings, faster cores, and measured rates.

A capability describes the device, not an op. An op that needs a new tiling derives it from these; adding an op edits
neither this file nor `runtime/device.py`.
"""
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Sequence


class GemmConfig(NamedTuple):
    """Tiling of the portable GEMM core: block sizes in elements, programs per group of rows, warps and stages."""
    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_warps: int
    num_stages: int

    def options(self) -> dict:
        """Launch options of a kernel that takes these as constexprs."""
        return dict(BLOCK_M=self.block_m, BLOCK_N=self.block_n, BLOCK_K=self.block_k, GROUP_M=self.group_m,
                    num_warps=self.num_warps, num_stages=self.num_stages)


@dataclass(frozen=True)
class MachineModel:
    """Rates of a device and its links, from which ops predict times.

    gemm_tflops: dense rate of the vendor library at large 2-byte shapes; core_ratio, portable_ratio: the fused kernels' rate
    relative to it; link_gbs: copy engine to a peer, GB/s one way; collective_gbs, collective_us: a library all-gather or
    reduce-scatter takes collective_us plus the bytes into a device at collective_gbs; launch_us, fused_us: host time of a
    library call and of a fused op's call; signal_us: store to poll between devices; fuse_gather_bytes, fuse_scatter_bytes: from
    how many bytes into a device fusing an all-gather or a reduce-scatter with a GEMM has paid. For calls in graphs:
    memory_gbs: the rate at which a matmul of few rows reads its weights; kernel_us: what a kernel takes without work; hop_us: a
    hop of packets.
    switched: a switch gives one peer the whole rate of a device's links; otherwise each peer has a link of its own.
    published: the rates are others' publications; otherwise this project has measured them.
    """
    sms: int
    gemm_tflops: float
    core_ratio: float
    portable_ratio: float
    link_gbs: float
    collective_gbs: float
    collective_us: float
    launch_us: float
    fused_us: float
    signal_us: float
    fuse_gather_bytes: int
    fuse_scatter_bytes: int
    memory_gbs: float
    kernel_us: float
    hop_us: float
    switched: bool = True
    published: bool = False


@cache
def _others(usual: GemmConfig) -> tuple[GemmConfig, GemmConfig]:
    return usual._replace(block_n=usual.block_n // 2), usual._replace(group_m=1)


class Capabilities(ABC):
    """What a device is good at. All methods but `gemm_config` have an answer for a device of which nothing is known."""

    @abstractmethod
    def gemm_config(self, dtype: Any, m: int) -> GemmConfig:
        """Tiling of the portable GEMM core for chunks of `m` rows. Equal arguments give equal tilings on all ranks."""

    def gemm_configs(self, dtype: Any, m: int) -> list[GemmConfig]:
        """Tilings of the portable GEMM core among which measuring may choose, `gemm_config` first."""
        usual = self.gemm_config(dtype, m)
        return [usual, *_others(usual)]

    def few_rows_config(self, dtype: Any, m: int) -> GemmConfig:
        """Tiling of a product of `m` rows where reading the weights takes the time. One tile has all the rows."""
        return self.gemm_config(dtype, m)._replace(block_m=max(16, 1 << (m - 1).bit_length()))

    def weights_config(self, dtype: Any, m: int, n: int) -> GemmConfig:
        """Tiling of a product of `m` rows with a weight of `n` rows, read by pointers: tiles have up to 64 of the former."""
        return self.few_rows_config(dtype, min(m, 64))

    def copies_boxes(self) -> bool:
        """Whether loads by tensor descriptor go to shared memory without passing through registers."""
        return False

    def allow_tf32(self) -> bool:
        """Whether the user lets fp32 products be rounded to tf32, by torch's own switch for matmuls."""
        return False

    def core(self, op: str) -> Any:
        """The faster core that this device has for an op.

        Args:
            op: the name under which the core was registered, such as "ag_gemm".

        Returns:
            An object of `cores/`, or None if the op is to run its portable kernel.
        """
        return None

    def machine_model(self) -> MachineModel | None:
        """Measured rates of this kind of device; None where nothing has been measured."""
        return None

    def alike(self, device: str) -> bool:
        """Whether times measured on `device` hold for the calling rank's as well."""
        return device == self.device_name()

    def tables(self) -> Sequence[Path]:
        """Files of measured times that are shipped for devices of this backend; `ops/tuning/table.py` reads them."""
        return ()
