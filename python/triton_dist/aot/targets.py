# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Targets of a build: "cuda:90", "hip:gfx942"."""

from dataclasses import dataclass
from typing import Any

from triton_dist.runtime.errors import InvalidArgument


@dataclass(frozen=True)
class Target:
    """vendor: "cuda" or "hip". arch: 90 or "gfx942"."""

    vendor: str
    arch: Any

    def __str__(self) -> str:
        return f"{self.vendor}:{self.arch}"

    @property
    def code(self) -> str:
        """The compilers' own name: sm_90, gfx942."""
        return f"sm_{self.arch}" if self.vendor == "cuda" else self.arch

    @property
    def backend(self) -> str:
        """Our backend for it."""
        return "nvidia" if self.vendor == "cuda" else "amd"

    @property
    def triton(self) -> Any:
        """Triton's target."""
        from triton_dist.compat.compiler import GPUTarget

        lanes = 32 if self.vendor == "cuda" or str(self.arch).startswith(("gfx10", "gfx11", "gfx12")) else 64
        return GPUTarget(self.vendor, self.arch, lanes)

    @property
    def number(self) -> int:
        """The architecture as C code compares it: 90, or the hexadecimal digits of gfx942."""
        return self.arch if self.vendor == "cuda" else int(self.arch.removeprefix("gfx"), 16)


def parse_targets(text: str) -> list[Target]:
    """Targets out of words such as "cuda:90,hip:gfx942", or "sm_90,gfx942". Raises InvalidArgument for others."""
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        vendor, _, arch = _long(word).partition(":")
        if vendor == "cuda" and arch.isdigit() and 70 <= int(arch) < 200:
            found.append(Target(vendor, int(arch)))
        elif vendor == "hip" and arch.startswith("gfx") and len(arch) >= 6:
            found.append(Target(vendor, arch))
        else:
            raise InvalidArgument(f"target: expected cuda:80, cuda:90, hip:gfx942 or the like, found {word!r}")
    if not found:
        raise InvalidArgument("target: expected at least one, such as cuda:90")
    return list(dict.fromkeys(found))


def _long(word: str) -> str:
    """The compilers' own names, with their vendor: sm_90 or sm_90a, gfx942."""
    if word.startswith("sm_"):
        return f"cuda:{word[3:].removesuffix('a')}"
    return f"hip:{word}" if word.startswith("gfx") else word
