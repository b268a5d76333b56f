# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bad input to the heap, groups, streams, worlds and their environment variables."""
import os

import numpy as np
import pytest
import torch
from bad_input import Row, check_message, refused, small_heap, table, usable, words  # noqa: F401

import triton_dist
from triton_dist import create_symm_tensor, free_symm_tensor, peer_tensor
from triton_dist.backends import emulator
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.worlds import machine, process
from triton_dist.runtime import backend as registry
from triton_dist.runtime.errors import InvalidArgument, NotInitialized, NotSymmetric, OutOfHeap
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

I32 = torch.int32


def rank():
    return resolve().rank


def create(shape=(4,), dtype=I32, **options):
    return lambda: create_symm_tensor(shape() if callable(shape) else shape, dtype() if callable(dtype) else dtype, **options)


def freed(twice):
    tensor = create()()
    free_symm_tensor(tensor)
    free_symm_tensor(tensor) if twice else peer_tensor(tensor, 0)


def of_half():
    """A tensor that only rank 0, or only rank 1, shares; the other rank is asked for it."""
    peer_tensor(create_symm_tensor((4,), I32, resolve().new_group([rank()])), 1 - rank())


class NoStream:
    pass


ROWS = [
    ("create shape: negative", create((4, -1)), "shape:", "found (4, -1)", "at least 0"),
    ("create shape: a fraction", create(2.5), "shape:", "found 2.5", "whole numbers"),
    ("create shape: NaN", create((float("nan"),)), "shape:", "found (nan,)", "whole numbers"),
    ("create shape: a name", create("4"), "shape:", "found '4'", "whole numbers"),
    ("create shape: None", create(None), "shape:", "found None", "whole numbers"),
    ("create shape: a tensor of two", create(lambda: torch.ones(2)), "shape:", "found tensor", "whole numbers"),
    ("create shape: beyond 64 bits", create((2**40, 2**40)), "symmetric int32", "bytes needed",
     "TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("create shape: all of the heap", create((16 << 20,), torch.uint8), "symmetric uint8", "largest free range",
     "free symmetric tensors", OutOfHeap),
    ("create shape: ranks differ", create(lambda: (4 + rank(),)), "symmetric int32", "int32[4]", "the same shape and dtype"),
    ("create dtype: a name", create((4,), "int32"), "dtype:", "found 'int32'", "torch.dtype"),
    ("create dtype: numpy's", create((4,), np.dtype("int32")), "dtype:", "found dtype('int32')", "torch.dtype"),
    ("create dtype: None", create((4,), None), "dtype:", "found None", "torch.dtype"),
    ("create dtype: quantised", create((4,), torch.qint8), "dtype:", "torch.qint8", "not quantised"),
    ("create dtype: ranks differ", create((4,), lambda: (I32, torch.float32)[rank()]), "symmetric", "float32[4]",
     "the same shape and dtype"),
    ("create group: a number", create(group=1), "group:", "found int", "ProcessGroup or a DeviceMesh"),
    ("create group: of others", create(group=torch.distributed.GroupMember.NON_GROUP_MEMBER), "group:", "not a member",
     "only members"),
    ("create name: a number", create(name=7), "name:", "found 7", "a string"),
    ("free: another tensor", lambda: free_symm_tensor(torch.ones(4)), "tensor:", "found another",
     "create_symm_tensor", NotSymmetric),
    ("free: a view", lambda: free_symm_tensor(create()()[1:]), "tensor:", "a view", "create_symm_tensor", NotSymmetric),
    ("free: a peer's", lambda: free_symm_tensor(peer_tensor(create()(), 1)), "tensor:", "found another", "create_symm_tensor",
     NotSymmetric),
    ("free: twice", lambda: freed(True), "symmetric int32[4]", "freed twice", "create_symm_tensor"),
    ("free: None", lambda: free_symm_tensor(None), "tensor:", "found", "create_symm_tensor", NotSymmetric),
    ("peer: another tensor", lambda: peer_tensor(torch.ones(4), 1), "tensor", "outside the symmetric heap", "create_symm_tensor",
     NotSymmetric),
    ("peer: an array", lambda: peer_tensor(np.ones(4), 1), "tensor:", "found ndarray", "create_symm_tensor", NotSymmetric),
    ("peer: on meta", lambda: peer_tensor(torch.ones(4, device="meta"), 1), "tensor", "outside",
     "create_symm_tensor", NotSymmetric),
    ("peer: freed", lambda: freed(False), "tensor", "outside the symmetric heap", "create_symm_tensor", NotSymmetric),
    ("peer: strided", lambda: peer_tensor(create((4, 4))()[:, :2], 1), "tensor:", "found strides", "take a view of the peer"),
    ("peer rank: negative", lambda: peer_tensor(create()(), -1), "rank:", "found -1", "0 to 1"),
    ("peer rank: too large", lambda: peer_tensor(create()(), 2), "rank:", "found 2", "0 to 1"),
    ("peer rank: a name", lambda: peer_tensor(create()(), "1"), "rank:", "found '1'", "0 to 1"),
    ("peer rank: a fraction", lambda: peer_tensor(create()(), 0.5), "rank:", "found 0.5", "0 to 1"),
    ("peer rank: None", lambda: peer_tensor(create()(), None), "rank:", "found None", "0 to 1"),
    ("peer rank: of no member", of_half, "rank:", "found", "a member of its group"),
    ("new_group: unknown rank", lambda: resolve().new_group([0, 5]), "ranks:", "found [0, 5]", "members of [0, 1]"),
    ("new_group: twice", lambda: resolve().new_group([0, 0]), "ranks:", "found [0, 0]", "different members"),
    ("use_stream: None", lambda: triton_dist.use_stream(None).__enter__(), "stream:", "found None", "a stream of rank"),
    ("use_stream: a number", lambda: triton_dist.use_stream(0).__enter__(), "stream:", "found 0", "a stream of rank"),
    ("wait_stream: another kind", lambda: triton_dist.new_stream().wait_stream(NoStream()), "stream:", "NoStream",
     "new_stream()"),
    ("new_stream priority: a name", lambda: triton_dist.new_stream("high"), "priority:", "found 'high'", "a whole number"),
    ("initialize seed: a name", lambda: triton_dist.initialize_distributed(seed="7"), "seed:", "found '7'", "a whole number"),
    ("initialize seed: too large", lambda: triton_dist.initialize_distributed(seed=2**70), "seed:", f"found {2**70}", "64 bits"),
]


@table(ROWS)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world


def heap_of(sizes):
    """Each rank joins with a size of its own."""
    def call():
        os.environ["TRITON_DIST_HEAP_SIZE"] = sizes[rank() % len(sizes)]
        triton_dist.initialize_distributed()
    return call


def debug_on_rank_1():
    """TRITON_DIST_DEBUG makes a rank compare calls by collectives, which its peers must make too."""
    state().debug = rank() == 1
    try:
        triton_dist.initialize_distributed()
    finally:
        state().debug = False


def free_on(rank_that_errs, tensor, wrong):
    """One rank frees `wrong`; the others free the tensor. Afterwards all of them do."""
    try:
        free_symm_tensor(wrong if rank() == rank_that_errs else tensor)
    except InvalidArgument:
        free_symm_tensor(tensor)            # nothing was freed before
        raise


def free_a_view():
    tensor = create()()
    free_on(1, tensor, tensor[:2])


def free_an_old_one():
    old, tensor = create()(), create()()
    free_symm_tensor(old)
    free_on(1, tensor, old)


def free_while_others_create(wrong):
    """Rank 1 frees `wrong`, or its tensor; the others create another one."""
    def call():
        tensor = create()()
        if rank() == 1:
            free_symm_tensor(tensor[:2] if wrong else tensor)
        else:
            create()()
    return call


ON_RANK_1 = {  # name -> call, words on rank 1, words on the others
    "dtype": (create((4,), lambda: "int32" if rank() == 1 else I32), "dtype: expected a torch.dtype",
              "rank 1 cannot allocate its part: dtype: expected a torch.dtype"),
    "shape": (create(lambda: (-4,) if rank() == 1 else (4,)), "shape: expected sizes of at least 0",
              "rank 1 cannot allocate its part: shape: expected sizes of at least 0"),
    "a view is freed": (free_a_view, "or a view into it", "rank 1 cannot free it: tensor: expected the tensor that"),
    "frees, where others create": (free_while_others_create(False), "ranks ask for different tensors: .*1: 'free_symm_tensor'",
                                   "ranks ask for different tensors: .*1: 'free_symm_tensor'"),
    "frees a view, where others create": (free_while_others_create(True), "or a view into it",
                                          "rank 1 cannot .*: tensor: expected the tensor that"),
    "freed twice": (free_an_old_one, "freed twice", "rank 1 cannot free it: .*freed twice"),
}


@pytest.mark.parametrize("call, there, elsewhere", ON_RANK_1.values(), ids=ON_RANK_1)
def test_what_one_rank_refuses_all_ranks_refuse(call, there, elsewhere):
    def script():
        with pytest.raises(InvalidArgument, match=there if rank() == 1 else elsewhere):
            call()
        usable()
    run_ranks(script, 3)


JOINING = [
    ("heap size: a word", heap_of(["lots"]), "TRITON_DIST_HEAP_SIZE", "'lots'", "such as 512M or 4G"),
    ("heap size: zero", heap_of(["0"]), "TRITON_DIST_HEAP_SIZE", "'0'", "such as 512M or 4G"),
    ("heap size: negative", heap_of(["-1G"]), "TRITON_DIST_HEAP_SIZE", "'-1G'", "such as 512M or 4G"),
    ("heap size: NaN", heap_of(["nan"]), "TRITON_DIST_HEAP_SIZE", "'nan'", "such as 512M or 4G"),
    ("heap size: infinite", heap_of(["inf"]), "TRITON_DIST_HEAP_SIZE", "'inf'", "such as 512M or 4G"),
    ("heap size: a unit alone", heap_of(["G"]), "TRITON_DIST_HEAP_SIZE", "'G'", "such as 512M or 4G"),
    ("heap size: beyond the address space", heap_of(["1e12G"]), "TRITON_DIST_HEAP_SIZE", "cannot reserve",
     "a smaller", OutOfHeap),
    ("heap size: ranks differ", heap_of(["2M", "4M"]), "TRITON_DIST_HEAP_SIZE", "rank 1 has 4194304", "must pass the same"),
    ("heap size: a word on one rank", heap_of(["2M", "lots"]), "TRITON_DIST_HEAP_SIZE", "'lots'", "such as 512M or 4G"),
    ("debug: on one rank", debug_on_rank_1, "TRITON_DIST_DEBUG", "rank 1 has True", "must pass the same"),
    ("world above 64", triton_dist.initialize_distributed, "world size:", "found 65", "start fewer", InvalidArgument, 65),
]


@table(JOINING)
def test_joining_a_world(row):
    def script():
        with pytest.raises(row.error) as caught:
            row.call()
        check_message(row, words(caught.value))
        os.environ["TRITON_DIST_HEAP_SIZE"] = "2M"
        if row.world <= 64:
            resolve().barrier()
            triton_dist.initialize_distributed()
            usable()
    run_ranks(script, row.world, heap=False)
    run_ranks(usable, 2)


@pytest.mark.parametrize("call", [create(), lambda: peer_tensor(torch.ones(4), 0), lambda: resolve(None)])
def test_before_a_world(call):
    with pytest.raises(NotInitialized, match=r"call triton_dist.initialize_distributed\(\)"):
        call()
    run_ranks(usable, 2)


def test_after_a_world():
    """Finalising twice is fine; what belonged to the world is refused, on all ranks."""
    def script():
        world, tensor = resolve(), create()()
        triton_dist.finalize_distributed()
        triton_dist.finalize_distributed()
        for call in (lambda: create(group=world)(), lambda: free_symm_tensor(tensor), lambda: peer_tensor(tensor, 0)):
            with pytest.raises(NotInitialized, match="call triton_dist.initialize_distributed"):
                call()
        with pytest.raises(InvalidArgument, match="virtual world.*cannot be joined again"):
            triton_dist.initialize_distributed()
    run_ranks(script, 2)
    run_ranks(usable, 2)


def start(*args, **options):
    return lambda: run_ranks(*(args or (usable, 2)), **options)


SETTINGS = [
    ("world_size: zero", start(usable, 0), "world_size:", "found 0", "at least 1"),
    ("world_size: a fraction", start(usable, 1.5), "world_size:", "found 1.5", "a whole number"),
    ("fn: no function", start("usable", 2), "fn:", "found str", "a function"),
    ("mode", start(mode="fast"), "TRITON_DIST_EMULATOR_MODE", "'fast'", "expected one of eager"),
    ("num_sms: negative", start(num_sms=-2), "num_sms", "-2", "at least one SM"),
    ("groups: unknown rank", start(groups=[[0, 3]]), "ranks:", "found [0, 3]", "different members of [0, 1]"),
    ("groups: rank in none", start(lambda group: resolve(group), 2, groups=[[0]]), "group:", "not a member", "only members"),
]


@table(SETTINGS)
def test_virtual_worlds(row):
    with pytest.raises(row.error) as caught:
        row.call()
    check_message(row, words(caught.value))
    run_ranks(usable, 2)


VARIABLES = [
    ("TRITON_DIST_BACKEND", "tpu", registry.detect, "nvidia, amd, emulator or auto"),
    ("TRITON_DIST_EMULATOR_MODE", "fast", process.start, "expected one of eager"),
    ("TRITON_DIST_EMULATOR_SEED", "seven", process.start, "a whole number"),
    ("TRITON_DIST_EMULATOR_SMS", "0", machine.default_sms, "a whole number of at least 1"),
    ("TRITON_DIST_EMULATOR_SMS", "2.5", machine.default_sms, "a whole number of at least 1"),
    ("TRITON_DIST_NODE_LATENCY", "1e3", lambda: emulator.make().check_join(), "a whole number of at least 0"),
    ("TRITON_DIST_HANG_SECONDS", "-1", process.start, "a number of at least 0"),
    ("TRITON_DIST_HANG_SECONDS", "nan", process.start, "a number of at least 0"),
    ("TRITON_DIST_WAIT_TIMEOUT", "soon", scheduler.Scheduler, "a number of at least 0"),
    ("TRITON_DIST_WAIT_TIMEOUT", "inf", scheduler.Scheduler, "a number of at least 0"),
    ("LOCAL_RANK", "first", triton_dist.initialize_distributed, "a whole number of at least 0"),
    ("LOCAL_RANK", "-1", triton_dist.initialize_distributed, "a whole number of at least 0"),
    ("RANK", "first", process.start, "a whole number of at least 0"),
]


@pytest.mark.parametrize("variable, value, read, todo", VARIABLES, ids=[f"{name}={value}" for name, value, *_ in VARIABLES])
def test_environment_variables(monkeypatch, variable, value, read, todo):
    monkeypatch.setattr(process, "_machine", None)          # as in a process where no test has started one
    monkeypatch.setattr(scheduler, "_stack", [])
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgument) as caught:
        read()
    check_message(Row("", read, variable, repr(value), todo), str(caught.value))
    assert process._machine is None
    monkeypatch.delenv(variable)
    run_ranks(usable, 2)
