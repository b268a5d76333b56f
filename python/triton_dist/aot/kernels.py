# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Finding kernels by the words of a command line, and compiling all their variants on several cores."""

import functools
import hashlib
import importlib
import importlib.util
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from triton_dist.aot.build import Built, build
from triton_dist.aot.spaces import aot_compile_spaces, name_of, spaces_of, variants_of
from triton_dist.aot.targets import Target
from triton_dist.backends.gpu.recording import read_value
from triton_dist.compat.triton import JITFunction
from triton_dist.runtime.errors import InvalidArgument, TritonDistError


TOLD_EVERY = 50  # compiled variants for each line of progress
_FIELDS = ("types", "hints", "constexprs", "options")  # of a recorded launch


def read_list(path: Path) -> list[str]:
    """The kernels of a file: one a line, with comments after #; paths of files are relative to it."""
    found = []
    for line in path.read_text().splitlines():
        word = line.partition("#")[0].strip()
        if word:
            file = word.rpartition(":")[0]
            found.append(f"{(path.parent / file).resolve()}:{word.rpartition(':')[2]}" if file.endswith(".py") else word)
    return found


def recorded(path: Path) -> list[str]:
    """The kernels of a file of recorded launches, as words that `find` knows: "FILE.jsonl:number", one for each function."""
    return [f"{path.resolve()}:{number}" for number in range(len(_launches(str(path.resolve()))))]


@functools.cache
def _launches(path: str) -> list[list[dict]]:
    """The launches of a file, by function."""
    found: dict = {}
    try:
        for line in Path(path).read_text().splitlines():
            entry = json.loads(line)
            if not isinstance(entry["kernel"], str) or not all(isinstance(entry[name], dict) for name in _FIELDS):
                raise ValueError(line)
            found.setdefault(entry["kernel"], []).append(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path}: expected what TRITON_DIST_AOT_RECORD has written: {error!r}") from error
    return list(found.values())


@functools.cache
def _from_launches(path: str, number: int) -> Any:
    """A kernel with a space for each of its recorded launches."""
    launches = _launches(path)[number]
    module, _, name = launches[0]["kernel"].partition(":")
    original = getattr(importlib.import_module(module), name, None)
    if original is None:
        raise InvalidArgument(f"{path}: {module} has no kernel {name}")
    kernel = type(original)(original.fn)  # its own, beside what may be declared of the original
    spaces = {}
    for entry in launches:
        constexprs = {key: read_value(value) for key, value in entry["constexprs"].items()}
        signature = ", ".join(
            f"%{key}" if kind == "constexpr" else kind + (f":{entry['hints'][key]}" if key in entry["hints"] else "")
            for key, kind in entry["types"].items()
        )
        digest = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:12]
        spaces[f"{name}_{digest}"] = {"signature": signature, "triton_algo_infos": [{**constexprs, **entry["options"]}]}
    place = hashlib.sha256(module.encode()).hexdigest()[:4]
    return aot_compile_spaces(spaces, name=f"{name}_{place}")(kernel)


def load(word: str) -> Any:
    """The kernel that "module:name" or "path.py:name" stands for. Raises InvalidArgument where there is none."""
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise InvalidArgument(f"kernel: expected module:name or path.py:name, found {word!r}")
    if place.endswith(".jsonl") and name.isdigit():
        return _from_launches(place, int(name))
    kernel = getattr(_module(place, word), name, None)
    while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn  # below autotune or heuristics
    if not isinstance(kernel, JITFunction):
        raise InvalidArgument(f"{word}: there is no jit function of that name")
    return kernel


def find(word: str) -> Any:
    """The kernel that `load` finds. Raises InvalidArgument where there is none, or none that has spaces."""
    kernel = load(word)
    if not spaces_of(kernel):
        raise InvalidArgument(f"{word}: it has no spaces; declare them with @aot_compile_spaces")
    return kernel


def _module(place: str, word: str) -> Any:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        name = f"tdist_aot_{path.stem}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]
    except (ImportError, OSError) as error:
        raise InvalidArgument(f"{word}: cannot import it: {error}") from error


def compile_all(words: Sequence[str], targets: Sequence[Target], jobs: int, tell: Callable[[str], None]) -> dict:
    """(kernel, its variants) by C name, of all kernels for all targets. `tell` gets lines on the way, and one for each kernel.

    Raises InvalidArgument where nothing is to be built for a target, and TritonDistError where a variant does not compile.
    """
    kernels: dict = {}
    for word in words:
        kernel = find(word)
        name = name_of(kernel)
        if name in kernels and kernels[name][0] is not kernel:
            raise InvalidArgument(
                f"{word}: another kernel is called {name} as well; give one of them a name by aot_compile_spaces"
            )
        kernels[name] = (kernel, word)
    _refuse_common_names(kernels)
    tasks = [
        (word, s, v, target)
        for _, (kernel, word) in kernels.items()
        for target in targets
        for s, space in enumerate(spaces_of(kernel))
        for v in range(len(variants_of(kernel, space, str(target))))
    ]
    for target in targets:
        if not any(task[3] == target for task in tasks):
            raise InvalidArgument(f"{target}: none of these kernels has a variant for it")
    made: dict = {name: [] for name in kernels}
    by_word = {word: name for name, (_, word) in kernels.items()}
    for number, (task, one) in enumerate(zip(tasks, _run(tasks, jobs)), 1):
        made[by_word[task[0]]].append(one)
        if number % TOLD_EVERY == 0:
            tell(f"{number} of {len(tasks)} variants are compiled")
    for name, variants in made.items():
        tell(f"{name}: {len(variants)} variants, {sum(len(one.binary) for one in variants) / 1e6:.2f} MB")
    return {name: (kernels[name][0], variants) for name, variants in made.items() if variants}


def _refuse_common_names(kernels: dict) -> None:
    seen: dict = {}
    for name, (kernel, _) in kernels.items():
        for space in (name, *(space.name for space in spaces_of(kernel))):
            if seen.setdefault(space, name) != name:
                raise InvalidArgument(f"{name}: the C name {space} is that of {seen[space]} as well")


def _run(tasks: Sequence[tuple], jobs: int) -> Iterable[Built]:
    if jobs <= 1 or len(tasks) < 4:
        yield from (_one(*task) for task in tasks)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_one, *zip(*tasks), chunksize=2)


def _one(word: str, space: int, variant: int, target: Target) -> Built:
    kernel = find(word)
    found = variants_of(kernel, spaces_of(kernel)[space], str(target))[variant]
    try:
        return build(kernel, found, target)
    except Exception as error:  # of a compiler anything may come
        given = {**found.constexprs, **found.options}
        raise TritonDistError(f"{found.space} for {target} with {given} does not compile: {error}") from None
