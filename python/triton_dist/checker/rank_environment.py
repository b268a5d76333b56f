# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torchrun's variables as a virtual rank sees them: virtual ranks share one os.environ."""
import os
from contextlib import contextmanager
from typing import Any, Iterator

from triton_dist.backends.emulator.worlds.process_group import here

_RANK = (b"RANK", b"LOCAL_RANK")
_SIZE = (b"WORLD_SIZE", b"LOCAL_WORLD_SIZE")


class _Variables(dict):
    """The data of os.environ, with torchrun's variables of the calling rank."""

    def __getitem__(self, key: Any) -> Any:
        rank = here()
        if rank is not None and key in _RANK:
            return str(rank.virtual.rank).encode()
        if rank is not None and key in _SIZE:
            return str(rank.virtual.size).encode()
        if rank is not None and key == b"TORCHELASTIC_RUN_ID":
            return b"check"
        return super().__getitem__(key)


@contextmanager
def rank_environment() -> Iterator[None]:
    """Inside the block os.environ has RANK, WORLD_SIZE and the like of the calling virtual rank."""
    data = os.environ._data
    os.environ._data = _Variables(data)
    try:
        yield
    finally:
        os.environ._data = data
