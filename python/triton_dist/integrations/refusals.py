# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a rank refuses in a collective call of an adapter, before it reaches an op: its peers are told, as by an op."""
from contextlib import contextmanager
from typing import Iterator

from triton_dist.ops.calls.agree import refuse
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state

REFUSALS = (InvalidArgument, UnsupportedFeature)


@contextmanager
def told(members: Group, call: str) -> Iterator[None]:
    """Around the checks of `call` that come before its first op. Raises at once where ranks have differed before."""
    state().expect_pairs()
    try:
        yield
    except REFUSALS as error:
        refuse(members, call, error)
        raise
