# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What inductor.py looks for in a graph: products beside collectives, through the reshapes and copies that DTensor leaves."""
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_dist.compat.inductor import detect_fake_mode, functional_collectives, placed
from triton_dist.runtime.groups import name_of

Node = torch.fx.Node
_ATEN, _C10D = torch.ops.aten, functional_collectives
RESHAPES = (_ATEN.reshape.default, _ATEN.view.default, _ATEN._unsafe_view.default)
_PURE = (_C10D.all_gather_into_tensor.default, _C10D.wait_tensor.default, _ATEN.split.Tensor, operator.getitem, _ATEN.cat.default,
         *RESHAPES)
item = operator.getitem
DTYPES = (torch.float16, torch.bfloat16, torch.float32)            # that our ops take


@dataclass(frozen=True)
class Order:
    """How rows lie. Ours have the sequence first, in which ranks have parts; a batch may come before it.

    splits: False where that is no difference, since rows are flat or the batch is one. Then only shapes change.
    """
    splits: bool
    batch: int = 1

    def sequence_first(self, graph: torch.fx.Graph, t: Node) -> Node:
        """`t`, [batch, sequence, K] or flat, as the matrix that our ops take."""
        columns = t.meta["val"].shape[-1]
        if self.splits:
            t = make(graph, _ATEN.permute.default, make(graph, _ATEN.reshape.default, t, [self.batch, -1, columns]), [1, 0, 2])
        return make(graph, _ATEN.reshape.default, t, [-1, columns])

    def batch_first(self, graph: torch.fx.Graph, t: Node, shape: Any, flat: bool = False) -> Node:
        """The matrix `t` of our ops in `shape`, the order of the graph. flat: `shape` is that of a matrix too.

        shape: sizes, or a node that has this shape, since more than one of them may differ from call to call.
        """
        columns = t.meta["val"].shape[-1]
        if self.splits:
            t = make(graph, _ATEN.permute.default, make(graph, _ATEN.reshape.default, t, [-1, self.batch, columns]), [1, 0, 2])
            return make(graph, _ATEN.reshape.default, t, [-1, columns]) if flat else t
        if isinstance(shape, Node):
            shape = [size if isinstance(size, int) else make(graph, _ATEN.sym_size.int, shape, i)
                     for i, size in enumerate(shape.meta["val"].shape)]
        else:
            shape = [size if isinstance(size, int) else -1 for size in shape]
        return make(graph, _ATEN.reshape.default, t, shape)


@dataclass(frozen=True)
class Product:
    """A matrix product, node = left [M, K] @ right [K, N] + bias [N] or None, and the order of its rows."""
    node: Node
    left: Node
    right: Node
    bias: Node | None
    order: Order = Order(False)

    @property
    def dtype(self) -> torch.dtype:
        return self.node.meta["val"].dtype

    def width(self) -> int:
        """N, 0 where it is not a number."""
        size = self.node.meta["val"].shape[1]
        return size if isinstance(size, int) else 0

    def is_ready_before(self, node: Node) -> bool:
        """Whether weight and bias are there before `node`."""
        return all(placed(t) < placed(node) for t in (_transposed(self.right) or self.right, self.bias) if t is not None)

    def weight(self, graph: torch.fx.Graph) -> Node:
        """[N, K], as our ops take it."""
        return _transposed(self.right) or make(graph, _ATEN.permute.default, self.right, [1, 0])

    def with_bias_of_a_sum(self, world: int) -> tuple["Product | None", str]:
        """(the product with the bias that its sum over ranks has, why that is not known). DTensor gives each rank bias / W."""
        if self.bias is None:
            return self, ""
        if self.bias.target is _ATEN.div.Tensor and self.bias.args[1] == world:
            return replace(self, bias=self.bias.args[0]), ""
        return None, "each rank adds a bias of its own"


@dataclass(frozen=True)
class Rows:
    """Gathered rows: `base`, the products that take them, and whether anything else does."""
    base: Node
    order: Order
    products: tuple
    others: int

    def first_user(self) -> Node:
        """The first node that takes them in any shape."""
        return min(self.base.users, key=placed)

    def is_for_one_product(self) -> bool:
        """Whether one product takes them and nothing else."""
        return len(self.products) == 1 and not self.others


def make(graph: torch.fx.Graph, target: Any, *args: Any) -> Node:
    """A new node, with the shape and dtype that Inductor wants to know."""
    node = graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda t: t.meta["val"])
    mode = detect_fake_mode(values)
    with mode:
        node.meta["val"] = target(*values)
    return node


def group_name(name: Any, world: int | None = None) -> str:
    """The name by which our operators know the group of a functional collective."""
    return name_of(str(name)) if world is None else f"{name}@{world}"


def merge_equal(graph: torch.fx.Graph) -> None:
    """Makes one of equal gathers, and of what equally follows them: DTensor gathers anew for each linear."""
    seen: dict = {}
    for node in list(graph.nodes):
        if node.target in _PURE and not node.kwargs:
            key = node.target, str(node.args)
            if key in seen:
                node.replace_all_uses_with(seen[key])
                graph.erase_node(node)
            else:
                seen[key] = node


def rows_of(gather: Node) -> tuple[Rows | None, str]:
    """(the rows that a gather brings, why they cannot be told)."""
    base = only_user(gather, _C10D.wait_tensor.default)
    if base is None:
        return None, "it is used before it is waited for"
    order = Order(False)
    split = only_user(base, _ATEN.split.Tensor)
    if split is not None:                               # gathered along another dimension than the first: parts side by side
        base, batch, dim = _joined(split)
        if base is None or dim != 1 or len(base.meta["val"].shape) != 3 or not isinstance(batch, int):
            return None, "it gathers along another dimension than the first or second"
        order = Order(batch != 1, batch)
    products, others, todo = [], 0, [base]
    while todo:
        rows = todo.pop()
        for user in rows.users:
            product = _product(user)
            if product is not None and product.left is rows and product.right is not rows and product.bias is not rows:
                products.append(product)
            elif user.target in RESHAPES and user.meta["val"].shape[-1] == rows.meta["val"].shape[-1]:
                todo.append(user)
            else:
                others += 1
    return (Rows(base, order, tuple(products), others), "") if products else (None, "no product takes the gathered rows")


def product_before(source: Any) -> tuple[Product | None, str]:
    """(the product that is reduced, through reshapes and a cut of the sequence into the ranks' parts; why there is none)."""
    order, node = Order(False), source
    if node.target is _ATEN.cat.default and (len(node.args) == 1 or node.args[1] == 0):
        split = _whole_split(node.args[0])
        if split is None or len(split.args) < 3 or split.args[2] != 1 or len(node.users) != 1:
            return None, "its parts are not those of the second dimension"
        node = split.args[0]
        batch = node.meta["val"].shape[0]
        if len(node.meta["val"].shape) != 3 or not isinstance(batch, int) or len(node.users) != 1:
            return None, "it scatters along another dimension than the first or second"
        order = Order(batch != 1, batch)
    while node.target in RESHAPES and len(node.users) == 1 and (
            node.meta["val"].shape[-1] == node.args[0].meta["val"].shape[-1]):
        node = node.args[0]
    product = _product(node)
    if product is None:
        return None, "it does not follow a product"
    if len(node.users) != 1:
        return None, "the product before it is used elsewhere too"
    return replace(product, order=order), ""


def _product(node: Node) -> Product | None:
    if node.target is _ATEN.mm.default:
        return Product(node, *node.args, None)
    if node.target is _ATEN.addmm.default and not node.kwargs and len(node.args[0].meta["val"].shape) == 1:
        return Product(node, *node.args[1:], node.args[0])
    return None


def _transposed(node: Node) -> Node | None:
    """What `node` is the transpose of."""
    if node.target is _ATEN.permute.default and list(node.args[1]) == [1, 0]:
        return node.args[0]
    return node.args[0] if node.target is _ATEN.t.default else None


def only_user(node: Node, target: Any) -> Node | None:
    """What uses `node`, where that is one node with this target."""
    user = next(iter(node.users), None)
    return user if len(node.users) == 1 and user.target is target else None


def _joined(split: Node) -> tuple[Node | None, Any, int]:
    """(the cat of all parts of a split along the first dimension, the size of a part, the cat's dimension)."""
    parts = list(split.users)
    cats = {user for part in parts for user in part.users}
    if len(cats) != 1 or len(split.args) > 2 and split.args[2] != 0:
        return None, 0, 0
    cat = cats.pop()
    if cat.target is not _ATEN.cat.default or _whole_split(cat.args[0]) is not split:
        return None, 0, 0
    return cat, split.args[1], cat.args[1] if len(cat.args) > 1 else 0


def _whole_split(parts: Any) -> Node | None:
    """The split whose parts, all of them and in order, `parts` are."""
    if not all(part.target is item and part.args[1] == i for i, part in enumerate(parts)):
        return None
    splits = {part.args[0] for part in parts}
    split = splits.pop()
    whole = not splits and split.target is _ATEN.split.Tensor and len(split.meta["val"]) == len(parts)
    return split if whole else None
