# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Makes mutants of kernels: every synchronisation call of a source file deleted or weakened, one at a time."""
import ast
from dataclasses import dataclass

DELETED = {"wait": "0", "fence_proxy_async": None, "notify": "None", "notify_warp": "None", "arrive": "None",
           "fence_async_shared": "None", "store_wait": "None", "flush_tma_stores": "None", "init": "None", "expect": "None",
           "warpgroup_mma_wait": None, "consume_token": None, "atomic_add": None, "debug_barrier": "None"}
# what else is done to a call, by text: name -> [(what, old, new)]
WEAKENED = {
    "wait": [("its scope", '"sys"', '"gpu"'), ("its semantic", '"acquire"', '"relaxed"'),
             ("the epoch it waits for", "epoch, ", "epoch - 1, ")],
    "notify": [("its scope", ")", ', comm_scope="gpu")'), ("how it stores", ")", ', "add")')],
    "notify_warp": [("its scope", ")", ', "set", "gpu")'), ("how it stores", ")", ', "add")')],
    "atomic_add": [("its semantic", '"acq_rel"', '"relaxed"'), ("its scope", '"gpu"', '"cta"')],
    "store_wait": [("how many it leaves", "pendings=0", "pendings=1")],
    "warpgroup_mma_wait": [("how many it leaves", "num_outstanding=", "num_outstanding=1 + ")],
}


@dataclass(frozen=True)
class Mutant:
    """A changed source. `line`: the number of the statement; the text is that of the unchanged call."""
    what: str
    line: int
    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.what} of {' '.join(self.text.split())}"


def mutants(source: str) -> list:
    """All mutants of a source text."""
    found = []
    for call in calls(source):
        name, text = called(call), ast.get_source_segment(source, call)

        def add(what: str, new: str, call: ast.Call = call, text: str = text) -> None:
            found.append(Mutant(what, call.lineno, text, replaced(source, call, new)))
        instead = DELETED[name]
        if name in ("consume_token", "fence_proxy_async"):
            instead = ast.get_source_segment(source, call.args[0])
        if name == "warpgroup_mma_wait":
            instead = "acc"
        if name == "atomic_add":
            instead = "tl.num_programs(0) - 1" if "tl." in text else "gl.num_programs(0) - 1"
        add("deletion", instead)
        if name == "notify":
            flag, rank, value = (ast.get_source_segment(source, arg) for arg in call.args)
            release = f'tl.atomic_xchg(dl.symm_at({flag}, {rank}), {value}, sem="SEM", scope="sys")'
            add("no CTA barrier", release.replace("SEM", "release"))
            add("no release", f"(tl.debug_barrier(), {release.replace('SEM', 'relaxed')})")
        for what, old, new in WEAKENED.get(name, ()):
            if old in text and not (name == "wait" and "mbarrier" in text):
                at = text.rindex(old)
                add(f"another form ({what})", text[:at] + new + text[at + len(old):])
    return found


def calls(source: str) -> list:
    """The synchronisation calls of a source, in order."""
    return sorted((node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and called(node) in DELETED),
                  key=lambda node: (node.lineno, node.col_offset))


def called(call: ast.Call) -> str:
    """The last part of the called name."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def replaced(source: str, node: ast.AST, new: str) -> str:
    """The source with a node's text replaced."""
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[:node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[:node.end_lineno - 1])) + node.end_col_offset
    return source[:start] + new + source[end:]
