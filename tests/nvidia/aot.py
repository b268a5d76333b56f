# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels ahead of time on GPUs: `python tests/nvidia/aot.py OUT` builds the library for sm_90, runs the C++ example and the ops.

Compares ops that launch from the library, and the ops in C, with those compiled as they are used, bit by bit; times both in
graphs, and the host time of a launch. Writes OUT/aot.json, and prints one line for each thing that it looks at.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from aot_rank import AG, COMM_SMS, RANKS

ROOT = Path(__file__).resolve().parents[2]


def main(out: Path) -> int:
    """Builds, then starts the ranks. 0 where all went well."""
    out.mkdir(parents=True, exist_ok=True)
    folder, env = out / "library", {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"}
    env.pop("TRITON_DIST_WAIT_TIMEOUT", None)       # with it kernels are compiled as they are used
    results: dict = {}

    def step(name: str, *words, seconds: int) -> str:
        start = time.monotonic()
        try:
            done = subprocess.run(
                [*map(str, words)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
            )
            text, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            text, code = str(error.stdout or b"") + str(error.stderr or b""), "timeout"
        results[name] = {"code": code, "seconds": round(time.monotonic() - start, 1), "said": text[-2500:]}
        print(f"== {name}: {code} in {results[name]['seconds']} s\n{text[-2500:]}", flush=True)
        (out / "aot.json").write_text(json.dumps(results, indent=1))
        return text

    step(
        "build",
        "bash",
        "scripts/gen_aot_code.sh",
        "--target",
        "cuda:90",
        "--out",
        folder,
        "-j",
        min(24, os.cpu_count() or 1),
        seconds=200,
    )
    env["USE_TRITON_DISTRIBUTED_AOT"] = str(folder)
    step(
        "cmake",
        "bash",
        "-c",
        f"cmake -S examples/cpp -B {out}/cpp -DAOT={folder} && cmake --build {out}/cpp -j",
        seconds=60,
    )
    program = f"cc -O2 -I{folder}/runtime tests/nvidia/launch_time.c -L{folder} -ltriton_dist_aot -ldl -o {out}/launch_time"
    step("launch", "bash", "-c", f"{program} && LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH {out}/launch_time", seconds=60)
    for shape in AG:
        step(f"C++ {shape}", f"{out}/cpp/ag_gemm", "--ranks", RANKS, "--shape", *shape, "--comm-sms", COMM_SMS, seconds=60)
    step(
        "ranks",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        RANKS,
        ROOT / "tests" / "nvidia" / "aot_rank.py",
        out,
        seconds=200,
    )
    step("test_ag_gemm", "bash", "launch.sh", "test_ag_gemm.py", 8192, 8192, 29568, seconds=90)
    ranks = out / "ranks.json"
    results["ranks"]["measured"] = json.loads(ranks.read_text()) if ranks.exists() else None
    (out / "aot.json").write_text(json.dumps(results, indent=1))
    return int(any(step["code"] != 0 for step in results.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
