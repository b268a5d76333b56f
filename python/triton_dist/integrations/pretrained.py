# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Checkpoints of Hugging Face, of which each rank reads its part only.

transformers makes a model on the meta device, divides it by styles that its configuration names, and reads this rank's slice of
each weight. Here are two styles of that kind, and the call that puts them where a model's own plan has a column- or row-parallel
linear layer.
"""
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from triton_dist.integrations.plans import OverlapColwiseLinear, OverlapRowwiseLinear
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature, describe
from triton_dist.runtime.groups import name_of, resolve
from triton_dist.runtime.streams import device

STYLES = {"colwise": "overlap_colwise", "rowwise": "overlap_rowwise"}          # theirs: ours
_INDEX, _FILE = "model.safetensors.index.json", "model.safetensors"


def from_pretrained(folder: Any, *, auto: Any = None, dtype: Any = "auto", tp_size: int | None = None, strict: bool = True,
                    **options: Any) -> Any:
    """Loads a checkpoint of Hugging Face as a tensor-parallel model. Collective over the world.

    The model is made on the meta device, and each rank reads its slices of the weights, so that nowhere is the whole in memory.
    It takes the plan that transformers has for the model (`model.tp_plan`), with our layers for its column- and row-parallel
    linear layers; what else the plan names, such as embedding, head and experts, is divided by transformers. For Llama, Qwen2,
    Qwen3, Mistral, Qwen3-MoE, Mixtral and other models with a plan.

    Args:
        folder: local folder with config.json and model.safetensors, or several files and model.safetensors.index.json; the same
            on all ranks. Of a model on the Hub: `huggingface_hub.snapshot_download(name)`.
        auto: the class that loads it; None: transformers.AutoModelForCausalLM.
        dtype: torch.dtype of the parameters, or "auto": that of the checkpoint.
        tp_size: number of ranks that divide the model. None: all. Where there are more, name how the others are used, such as
            `fsdp_size=`.
        strict: whether weights that the checkpoint lacks, or has too many of, are an error. With False they are initialised, or
            left out, and transformers logs a report.
        options: sizes of transformers' DistributedConfig (`fsdp_size`, `dp_replicate_size`); others go to from_pretrained.

    Returns the model, on this rank's device, in evaluation mode. `model.save_pretrained(path)`, called on all ranks, writes it
    whole, so that it loads on any number of ranks. On one rank it is a plain model.
    Raises InvalidArgument, on all ranks alike, for a folder, weights, shapes or a dtype that do not fit; UnsupportedFeature
    for a transformers that is too old.

    Example:
        triton_dist.initialize_distributed()
        model = from_pretrained("Meta-Llama-3-8B", dtype=torch.bfloat16)
        model.generate(**inputs, cache_implementation="static")
    """
    distributed_config, auto = _transformers(auto)
    size = resolve(None).size if tp_size is None else tp_size
    sizes = {key: options.pop(key) for key in ("fsdp_size", "dp_replicate_size") if key in options}
    code = {key: options[key] for key in ("trust_remote_code",) if key in options}
    plan = _alike(lambda: _plan(Path(folder), auto, dtype, size, code))
    divided = distributed_config(tp_size=size, tp_plan=plan or None, **sizes)

    def load() -> tuple:
        return auto.from_pretrained(folder, dtype=dtype, distributed_config=divided, output_loading_info=True,
                                    ignore_mismatched_sizes=True, **options)
    model, info = _alike(load)
    _alike(lambda: _must_fit(info, strict, folder, type(model).__name__))
    return model.to(device())


def _must_fit(info: dict, strict: bool, folder: Any, name: str) -> None:
    """Raises for what transformers says about weights that it did not find, could not take or had no use for."""
    lists = {"of other shapes (name, found, expected)": info["mismatched_keys"]}
    if strict:
        lists |= {"missing": info["missing_keys"], "not of the model": info["unexpected_keys"]}
    wrong = [f"{what}: {', '.join(sorted(map(str, keys))[:8])}" for what, keys in lists.items() if keys]
    if wrong:
        raise InvalidArgument(f"folder: expected the weights of {name} in {folder}, found some that are {'; '.join(wrong)}; "
                              "correct config.json" + ", or pass strict=False" * (len(lists) > 1))


def _transformers(auto: Any) -> tuple:
    """(DistributedConfig, the class that loads); our styles are among those of transformers then."""
    import transformers
    from transformers.utils import is_accelerate_available
    if not is_accelerate_available():
        raise UnsupportedFeature("transformers loads parts of a checkpoint by means of accelerate, found none; install it")
    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
        from transformers.distributed.tensor_parallel import TensorParallelLayer
    except ImportError as error:
        raise UnsupportedFeature("from_pretrained needs transformers with styles over DTensors (5.24 has them), found "
                                 f"{transformers.__version__}; load the whole model and call tensor_parallel") from error

    class Overlap(TensorParallelLayer):
        """One of our layers in place of an nn.Linear. becomes: its class. weight, bias: placements of its parameters."""

        def __init__(self, becomes: type, weight: Any, bias: Any):
            self.becomes, self.placements = becomes, {"weight": weight, "bias": bias}

        def shard_param(self, module: nn.Module, param: str, mesh: Any) -> None:
            whole = getattr(module, param)
            if whole is not None:
                parts = distribute_tensor(whole.detach(), mesh, [self.placements[param]], src_data_rank=None)
                module.register_parameter(param, nn.Parameter(parts, requires_grad=whole.requires_grad))

        def install_forward(self, module: Any, mesh: Any) -> nn.Module:
            module.__class__ = self.becomes
            module.overlap_group, module.sequence_parallel, module.sequence_dim = name_of(mesh), False, 1
            return module

    ALL_PARALLEL_STYLES.register(STYLES["colwise"], Overlap(OverlapColwiseLinear, Shard(0), Shard(0)))
    ALL_PARALLEL_STYLES.register(STYLES["rowwise"], Overlap(OverlapRowwiseLinear, Shard(1), Replicate()))
    return DistributedConfig, transformers.AutoModelForCausalLM if auto is None else auto


def _plan(folder: Path, auto: Any, dtype: Any, size: int, code: dict) -> dict:
    """{module: style}: the rules of the model's own plan that become ours. Reads no weights. Raises for what cannot be loaded.

    code: options that say whether code of the folder may run.
    """
    from transformers import AutoConfig
    if dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgument(f"dtype: expected a torch.dtype of floating-point numbers, or 'auto', found {dtype!r}")
    shapes = _shapes(folder)
    config = AutoConfig.from_pretrained(folder, **code)
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidArgument(f"folder: expected weights that are not quantised, found a quantization_config in {folder}")
    with torch.device("meta"):
        model = auto.from_config(config, **code)
    text, found, wrong = config.get_text_config(), {}, []
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, name, None)
        if heads is not None and heads % size:
            raise InvalidArgument(f"tp_size: expected one that divides {name}, found {size} ranks and {heads}; use fewer ranks")
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            continue
        rule, expected = re.sub(r"(?<=\.)\d+(?=\.)", "*", name), list(module.weight.shape)
        style = (model.tp_plan or {}).get(rule)
        if type(module) is nn.Linear and style in STYLES:
            found[rule] = STYLES[style]
            if expected[style == "rowwise"] % size:
                raise InvalidArgument(f"tp_size: expected one that divides {name}, found {size} ranks and a weight of {expected}")
        there = shapes.get(f"{name}.weight", shapes.get(f"{name}.weight".removeprefix(f"{model.base_model_prefix}."), expected))
        if there != expected:                       # of an uneven weight one rank's slice may fit and another's not
            wrong.append(f"{name}.weight of {there}, expected {expected}")
    if wrong:
        raise InvalidArgument(f"folder: weights in {folder} do not have the shapes of config.json, found {'; '.join(wrong[:8])}")
    if not found:
        raise InvalidArgument(f"folder: {type(model).__name__} has no plan with column- or row-parallel linear layers; use "
                              "triton_dist.integrations.plans with a plan of your own")
    return found if size > 1 else {}


def _shapes(folder: Path) -> dict[str, list]:
    """The shape of each weight in a folder's files, from their headers."""
    from safetensors import safe_open
    if not folder.is_dir():
        raise InvalidArgument(f"folder: expected a local folder, found {str(folder)!r}; load a model of the Hub by "
                              "huggingface_hub.snapshot_download first")
    index = folder / _INDEX
    files = sorted({*json.loads(index.read_text())["weight_map"].values()}) if index.exists() else [_FILE]
    absent = [name for name in files if not (folder / name).exists()]
    if absent:
        raise InvalidArgument(f"folder: expected {_FILE}, or {_INDEX} and the files that it names, found no "
                              f"{', '.join(absent)} in {folder}")
    found = {}
    for name in files:
        with safe_open(folder / name, framework="pt") as file:
            found |= {key: list(file.get_slice(key).get_shape()) for key in file.keys()}
    return found


def _alike(step: Any) -> Any:
    """What `step` gives. Where it raises on some ranks, all raise, with what went wrong."""
    result = problem = None
    try:
        result = step()
    except Exception as error:                      # whatever it is, no rank goes on without this one
        problem = error
    said = resolve(None).all_gather_object(None if problem is None else str(problem) if isinstance(problem, InvalidArgument)
                                           else describe(problem))
    if any(said):
        raise InvalidArgument(next(filter(None, said))) from problem
    return result
