# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Reports of hangs on GPUs, with ranks that are threads and a store that is a dict."""
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import triton_dist.language
from triton_dist.backends.gpu import backend as gpu
from triton_dist.backends.gpu import hang as gpu_hang
from triton_dist.backends.gpu.hang import _LINGER, _WINDOW, HangWatch
from triton_dist.backends.gpu.wait_sites import sites
from triton_dist.runtime.context import WaitRecord
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import WaitTimeout
from triton_dist.runtime.groups import SoloGroup
from triton_dist.runtime.hang_table import SHOWN, Row, merge, table
from triton_dist.runtime.heap import SymmetricHeap
from triton_dist.runtime.stacks import in_packages

LANGUAGE = Path(triton_dist.language.__file__).parent
PACKAGE = Path(__file__).resolve().parents[2] / "python"


class Store:
    """What torch's stores offer, between threads. `broken`: its host has left."""

    def __init__(self):
        self.values, self.lock, self.broken = {}, threading.Lock(), False

    def _checked(self):
        if self.broken:
            raise RuntimeError("Connection reset by peer")

    def set(self, key, value):
        self._checked()
        self.values[key] = value

    def get(self, key):
        self._checked()
        return self.values[key]

    def check(self, keys):
        self._checked()
        return all(key in self.values for key in keys)

    def add(self, key, amount):
        self._checked()
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]


def waits(rank, line=7):
    return [Row(rank, "ring", "(0, 0, 0)", f"ring.py:{line}", "flag ready + 0, of rank 0 (0x1000)", "1", "0", "rank 1")]


def watched(rows_by_rank, store, window=0.3):
    """Watches of a world, started; what each ended its process with is in `ended`."""
    ended = {}
    watches = [HangWatch(rank, len(rows_by_rank), store, rows, 2.0, window, lambda code, rank=rank: ended.update({rank: code}))
               for rank, rows in enumerate(rows_by_rank)]
    for watch in watches:
        watch.start()
    return watches, ended


@pytest.fixture
def finish(monkeypatch):
    """For the watches of a test, which it stops; they are less patient than real ones."""
    monkeypatch.setattr(gpu_hang, "_LINGER", 0.5)
    monkeypatch.setattr(gpu_hang, "_GRACE", 0.5)
    started = []
    yield started.extend
    for watch in started:
        watch.stop()


def test_one_table_of_all_ranks_then_all_ranks_end(capfd, finish):
    """Ranks 0 and 2 wait, rank 2 a little later; rank 1 waits for nothing, and must end too."""
    begun = time.monotonic()
    watches, ended = watched([lambda: waits(0), lambda: [], lambda: waits(2) if time.monotonic() - begun > 0.2 else []], Store())
    finish(watches)
    text = watches[0].explain()                     # rank 0's main thread has the device's error
    deadline = time.monotonic() + 10
    while len(ended) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended == {1: 1, 2: 1}, "rank 0 ends by its own error, the others are ended, with an error code"
    lines = text.splitlines()
    assert "TRITON_DIST_WAIT_TIMEOUT=2 seconds" in lines[0]
    assert lines[1].split() == "rank kernel program at waits for wanted seen to be written by".split()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    assert "ring.py:7" in lines[2] and lines[2].endswith("1       0     rank 1")
    assert "(host)" in lines[3] and "test_gpu_hang.py" in lines[3] and "no device wait that has expired" in lines[3]
    assert capfd.readouterr().err.count("hang: no signal") == 1, "printed once in the world"


def test_the_table_is_out_before_the_device_traps_and_all_end_within_ten_seconds():
    assert _WINDOW + 2 * gpu_hang._POLL < _LINGER
    assert _LINGER + gpu_hang._GRACE < 10


def test_device_lingers_as_long_as_the_host_thinks():
    from triton_dist.backends.gpu.device_runtime import render
    for vendor in ("nvidia", "amd"):
        assert f"icmp ult i64 %lingered, {int(_LINGER * 1e9)}" in render(vendor, bounded=True)


def test_a_lost_store_leaves_the_ranks_own_rows(capfd, finish):
    store = Store()
    store.broken = True
    watches, _ = watched([lambda: waits(0), lambda: []], store)
    finish(watches)
    text = watches[0].explain()
    assert "ring.py:7" in text and "nothing was heard from this rank" in text
    assert capfd.readouterr().err.count("hang: no signal") == 1
    watches[1].stop()
    assert not watches[1]._told.is_set(), "a rank that cannot hear of a hang goes on"


def test_uncaught_errors_after_a_report_are_a_line_and_the_process_ends(capfd, finish):
    """Also those that did not come through synchronize, such as torch's own from Tensor.item()."""
    hook = sys.excepthook
    watches, ended = watched([lambda: waits(0)], None)
    finish(watches)
    try:
        raise RuntimeError("CUDA error: unspecified launch failure")
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    told = capfd.readouterr().err
    assert told.index("ring.py:7") < told.index("rank 0 ends by this RuntimeError") and "Traceback" not in told
    watches[0]._at_exit()
    assert ended == {0: 1}
    watches[0].stop()
    assert sys.excepthook is hook


def test_a_world_that_ends_well_says_nothing(capfd):
    watches, ended = watched([lambda: [], lambda: []], Store())
    time.sleep(0.3)
    for watch in watches:
        watch.stop()
        assert not watch._thread.is_alive()
    assert not ended and capfd.readouterr().err == ""


def test_many_waiting_programs_leave_room_for_every_rank():
    reports = {rank: [row for _ in range(30) for row in waits(rank)] for rank in (0, 1, 3)}
    rows = merge(reports, 4)
    assert len(rows) <= SHOWN and [sum(row.rank == rank for row in rows) for rank in range(4)] == [6, 6, 1, 6]
    assert "and 24 more" in table(rows) and "nothing was heard" in table(rows)


# -- through the backend -----------------------------------------------------------------------------------------------
class Slabs(Arena):
    nbytes = 1 << 16

    def __init__(self):
        self.local = torch.zeros(self.nbytes, dtype=torch.uint8)
        self.bases = [self.local.data_ptr(), 1 << 40]

    def view(self, rank):
        return self.local

    def close(self):
        pass


@pytest.fixture
def hung(monkeypatch):
    """A GpuBackend whose device has trapped after an expired wait; `hung(flag offset)` gives it."""
    heap = SymmetricHeap(Slabs())
    allocation = heap.allocate(64, SoloGroup(), "ready")
    allocation.writer = lambda offset: offset // 4 + 5
    monkeypatch.setattr(gpu, "state", lambda: SimpleNamespace(heap=heap))
    monkeypatch.setattr(gpu.torch.cuda, "synchronize",
                        lambda device: (_ for _ in ()).throw(RuntimeError("unspecified launch failure")))

    class Bare(gpu.GpuBackend):
        name = "nvidia"

        def __init__(self, records):
            self._timeout, self._watch = 2.0, None
            self._contexts = SimpleNamespace(wait_records=lambda: records, kernel_name=lambda _: "ring",
                                             line_of=lambda record: f"ring.py:{record.site}")

        def gemm_config(self, dtype, m):
            raise NotImplementedError

    def make(offset):
        if offset is None:
            return Bare([])
        return Bare([WaitRecord(0, 0, 1, heap.base + offset, 3, 2, (4, 0, 0), 0, 11)])

    make.offset = allocation.offset
    return make


def test_synchronize_names_the_flag_its_writer_and_the_line(hung):
    with pytest.raises(WaitTimeout) as error:
        hung(hung.offset + 8).synchronize()
    row = str(error.value).splitlines()[2]
    assert "ring.py:11" in row and "flag ready + 8, of rank 0 (0x" in row and row.endswith("3       2     rank 7")
    assert "(4, 0, 0)" in row


def test_a_wait_in_the_world_barrier_names_the_missing_rank(hung):
    with pytest.raises(WaitTimeout, match=r"flag world barrier pad \+ 76, of rank 0 .* rank 3"):
        hung(64 + 4 * 3).synchronize()


def test_other_device_errors_stay_what_they_are(hung):
    with pytest.raises(RuntimeError, match="^unspecified launch failure$"):
        hung(None).synchronize()


# -- lines -------------------------------------------------------------------------------------------------------------
def test_lines_come_from_the_comment_or_from_the_directive():
    comment = '''
	.loc	3 68 76                         // sync.py:68:76 @[ help.py:8:46 @[ mine.py:14:24 ] ]
	mov.u32 %r1, 4; // tdist_site
	.loc	1 20 3 is_stmt 0                // mine.py:20:3
	mov.u32 %r1, 5; // tdist_site
	.loc	3 0 76                          // sync.py:0:76
	mov.u32 %r1, 6; // tdist_site
'''
    assert sites(comment) == {4: "help.py:8", 5: "mine.py:20", 6: ""}
    directive = '''
	.loc	1 8 12, function_name $L__info_string0, inlined_at 1 14 10 // mine.py:8:12
	.loc	2 68 17, function_name $L__info_string0, inlined_at 2 109 5 // sync.py:68:17
	.loc	2 109 5, function_name $L__info_string0, inlined_at 1 15 5 // sync.py:109:5
	.loc	2 68 17, function_name $L__info_string0, inlined_at 2 109 5 // sync.py:68:17
	mov.u32 %r49, 0; // tdist_site
	.file	1 "some/where/mine.py"
	.file	2 "LANGUAGE" "sync.py"
'''.replace("LANGUAGE", str(LANGUAGE))
    assert sites(directive) == {0: "mine.py:15"}


def test_a_users_file_may_have_the_name_of_one_of_ours():
    """memory.py and sync.py of a user, beside ours or without them."""
    directive = f'''
	.loc	1 8 12, function_name $L__info_string0, inlined_at 1 14 10 // memory.py:8:12
	.loc	2 68 17, function_name $L__info_string0, inlined_at 1 15 5 // memory.py:68:17
	mov.u32 %r49, 0; // tdist_site
	.file	1 "/users/me/triton_dist/work/memory.py"
	.file	2 "{LANGUAGE}" "memory.py"
'''
    assert sites(directive) == {0: "memory.py:15"}
    comment = '''
	.loc	2 68 76                         // sync.py:68:76 @[ memory.py:8:46 ]
	mov.u32 %r1, 4; // tdist_site
	.loc	3 9 1                           // team.py:9:1 @[ mine.py:3:3 ]
	mov.u32 %r1, 5; // tdist_site
'''
    files = f'''
	.file	1 "/users/me/work/memory.py"
	.file	2 "{LANGUAGE}/sync.py"
	.file	3 "/users/me/work/team.py"
'''
    assert sites(comment + files) == {4: "memory.py:8", 5: "team.py:9"}
    both = files + f'	.file	4 "{LANGUAGE}/memory.py"\n'
    assert sites(comment + both) == {4: "memory.py:8", 5: "team.py:9"}, "ours are innermost"


def test_the_scripts_frames_are_told_by_where_packages_lie(tmp_path):
    """A clone, or a folder of the user's, may be called as they are."""
    for name in ("triton_dist/train.py", "torch/model.py", "triton/kernels.py", "memory.py"):
        assert not in_packages(str(tmp_path / name))
    for file in (gpu_hang.__file__, torch.__file__, torch.nn.__file__, threading.__file__):
        assert in_packages(file)
    assert not in_packages(str(Path(threading.__file__).parent / "site-packages" / "mine" / "model.py"))


# -- between processes -------------------------------------------------------------------------------------------------
WORLD = """
import time
import torch.distributed as dist
from triton_dist.backends.gpu import hang as gpu_hang
from triton_dist.runtime.hang_table import Row

gpu_hang._LINGER = gpu_hang._GRACE = 1.0
dist.init_process_group("gloo")
rank, begun = dist.get_rank(), time.monotonic()
late = Row(rank, "ring", "(0, 0, 0)", "ring.py:7", "flag ready + 0, of rank 0 (0x1000)", "1", "0", "rank 1")
rows = lambda: [late] if not rank and time.monotonic() > begun + 0.5 else []
watch = gpu_hang.HangWatch(rank, 2, gpu_hang.store_of_world(), rows, 2.0, window=0.5)
watch.start()
if rank:
    dist.barrier()                      # stuck in torch, on the host, where nothing but the watch can end it
time.sleep(1.5)
raise RuntimeError("CUDA error: unspecified launch failure")
"""


@pytest.mark.full
def test_processes_under_torchrun_tell_once_and_all_end(tmp_path):
    """With the store that the launcher brings: rank 0's device traps, rank 1 waits for it in a collective."""
    (tmp_path / "world.py").write_text(WORLD)
    environment = dict(os.environ, PYTHONPATH=f"{PACKAGE}:{os.environ.get('PYTHONPATH', '')}", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "world.py"],
                          cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if re.match(r"hang: |[01] +|rank \d", line)]
    assert told[0].startswith("hang: no signal") and "ring.py:7" in told[1] and "world.py:" in told[2], done.stderr
    assert sum(line.startswith("hang: ") for line in told) == 1
    assert "rank 0 ends by this RuntimeError" in told and "launch failure" not in done.stderr, done.stderr
