# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Streams and allocations of the GPU backends, without a GPU."""
import ctypes
import gc
import sys
import weakref
from contextlib import nullcontext
from threading import Event, Thread, get_ident
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from triton_dist.backends.gpu import backend as gpu, graphs, leaving, p2p
from triton_dist.cores.hopper.descriptors import tma_can_read
from triton_dist.ops.calls.checks import rows_contiguous
from triton_dist.ops.device.boxes import can_read
from triton_dist.runtime import state as process_state, threads, world
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.state import RankState


class Gpu(gpu.GpuBackend):
    """A GPU's backend without a GPU: its device is the CPU."""

    gemm_config = None                                  # abstract

    def __init__(self):
        self._streams = {}

    def device(self):
        return torch.device("cpu")


def test_the_current_stream_is_asked_for_once_and_capture_only_where_it_can_be(monkeypatch):
    made, raw = [], [0]

    def current():
        made.append(raw[0])
        return SimpleNamespace(cuda_stream=raw[0])
    monkeypatch.setattr(gpu, "_device", lambda: 0)
    monkeypatch.setattr(gpu, "_raw_stream", lambda device: raw[0])
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    capturing, asked = [False], []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: asked.append(raw[0]) or capturing[0])
    backend = Gpu()
    for raw[0] in (0, 0, 8, 8, 0, 8):
        assert backend.eager_stream() is backend.current_stream() and backend.current_stream().cuda_stream == raw[0]
    capturing[0] = True
    assert backend.eager_stream() is None and backend.current_stream().cuda_stream == 8
    assert made == [0, 8] and asked == [8, 8, 8, 8]


@pytest.mark.parametrize("interface, quick", [("as it is", True), ("gone", False), ("another result", False), ("refuses", False)])
def test_outputs_are_allocated_past_the_dispatcher_where_that_is_as_good(interface, quick, monkeypatch):
    device, taken, real = [3], [], torch._C._dynamo.guards._empty_strided_cpu

    def empty(size, stride, dtype):
        taken.append((size, stride, dtype))
        if interface == "refuses":
            raise TypeError
        return real(size, stride, torch.float32 if interface == "another result" else dtype)
    monkeypatch.setattr(gpu, "_device", lambda: device[0])
    monkeypatch.setattr(gpu, "_empty", None if interface == "gone" else empty)
    backend = Gpu()
    for shape in ((4, 5), (), (0, 7), torch.Size([2, 3, 4])):
        make = backend.maker(shape, torch.bfloat16)
        taken.clear()
        for device[0] in (3, 4):                        # made for 3: elsewhere torch's own function knows the device
            made, like = make(), torch.empty(shape, dtype=torch.bfloat16)
            assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), like.dtype, like.device)
        assert taken == [(tuple(shape), like.stride(), torch.bfloat16)] * quick
        device[0] = 3


def test_a_side_stream_keeps_the_event_that_it_waits_for(monkeypatch):
    from triton_dist.backends.gpu.side_stream import SideStream
    made, done = [], []

    class Event:
        def __init__(self):
            made.append(self)

        def record(self, stream):
            done.append(("record", self, stream))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda.Stream, "__new__", lambda cls, priority: object.__new__(cls))
    monkeypatch.setattr(torch.cuda.Stream, "__init__", lambda self, priority: None)
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: done.append(("wait", event, self)))
    side, current = SideStream(priority=-1), object.__new__(torch.cuda.Stream)
    side.wait_stream(current)
    side.wait_stream(current)
    (begin, ) = made
    assert [(what, event, id(stream)) for what, event, stream in done] == [
        ("record", begin, id(current)), ("wait", begin, id(side))] * 2
    assert "record_event" not in vars(SideStream), "an event of this stream may be held by others"


@pytest.mark.parametrize("stream, capturing, apart", [(0, False, True), (8, False, True), (8, True, False)])
def test_memory_outside_of_pools_is_asked_for_by_another_thread(stream, capturing, apart, monkeypatch):
    """Also on the default stream, where users may have a pool. While a graph is captured, other threads must ask for nothing."""
    done: list = []
    monkeypatch.setattr(gpu, "_device", lambda: 0)
    monkeypatch.setattr(gpu, "_raw_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=stream, device=3))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append((get_ident(), device)))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda entered: done.append((get_ident(), entered.cuda_stream)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)

    thread, before = Gpu().outside_pools(lambda: (get_ident(), list(done)))
    assert (thread != get_ident()) == apart and before == ([(thread, 3), (thread, stream)] if apart else [])
    with pytest.raises(ZeroDivisionError):
        Gpu().outside_pools(lambda: 1 / 0)
    monkeypatch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't create new thread")))
    assert Gpu().outside_pools(get_ident) == get_ident()                # the interpreter ends


def test_the_end_of_a_world_ends_graphs_of_compiled_functions_alone(monkeypatch):
    class Graph:
        pass
    compiled, resets = [], []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1) or compiled.clear())
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    backend = Gpu()
    assert not graphs.held() and not backend.end_graphs()
    own = Graph()
    gc.freeze()                                                                 # as servers do
    assert graphs.held() and backend.end_graphs() and not resets         # nothing has been compiled
    assert gc.get_freeze_count()
    gc.unfreeze()
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", ModuleType("trees"))
    assert backend.end_graphs() and resets                                      # one of the user's is left
    del own
    assert not backend.end_graphs() and len(resets) == 1
    compiled.append(Graph())
    assert not backend.end_graphs() and len(resets) == 2


@pytest.mark.parametrize("setting, allowed", [
    (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), True),
    (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"), False),
    (lambda: setattr(torch.backends, "fp32_precision", "tf32"), True),
    (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), True),
    (lambda: torch.set_float32_matmul_precision("high"), True),
    (lambda: torch.set_float32_matmul_precision("highest"), False),
])
def test_tf32_is_allowed_by_each_of_torchs_switches(setting, allowed):
    """torch refuses to read one of them where another has been set."""
    try:
        setting()
        assert Gpu().allow_tf32() == allowed
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "none"
    assert not Gpu().allow_tf32()


def test_a_thread_with_the_identity_of_one_that_has_ended_is_another_thread(monkeypatch):
    """It begins on device 0, without a context of the driver, though operating systems give identities again."""
    me, entered, idents = RankState(), [], set()
    monkeypatch.setattr(threads, "state", lambda: me)
    monkeypatch.setattr(threads, "backend", lambda: SimpleNamespace(enter_thread=lambda: entered.append(threads.this.number)))
    monkeypatch.setattr(threads, "get_ident", lambda: idents.add(7) or 7)
    threads.take_turn()
    for _ in range(2):
        for _ in range(2):
            thread = Thread(target=lambda: [threads.take_turn() for _ in range(2)])
            thread.start()
            thread.join()
        threads.take_turn()
    assert idents == {7} and len(entered) == 6 and len({*entered}) == 5 and me.turn == threads.this.number


def test_a_fork_while_the_process_group_outlives_its_world_joins_no_world(monkeypatch):
    """The group is the parent's, whose threads it lacks."""
    me = RankState(owns_process_group=True)
    monkeypatch.setattr(process_state, "_of_process", me)
    process_state._after_fork()
    assert not me.owns_process_group and "spawn" in me.forked


def test_the_allocator_is_told_of_streams_that_use_memory_of_a_gpu():
    told = []
    for is_cuda in (True, False):
        Gpu().note_use(SimpleNamespace(is_cuda=is_cuda, record_stream=told.append), is_cuda)
    assert told == [True]


def test_a_call_on_another_device_than_that_of_the_rank_is_refused_before_it_begins(monkeypatch):
    """A kernel cannot be launched on a stream of another device: the launch would fail after the call has begun."""
    current, waited = [1], []
    monkeypatch.setattr(gpu, "_device", lambda: current[0])
    monkeypatch.setattr(gpu, "_raw_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    backend = Gpu()
    assert backend.eager_stream() == backend.current_stream() == "stream"           # no world yet
    backend._home = 1
    assert backend.eager_stream() == "stream"
    current[0] = 0
    for ask in (backend.eager_stream, backend.current_stream):
        with pytest.raises(InvalidArgument, match="current device is cuda:0, and that of this rank is cuda:1"):
            ask()
    backend.synchronize()
    assert waited == [1]


@pytest.mark.parametrize("device", ["rests", "rests, and the interpreter ends", "waits for a peer", "has failed", "has Ctrl-C"])
def test_an_arena_stays_where_to_close_it_would_hang_or_end_the_process(device, monkeypatch):
    """torch closes it in a destructor. There it waits for the device, and an error of the device ends the process untold."""
    released, kept, closed = Event(), [], []

    def synchronize(of):
        assert of == 3
        if device == "waits for a peer":
            released.wait(60)
        if device == "has failed":
            raise RuntimeError("device-side assert triggered")
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(leaving, "_PATIENCE", 30 if device.startswith("rests") else 0.05)
    monkeypatch.setattr(leaving, "keep_for_good", kept.append)
    backend, arena = Gpu(), SimpleNamespace(close=lambda: closed.append(1))
    backend._leaver = leaving.Leaver(3)
    if device == "rests, and the interpreter ends":
        monkeypatch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't create new thread")))
    if device == "has Ctrl-C":
        backend._leaver._told.wait = lambda patience: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if device == "has Ctrl-C" else nullcontext():
        assert backend.close_arena(arena) == device.startswith("rests")
    released.set()
    assert (closed, kept) == (([1], []) if device.startswith("rests") else ([], [arena]))


@pytest.mark.parametrize("rests", [True, False])
def test_a_process_group_is_not_ended_while_the_device_waits(rests, monkeypatch):
    """NCCL would wait for the device."""
    ended, me = [], RankState()
    me.world, me.heap, me.owns_process_group = "world", SimpleNamespace(arena="arena"), True
    monkeypatch.setattr(world, "state", lambda: me)
    monkeypatch.setattr(world, "backend", lambda: SimpleNamespace(
        end_graphs=lambda: False, left_world=lambda error: None, close_arena=lambda arena: rests))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(1))
    world._leave()
    assert me.world is None and bool(ended) == rests


def test_rows_that_are_one_in_memory_are_copied_before_tma_reads_them():
    """As a gradient that was expanded over rows: drivers need not take a stride of 0."""
    row = torch.ones(1, 64, dtype=torch.float16)
    expanded, windows = row.expand(4, 64), torch.ones(256, dtype=torch.float16).as_strided((4, 64), (16, 1))
    assert tma_can_read(row) and can_read(row) and rows_contiguous(row) is row
    for t in (expanded, windows):
        assert not tma_can_read(t) and not can_read(t)
    copy = rows_contiguous(expanded)
    assert tma_can_read(copy) and can_read(copy) and torch.equal(copy, expanded)


@pytest.mark.parametrize("ranks, own", [
    ([("a", 0, "x"), ("a", 0, "y")], True),                                         # each sees one GPU
    ([("a", 0, "x"), ("a", 1, "y")], False),
    ([("a", 0, "x"), ("a", 0, "x")], False),                                        # they do share one
    ([("a", 0, ""), ("a", 0, "")], False),                                          # a torch that does not tell
    ([("a", 0, "x"), ("b", 0, "y")], False),
])
def test_ranks_that_each_see_their_own_gpu_are_told_from_ranks_that_share_one(ranks, own, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    monkeypatch.setattr(p2p, "host", lambda: "a")
    told = []
    world = SimpleNamespace(all_gather_object=lambda mine: told.append(mine) or ranks)
    assert p2p._each_sees_its_own(torch.device("cuda", 0), world) == own and told == [("a", 0, "x")]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_slab_that_one_rank_cannot_allocate_is_refused_on_all_before_torch_waits_for_it(bad, monkeypatch):
    """torch maps slabs by a collective, which a rank without memory would not come to."""
    def empty(*_, **__):
        if bad == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.empty(0)
    symmetric = SimpleNamespace(empty=empty, rendezvous=lambda *_: pytest.fail("a collective that ranks do not meet in"))
    monkeypatch.setattr("triton_dist.compat.distributed.symmetric_memory", lambda: symmetric)
    monkeypatch.setattr(p2p, "_each_sees_its_own", lambda device, world: False)
    world = SimpleNamespace(rank=0, all_gather_object=lambda mine: [mine, "no memory" if bad == 1 else ""])
    words = "no memory" if bad else "out of memory.*TRITON_DIST_HEAP_SIZE"
    with pytest.raises(UnsupportedFeature, match=f"rank {bad}: .*{words}"):
        p2p.P2PArena(4096, torch.device("cpu"), world)


def test_an_op_follows_the_last_one_also_where_its_stream_is_gone(monkeypatch):
    """Of a stream that another library has made and destroyed no event can be recorded: every later op failed, on that rank."""
    from triton_dist.runtime import workspace
    waits = []

    class Stream:
        gone = False

        def wait_stream(self, last):
            waits.append(last)
            if last.gone:
                raise RuntimeError("CUDA error: invalid resource handle")
    me = RankState()
    monkeypatch.setattr(workspace, "state", lambda: me)
    monkeypatch.setattr(workspace, "backend", lambda: SimpleNamespace(synchronize=lambda: waits.append("all")))
    first, second, third = Stream(), Stream(), Stream()
    for stream in (first, second):
        workspace.follow_last_op(stream)
    second.gone = True
    for stream in (third, first, first):
        workspace.follow_last_op(stream)
    assert waits == [first, second, "all", third] and me.last_stream is first


def test_what_is_kept_for_good_outlives_the_interpreters_modules():
    class Slab:
        pass
    seen = weakref.ref(made := Slab())
    leaving.keep_for_good(made)
    del made
    gc.collect()
    assert seen() is not None
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(seen()))
    assert seen() is None
