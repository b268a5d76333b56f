# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One line for models that are already parallel by torch's own means: compiled graphs get our ops in place of collectives.

    triton_dist.integrations.inductor.enable()
    model = torch.compile(model)            # DTensor or functional collectives inside

A pass of Inductor looks for a gather before products, and for a reduce-scatter or an all-reduce after one, in the forward and in
the backward graph.
"""
import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from triton_dist.compat.distributed import group_sizes
from triton_dist.compat.inductor import CustomGraphPass, functional_collectives, get_hash_for_files, inductor_config
from triton_dist.integrations import graphs, norms
from triton_dist.integrations.graphs import (DTYPES, Product, group_name, item, make, merge_equal, only_user, product_before,
                                             rows_of)
from triton_dist.ops.ag_gemm.op import AG_GEMM_GATHERED
from triton_dist.ops.all_reduce_rmsnorm import base as norm_op
from triton_dist.ops.gemm_ar_rmsnorm import op as product_op
from triton_dist.ops.registry import OPS
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import size_of

LOG = logging.getLogger("triton_dist.inductor")
_C10D = functional_collectives


@dataclass
class Report:
    """What the pass has done to the graphs compiled since `enable()`. Graphs that Inductor finds on disk are not in it.

    Attributes:
        replaced: a line for each op that was put in, such as "ag_gemm for all_gather_into_tensor".
        kept: a line for each collective that was left as it is, with the reason.
    """
    replaced: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def note(self, node: Any, op: str | None, why: str = "") -> None:
        """Enters and logs what became of a collective."""
        what = node.target.__name__.split(".")[0]
        (self.replaced if op else self.kept).append(f"{op} for {what}" if op else f"{what}: {why}")
        LOG.info("%s %s: %s", node.name, what, op or f"kept, {why}")


def enable() -> Report:
    """Adds the pass to those of Inductor. Call it before the model is compiled, alike on all ranks.

    Returns a Report, which fills as graphs are compiled; the logger "triton_dist.inductor" says the same at level INFO. A second
    call takes the place of the first. Raises InvalidArgument where another pass is set that cannot be combined.
    """
    disable()
    found = inductor_config.post_grad_custom_pre_pass
    if found is not None and not isinstance(found, CustomGraphPass):
        raise InvalidArgument("torch._inductor.config.post_grad_custom_pre_pass: expected None or a CustomGraphPass, found "
                              f"{type(found).__name__}; make it one, or apply the two passes in one function")
    report = Report()
    inductor_config.post_grad_custom_pre_pass = Overlap(report, found)
    return report


def disable() -> None:
    """Takes the pass out again. Graphs that are compiled already keep our ops."""
    found = inductor_config.post_grad_custom_pre_pass
    if isinstance(found, Overlap):
        inductor_config.post_grad_custom_pre_pass = found.before


class Overlap(CustomGraphPass):
    """The pass. before: another one, which runs first."""

    def __init__(self, report: Report, before: Any = None):
        self.report, self.before = report, before

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.before is not None:
            self.before(graph)
        merge_equal(graph)
        for node in list(graph.nodes):
            rewrite = _REWRITES.get(node.target)
            if rewrite is not None:
                op, why = self._norm(graph, node), ""
                if op is None:
                    op, why = rewrite(graph, node)
                self.report.note(node, op, why)
        graph.eliminate_dead_code()
        graph.lint()

    def _norm(self, graph: torch.fx.Graph, node: Any) -> str | None:
        """all_reduce(x, "sum", group), and a residual and an RMS norm after it. Notes why a norm that is there stays."""
        if node.target is not _C10D.all_reduce.default or node.args[1] != "sum":
            return None
        op, why = norms.use(graph, node, group_name(node.args[2]))
        if why:
            self.report.note(node, None, f"the norm after it stays, {why}")
        return op

    def uuid(self) -> Any:
        """Graphs on disk are taken again for the same text of this pass, limits of sizes and sizes of groups, which our ops name.

        An all-reduce does not have the last one.
        """
        other = self.before.uuid() if self.before is not None else b""
        return None if other is None else (get_hash_for_files(
            (__file__, graphs.__file__, norms.__file__, norm_op.__file__, product_op.__file__)), other, group_sizes())


def _gather(graph: torch.fx.Graph, node: Any) -> tuple[str | None, str]:
    """all_gather_into_tensor(shard, W, group) before products. The widest takes the gather; others take what it has gathered."""
    shard, world, group = node.args
    rows, why = rows_of(node)
    if rows is None:
        return None, why
    first = rows.first_user()
    ready = [product for product in rows.products if product.dtype in DTYPES and product.is_ready_before(first)]
    if not ready:
        return None, "no product of fp16, bf16 or fp32 takes the gathered rows, with a weight that is there in time"
    widest = max(ready, key=lambda product: product.width())
    with graph.inserting_before(first):
        call = (rows.order.sequence_first(graph, shard), widest.weight(graph), widest.bias, group_name(group, world), "auto",
                None, None)
        if rows.is_for_one_product():
            out = make(graph, OPS["ag_gemm"].operator, *call)
        else:
            both = make(graph, AG_GEMM_GATHERED.operator, *call)
            out, gathered = (make(graph, item, both, i) for i in range(2))
            rows.base.replace_all_uses_with(rows.order.batch_first(graph, gathered, rows.base.meta["val"].shape))
        widest.node.replace_all_uses_with(rows.order.batch_first(graph, out, widest.node.meta["val"].shape, flat=True))
    return "ag_gemm", ""


def _scatter(graph: torch.fx.Graph, node: Any) -> tuple[str | None, str]:
    """reduce_scatter_tensor(product, "sum", W, group)."""
    source, op, world, group = node.args
    product, why = _summed(node, source, op, world)
    if product is None:
        return None, why
    with graph.inserting_before(node):
        out = make(graph, OPS["gemm_rs"].operator, product.order.sequence_first(graph, product.left), product.weight(graph),
                   product.bias, group_name(group, world), None, "auto")
        _wait(node).replace_all_uses_with(product.order.batch_first(graph, out, node.meta["val"].shape))
    return "gemm_rs", ""


def _reduce(graph: torch.fx.Graph, node: Any) -> tuple[str | None, str]:
    """all_reduce(product, "sum", group)."""
    source, op, group = node.args
    name = group_name(group)
    product, why = _summed(node, source, op, size_of(name))
    if product is None:
        return None, why
    if product.order.splits:
        return None, "its rows are put in another order"
    with graph.inserting_before(node):
        out = make(graph, OPS["gemm_ar"].operator, product.left, product.weight(graph), product.bias, None, name, "auto")
        _wait(node).replace_all_uses_with(product.order.batch_first(graph, out, source))
    return "gemm_ar", ""


def _summed(node: Any, source: Any, op: str, world: int) -> tuple[Product | None, str]:
    """(the product that a collective sums over ranks, why none can be put in its place)."""
    if op != "sum":
        return None, f"its op is {op!r}, expected 'sum'"
    if _wait(node) is None:
        return None, "it is used before it is waited for"
    product, why = product_before(source)
    if product is None:
        return None, why
    if product.dtype not in DTYPES:
        return None, f"the product is of {product.dtype}, expected fp16, bf16 or fp32"
    return product.with_bias_of_a_sum(world)


def _wait(node: Any) -> Any:
    """The wait after a collective; None where it is used otherwise."""
    return only_user(node, _C10D.wait_tensor.default)


_REWRITES = {_C10D.all_gather_into_tensor.default: _gather, _C10D.reduce_scatter_tensor.default: _scatter,
             _C10D.all_reduce.default: _reduce}
