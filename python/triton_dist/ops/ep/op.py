# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What dispatch and combine are as ops, both of them."""
from dataclasses import dataclass
from typing import Any, Sequence

from triton_dist.ops.calls.possible import BEFORE_CAPTURE, UNFUSED, across_nodes, no_kernel, no_kernel_over_nodes
from triton_dist.ops.ep import checks, self_flagged
from triton_dist.ops.ep.chunks import Chunks, chunks_of
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group


TWO_LEVEL = "two_level"     # the method over nodes


@dataclass(frozen=True, kw_only=True)
class OfTokens(Agreed):
    """Rows of `row` elements, for up to max_tokens tokens of each rank, which have k choices of `experts`."""
    row: int
    k: int
    experts: int
    max_tokens: int

    @property
    def chunks(self) -> Chunks:
        """How each rank's tokens are cut."""
        return chunks_of(self.max_tokens)


class ExpertsOp(Op):
    """By kernels, or by the group's own collective, for which the host waits."""

    methods = (self_flagged.METHOD, "push", TWO_LEVEL, UNFUSED)
    unfused_in_graphs = False           # the host waits for the numbers of rows

    def chosen(self, method: Any, max_tokens: int, group: Group) -> tuple[str, str]:
        """(the method, why it is another one than was asked for)."""
        return self.possible(method, checks.too_many(max_tokens) or no_kernel(group))

    def chosen_for_rows(self, method: Any, row_bytes: int, max_tokens: int, k: int, experts: int, group: Group,
                        unserved: str | None = None) -> tuple[str, str]:
        """The same where rows of `row_bytes` bytes are sent: "auto" is what their bytes say.

        unserved: why self-flagged rows do not serve the call, where the op knows.
        """
        if method == TWO_LEVEL or method == "auto" and TWO_LEVEL in self.methods and across_nodes(group):
            return self._chosen_over_nodes(method, max_tokens, group)
        asked, (method, why) = method, self.chosen(method, max_tokens, group)
        if method not in ("auto", self_flagged.METHOD) or self_flagged.METHOD not in self.methods:
            return method, why
        reason = unserved or self_flagged.unserved(row_bytes, max_tokens, k, experts // group.size, group)
        if asked == self_flagged.METHOD:
            if reason is not None:
                raise InvalidArgument(f"method: {asked!r} is not possible here: {reason}; use 'auto' or 'push'")
            return asked, ""
        if reason is None:
            pays, reason = self_flagged.pays(row_bytes, max_tokens, k, group.size)
            return self_flagged.METHOD if pays else "push", reason
        return "push", reason

    def _chosen_over_nodes(self, method: str, max_tokens: int, group: Group) -> tuple[str, str]:
        """`chosen_for_rows` of "two_level", and of an "auto" over nodes."""
        if not across_nodes(group):
            reason = "all ranks are on one node"
        elif backend().is_capturing():
            reason = BEFORE_CAPTURE
        else:
            reason = checks.too_many(max_tokens) or no_kernel_over_nodes(group, False)
        found, why = self.possible(method, reason)
        if found == UNFUSED and why != BEFORE_CAPTURE:
            self.warn_unfused(why)
        if found == UNFUSED:
            return found, why
        return TWO_LEVEL, f"the ranks are on {len(group.nodes)} nodes" if method == "auto" else ""

    def refuse_unfused_capture(self, agreed: OfTokens) -> None:
        """Raises where a graph is captured that cannot hold the call."""
        if agreed.method == "unfused" and backend().is_capturing():
            raise InvalidArgument(
                "method: graph capture needs another one, and that this call has run before, since the host waits for "
                "the numbers of rows otherwise")

    def candidates(self, agreed: OfTokens, group: Group) -> Sequence[Choice]:
        if not agreed.max_tokens:       # on all ranks, so no epoch is taken
            return [Choice("unfused")]
        return [Choice("push" if agreed.method == "auto" else agreed.method)]

    def shape(self, agreed: OfTokens, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.max_tokens * group.size, agreed.row, agreed.k)
