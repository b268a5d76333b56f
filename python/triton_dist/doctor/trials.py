# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Trials: what can only be known by doing it, each in processes of its own, so that a crash or a hang is a finding.

`attempt` starts one; the other functions are its body, run as `python -m triton_dist.doctor.trials NAME`. The last line that
rank 0 prints is the result, a JSON object.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_RESULT = "triton_dist-doctor:"


def attempt(name: str, ranks: int = 1, seconds: float = 90, **environ: str) -> dict:
    """The result of a trial; {"error": words} where it failed, crashed or did not end. Never raises, never hangs.

    environ: variables to set for it; an empty value unsets one.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
           "OMP_NUM_THREADS": "1", **environ}
    env = {key: value for key, value in env.items() if value and key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-m", "triton_dist.doctor.trials", name]
    if ranks > 1:
        command[2:2] = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    with tempfile.TemporaryFile("w+") as output:
        try:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       start_new_session=True)
        except OSError as error:
            return {"error": str(error)}
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)          # the launcher and its ranks
            process.wait()
            return {"error": f"did not end within {seconds:g} seconds"}
        output.seek(0)
        return _result(output.read(), code)


def _result(text: str, code: int) -> dict:
    lines = text.splitlines()
    results = [line.split(_RESULT, 1)[1] for line in lines if _RESULT in line]
    if results and (code == 0 or "error" in json.loads(results[-1])):
        return json.loads(results[-1])
    told = [line for line in lines if "Error" in line and "ChildFailedError" not in line] or lines or [""]
    return {"error": f"ended with code {code}: {told[-1].strip()[:300]}"}


# -- bodies ------------------------------------------------------------------------------------------------------------
def chosen() -> dict:
    """The backend that a process takes here."""
    from triton_dist.runtime.backend import detect
    return {"backend": detect()}


def world() -> dict:
    """All ranks map each other's heap, store into it from the host and from a kernel, and wait for each other's signal."""
    import torch

    import triton_dist
    from triton_dist.doctor.kernel import ring
    from triton_dist.runtime.groups import resolve
    os.environ.setdefault("TRITON_DIST_HEAP_SIZE", "16M")
    triton_dist.initialize_distributed()
    group = resolve()
    table = triton_dist.create_symm_tensor((group.size,), torch.int32)
    buffer, flag = triton_dist.create_symm_tensor((64,), torch.int32), triton_dist.create_symm_tensor((1,), torch.int32)
    for peer in range(group.size):
        triton_dist.peer_tensor(table, peer)[group.rank] = group.rank + 1
    triton_dist.synchronize()
    group.barrier()
    if table.tolist() != list(range(1, group.size + 1)):
        return {"error": f"stores of peers did not arrive: {table.tolist()}"}
    out = torch.zeros(64, dtype=torch.int32, device=triton_dist.device())
    ring[(1,)](buffer, flag, out, BLOCK=64)          # pyright: ignore[reportIndexIssue]
    triton_dist.synchronize()
    expected = (group.rank - 1) % group.size + 1
    wrong = group.all_gather_object(out.tolist() != [expected] * 64)
    triton_dist.finalize_distributed()
    return {"error": f"kernels of ranks {[r for r, bad in enumerate(wrong) if bad]} got wrong data"} if any(wrong) else {}


def memfd() -> dict:
    """Heap blocks of the emulator, through memfd."""
    return _block("by_memfd")


def file() -> dict:
    """Heap blocks of the emulator, through files in TMPDIR."""
    return _block("by_file")


def _block(how: str) -> dict:
    import mmap

    from triton_dist.backends.emulator.worlds import arena
    from triton_dist.runtime.groups import TorchGroup
    import torch.distributed as dist
    dist.init_process_group("gloo")
    group = TorchGroup(dist.group.WORLD)
    fds = getattr(arena, how)(group, mmap.PAGESIZE, [True] * group.size)
    if not fds:
        return {"error": "a rank cannot open another's"}
    blocks = [mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED) for fd in fds]
    blocks[(group.rank + 1) % group.size][0] = group.rank + 1
    group.barrier()
    seen = group.all_gather_object(blocks[group.rank][0])
    dist.destroy_process_group()
    return {} if seen == [(rank - 1) % group.size + 1 for rank in range(group.size)] else {"error": f"found {seen}"}


def gpus() -> dict:
    """The devices, who reaches whom, and whether a stream of each can write a flag."""
    import torch

    from triton_dist.runtime.backend import backend
    count = torch.cuda.device_count()
    devices, flags = [], []
    for i in range(count):
        known = torch.cuda.get_device_properties(i)
        devices.append({"name": known.name, "memory_gib": round(known.total_memory / 2**30, 1),
                        "sms": known.multi_processor_count,
                        "arch": getattr(known, "gcnArchName", "") if torch.version.hip else f"sm_{known.major}{known.minor}"})
        with torch.cuda.device(i):
            flags.append(_stream_flag(backend()))
    access = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    return {"devices": devices, "access": access, "stream_memory_ops": flags}


def _stream_flag(engine: Any) -> str:
    """'' where writing a flag from a stream works, else why not."""
    import torch
    try:
        if not engine.has_stream_memory_ops():
            return "not offered by the driver"
        word, stream = torch.zeros(1, dtype=torch.int32, device="cuda"), engine.new_stream()
        torch.cuda.synchronize()
        engine.write_value32(word, 0, 7, stream)
        stream.synchronize()
        return "" if word.item() == 7 else f"wrote 7, read {word.item()}"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def main(name: str) -> int:
    """Runs a body; its error, whatever it is, becomes the result."""
    try:
        found = {"chosen": chosen, "world": world, "memfd": memfd, "file": file, "gpus": gpus}[name]()
    except BaseException as error:      # what it is, the report says
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    if "error" in found or os.environ.get("RANK", "0") == "0":
        print(f"{_RESULT}{json.dumps(found)}", flush=True)
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
