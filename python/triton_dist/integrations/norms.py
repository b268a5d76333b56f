# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What inductor.py looks for after an all-reduce: a residual and an RMS norm, as torch.nn and models of Hugging Face write it.

    total = wait(all_reduce(x)) + residual
    wide = total.to(float32)
    out = weight * (wide * rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(total.dtype)
"""
from dataclasses import dataclass

import torch

from triton_dist.compat.inductor import functional_collectives, placed
from triton_dist.integrations.graphs import DTYPES, RESHAPES, Node, Product, item, make, only_user, product_before
from triton_dist.ops.registry import OPS
from triton_dist.runtime.groups import resolve

_ATEN = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default
_ADDS = (_ATEN.add.Tensor, _ATEN.add.Scalar)


@dataclass(frozen=True)
class Norm:
    """out = rms_norm(total) * weight. residual: what is added to the sum over ranks to give total, or None."""
    total: Node
    residual: Node | None
    out: Node
    weight: Node
    eps: float

    def put(self, graph: torch.fx.Graph, x: Node, group: str) -> None:
        """all_reduce_rmsnorm in the place of the norm and of the all-reduce of x before it."""
        shape = list(self.total.meta["val"].shape)
        with graph.inserting_before(self.total):
            if list(x.meta["val"].shape) != shape:
                x = make(graph, _ATEN.reshape.default, x, shape)
            both = make(graph, OPS["all_reduce_rmsnorm"].operator, x, self.weight, None, self.residual, self.eps, group, "auto")
            out, total = (make(graph, item, both, i) for i in range(2))
        self.out.replace_all_uses_with(out)
        self.total.replace_all_uses_with(total)

    def put_with_product(self, graph: torch.fx.Graph, product: Product, group: str) -> None:
        """gemm_ar_rmsnorm in the place of the norm, and of the all-reduce and the product before it."""
        shape = list(self.total.meta["val"].shape)
        with graph.inserting_before(self.total):
            residual = self.residual
            if residual is not None and len(shape) != 2:
                residual = make(graph, _ATEN.reshape.default, residual, [-1, shape[-1]])
            both = make(graph, OPS["gemm_ar_rmsnorm"].operator, product.left, product.weight(graph), self.weight, product.bias,
                        residual, self.eps, group, "auto")
            out, total = (make(graph, _ATEN.reshape.default, make(graph, item, both, i), shape) for i in range(2))
        self.out.replace_all_uses_with(out)
        self.total.replace_all_uses_with(total)

    def product_for_one_kernel(self, before: Product | None, group: str) -> Product | None:
        """The product before the all-reduce, with the bias of its sum, where gemm_ar_rmsnorm has one kernel for all of it."""
        value, members = self.total.meta["val"], resolve(group)
        if before is None or before.order.splits or before.dtype is not value.dtype:
            return None
        m, n = before.node.meta["val"].shape
        if n != value.shape[-1] or OPS["gemm_ar_rmsnorm"].at(m, n, 1, value.dtype, members).method != "packets":
            return None
        return before.with_bias_of_a_sum(members.size)[0]

    def why_not(self, group: str, follows_product: bool) -> str:
        """Why all_reduce_rmsnorm would not serve it, or might be slower; "" where neither is so."""
        value, members = self.total.meta["val"], resolve(group)
        if not all(isinstance(size, int) for size in value.shape):
            return "its number of rows is not the same in all calls"
        if members.size == 1:
            return "there is one rank"
        if value.dtype not in DTYPES:
            return f"it is of {value.dtype}, expected fp16, bf16 or fp32"
        if not placed(self.weight) < placed(self.total):
            return "its weight is computed later"
        n = value.shape[-1]
        m = value.numel() // max(n, 1)
        agreed = OPS["all_reduce_rmsnorm"].at(m, n, 1, value.dtype, members)
        if agreed.method == "unfused":
            return f"all_reduce_rmsnorm is not faster: {agreed.why}"
        if follows_product and OPS["gemm_ar"].at(m, n, 1, value.dtype, members).method == "ring":
            return "gemm_ar hides its reduce-scatter under the product at this size"
        return ""


def norm_after(reduced: Node) -> tuple[Norm | None, str]:
    """(the norm that follows an all-reduce, why a norm there cannot be fused; "" where there is none)."""
    node = only_user(reduced, functional_collectives.wait_tensor.default)
    if node is None:
        return None, ""
    while (user := next(iter(node.users), None)) is not None and len(node.users) == 1 and user.target in RESHAPES:
        node = user
    residual = None
    if user is not None and len(node.users) == 1 and user.target is _ATEN.add.Tensor and _alike(user):
        left, right = user.args
        if left is not right:
            residual, node = (right if left is node else left), user
    return _norm_of(node, residual)


def _norm_of(total: Node, residual: Node | None) -> tuple[Norm | None, str]:
    """The norm of `total`, among its users."""
    value = total.meta["val"]
    for user in list(total.users):
        wide = user if user.target is _CONVERT and user.args[1] is torch.float32 else total
        for square in wide.users:
            mean = only_user(square, _ATEN.mean.dim) if _is_square(square, wide) else None
            if mean is not None:
                break
        else:
            continue
        if value.dtype is not torch.float32 and wide is total:
            return None, "its mean is not taken in fp32"
        if [dim % value.ndim for dim in mean.args[1]] != [value.ndim - 1] or mean.args[2:3] != (True,):
            return None, "its mean is not that of the last dimension"
        added = next(iter(mean.users))
        root = next(iter(added.users), None)
        if added.target not in _ADDS or not isinstance(added.args[1], (int, float)) or root is None or (
                root.target is not _ATEN.rsqrt.default):
            return None, "it is not an RMS norm"
        if any(len(node.users) != 1 for node in (mean, added, root)):
            return None, "what it computes is used elsewhere too, as by a backward pass"
        return _weighted(Norm(total, residual, total, total, float(added.args[1])), wide, root)
    return None, ""


def _weighted(norm: Norm, wide: Node, root: Node) -> tuple[Norm | None, str]:
    """The norm, with what multiplies by its weight. It rounds to the dtype before that, as Hugging Face does, or after it."""
    value = norm.total.meta["val"]
    normed = next(iter(root.users))
    if normed.target is not _ATEN.mul.Tensor or wide not in normed.args or len(normed.users) != 1:
        return None, "what it computes is used elsewhere too, as by a backward pass"
    if wide is not norm.total and len(wide.users) != 2:
        return None, "what it computes is used elsewhere too, as by a backward pass"
    before = normed
    if (user := next(iter(normed.users))).target is _CONVERT and len(user.users) == 1:
        before = user
    out = next(iter(before.users))
    if out.target is not _ATEN.mul.Tensor:
        return None, "it has no weight"
    weight = out.args[1] if out.args[0] is before else out.args[0]
    if isinstance(weight, Node) and weight.target is _CONVERT and weight.args[0].meta["val"].dtype is value.dtype:
        weight = weight.args[0]                     # widened for the product
    if out.meta["val"].dtype is not value.dtype and len(out.users) == 1 and next(iter(out.users)).target is _CONVERT:
        out = next(iter(out.users))
    like = weight.meta["val"] if isinstance(weight, Node) else None
    if like is None or list(like.shape) != [value.shape[-1]] or like.dtype is not value.dtype or (
            out.meta["val"].dtype is not value.dtype):
        return None, "its weight is not a vector of the dtype that is reduced"
    return Norm(norm.total, norm.residual, out, weight, norm.eps), ""


def _is_square(node: Node, of: Node) -> bool:
    return node.target is _ATEN.pow.Tensor_Scalar and node.args == (of, 2) or (
        node.target is _ATEN.mul.Tensor and node.args == (of, of))


def _alike(add: Node) -> bool:
    """Whether a sum is one of two tensors of one shape and dtype."""
    if add.kwargs or not all(isinstance(t, Node) for t in add.args):
        return False
    left, right = (t.meta["val"] for t in add.args)
    return left.shape == right.shape and left.dtype is right.dtype


def use(graph: torch.fx.Graph, reduced: Node, group: str) -> tuple[str | None, str]:
    """(the op that has taken the place of a sum over ranks and its norm, why none has; "" where there is no norm)."""
    norm, why = norm_after(reduced)
    if norm is None:
        return None, why
    before = product_before(reduced.args[0])[0]
    if why := norm.why_not(group, before is not None):
        return None, why
    product = norm.product_for_one_kernel(before, group)
    if product is not None:
        norm.put_with_product(graph, product, group)
        return "gemm_ar_rmsnorm", ""
    norm.put(graph, reduced.args[0], group)
    return "all_reduce_rmsnorm", ""
