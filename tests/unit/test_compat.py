# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Private names of torch and Triton: each is there, is what it is taken for, and is used by way of compat/ alone."""
import ast
import importlib
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "triton_dist"
ROOMS = sorted(path.stem for path in (PACKAGE / "compat").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", ROOMS)
def test_every_private_name_is_there(name):
    """That the module imports says most: it binds all of its names."""
    module = importlib.import_module(f"triton_dist.compat.{name}")
    bound = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    assert bound and not [key for key, value in bound.items() if value is None and key not in getattr(module, "OPTIONAL", ())]


@pytest.mark.skipif(torch.version.cuda is None and torch.version.hip is None, reason="this torch is built for the CPU")
def test_a_torch_for_gpus_lacks_nothing():
    from triton_dist.compat import torch as private
    assert not [name for name in private.OPTIONAL if getattr(private, name) is None]


def test_torchs_modes_and_levels_are_what_they_are_taken_for():
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from triton_dist.compat import torch as private
    assert (private.dispatch_modes(), private.function_modes(), private.any_autocast(), private.dual_level()) == (0, 0, False, -1)
    with TorchDispatchMode(), TorchDispatchMode():
        assert private.dispatch_modes() == 2
        with private.disable_modes():
            assert private.dispatch_modes() == 0
    with TorchFunctionMode():
        assert private.function_modes() == 1
    with torch.autocast("cpu"):
        assert private.any_autocast()
        with private.DisableAutocast():
            assert not private.any_autocast()
    with forward_ad.dual_level():
        assert private.dual_level() == 0
    assert private.neg_view(torch.ones(2)).is_neg()
    assert private.any_requires_grad(torch.ones(1, requires_grad=True)) and not private.any_requires_grad(torch.ones(1))
    assert "mul" in str(private.schema_of(torch.ops.aten.mul.Tensor))
    seen = []
    torch.func.vmap(lambda x: (seen.append(private.transforms()), x)[1])(torch.ones(2))
    assert seen[0] is not None and private.transforms() is None and private.tracing_state() is None


def test_torch_has_the_table_of_groups_that_virtual_ranks_replace():
    """A rank's table has every field that torch's has, and torch looks it up where it is replaced."""
    from triton_dist.backends.emulator.worlds.process_group import RankTorch
    from triton_dist.compat import distributed as private
    fields = {name for name, value in vars(private.World).items() if isinstance(value, property)}
    assert {"default_pg", "pg_map", "group_count"} <= fields
    assert {name for name in fields if name != "pg_config_info"} <= set(vars(RankTorch))
    assert isinstance(private.c10d._world, private.World)
    assert private.c10d.GroupMember.WORLD is private.c10d._world.default_pg


def test_triton_says_whether_it_has_a_driver(monkeypatch):
    from triton import runtime

    from triton_dist.compat.triton import has_driver
    monkeypatch.setattr(runtime.driver, "_active", None)
    assert not has_driver()
    monkeypatch.setattr(runtime.driver, "_active", object())
    assert has_driver()


def test_a_compiled_kernel_can_be_loaded_beforehand():
    from triton.compiler import CompiledKernel
    assert callable(CompiledKernel._init_handles)


# -- nowhere else ------------------------------------------------------------------------------------------------------
PRIVATE = ("triton.runtime.jit", "triton.compiler", "triton.backends")      # without an underscore, and no documented interface


def private_names(source: str) -> list:
    """Private names of torch and Triton in a file: what it imports of them, and attributes of what it imports."""
    tree, ours, found = ast.parse(source), set(), []

    def theirs(module: str) -> bool:
        return module.split(".")[0] in ("torch", "triton")

    def hidden(module: str) -> bool:
        return any(part.startswith("_") for part in module.split(".")) or any(
            f"{module}.".startswith(f"{name}.") for name in PRIVATE)

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if theirs(alias.name):
                    ours.add(alias.asname or alias.name.split(".")[0])
                    found += [alias.name] if hidden(alias.name) else []
        elif isinstance(node, ast.ImportFrom) and node.module and theirs(node.module):
            for alias in node.names:
                ours.add(alias.asname or alias.name)
                found += [f"{node.module}.{alias.name}"] if hidden(f"{node.module}.{alias.name}") else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in ours:
                found.append(ast.unparse(node))
    return found


PUBLIC_IN_PRACTICE = {"torch.utils._python_dispatch.TorchDispatchMode"}     # the documented way to make a mode


def test_the_search_finds_private_names():
    assert private_names("import torch\nx = torch._C._foo()\ny = torch.ones(1)._z") == ["torch._C._foo", "torch._C"]
    assert private_names("from triton.runtime.jit import JITFunction") == ["triton.runtime.jit.JITFunction"]
    assert private_names("from triton.language.core import _aggregate as a\nimport triton.language as tl") == [
        "triton.language.core._aggregate"]
    assert private_names("import torch.distributed as dist\ndist._world") == ["dist._world"]
    assert private_names("import triton.language as tl\ntl.load, tl.__doc__") == []


def test_private_names_are_used_by_way_of_compat():
    found = {str(path.relative_to(PACKAGE)): sorted(set(private_names(path.read_text())) - PUBLIC_IN_PRACTICE)
             for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "compat"}
    assert not {path: names for path, names in found.items() if names}
