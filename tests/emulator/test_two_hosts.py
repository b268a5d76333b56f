# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Two launchers on two hosts that share a network and nothing else: namespaces of one machine, with a cable between them."""
import os
import re
import shutil
import subprocess
import sys

import pytest

from triton_dist.cli import launch

# Each host has a name, a network, processes and a /proc of its own, so that neither can open what the other keeps in memory.
# Both run "$@"; what the second prints goes to $HOSTB. Everything ends with the first process of the outer namespaces.
HOSTS = r"""
set -eu
hostname hosta
unshare --net --uts --pid --fork --kill-child --mount-proc sh -c 'hostname hostb; touch "$HOSTB"; exec sleep 1000' &
outer=$!
until [ -e "$HOSTB" ]; do sleep 0.05; done
inside=$(cat /proc/$outer/task/$outer/children)
b() { nsenter --target $inside --net --uts --pid --mount "$@"; }
ip link add eth0 type veth peer name eth0 netns $inside
ip address add 10.77.0.1/24 dev eth0
b ip address add 10.77.0.2/24 dev eth0
for device in eth0 lo; do ip link set $device up; b ip link set $device up; done
export GLOO_SOCKET_IFNAME=eth0 NNODES=2 NPROC_PER_NODE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
NODE_RANK=1 b "$@" > "$HOSTB" 2>&1 &
second=$!
status=0; NODE_RANK=0 "$@" || status=$?
wait $second || status=$?
exit $status
"""
SCRIPT = """
import sys
import torch
import triton_dist
from triton_dist.runtime.groups import resolve
sys.path[:0] = {folders!r}
import test_ag_gemm
import test_gemm_rs
import test_nodes
import test_internode
triton_dist.initialize_distributed()
group = resolve()
print(f"rank {{group.rank}}: node {{group.node}}, local rank {{group.local_rank}} of {{group.ranks_per_node}}", flush=True)
for how in ("put", "get"):
    test_nodes.around(how)
words, flag = test_nodes.symmetric()
out = torch.zeros(22, dtype=torch.int32)
test_nodes.teams_kernel[(1,)](words, flag, out)
assert out[:3].tolist() == [group.rank, 4, 1]
for form in (test_internode.Gather, test_internode.Scatter):
    for verify in [form(70, 40)(seed, group) for seed in range(3)]:
        verify()
for script in (test_ag_gemm, test_gemm_rs):
    script.check(256, 72, 100, torch.bfloat16)
if {hang}:
    print(f"rank {{group.rank}} waits", flush=True)
    test_nodes.wait_kernel[(1,)](words, flag, 1)
triton_dist.finalize_distributed()
print(f"rank {{group.rank}} is done", flush=True)
"""


@pytest.fixture(scope="module")
def namespaces() -> list:
    """The command that runs HOSTS as root of namespaces of its own; skips where the system does not let it."""
    tools = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if tools:
        pytest.skip(f"no {', '.join(tools)} here")
    command = ["unshare", "--user", "--map-root-user", "--net", "--uts", "--pid", "--fork", "--mount", "--mount-proc",
               "--kill-child"]
    trial = subprocess.run([*command, "sh", "-c", "hostname hosta && ip link add eth0 type veth peer name eth1"], text=True,
                           capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"namespaces cannot be made: {trial.stderr.strip()}")
    return command


def run(namespaces: list, tmp_path, hang: bool) -> tuple:
    """(exit status, what both hosts printed)."""
    tests = launch.ROOT / "tests"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folders=[str(tests / "emulator"), str(tests / "nvidia")], hang=hang))
    second = tmp_path / "hostb"
    env = {**os.environ, "HOSTB": str(second), "TRITON_DIST_BACKEND": "emulator", "TRITON_DIST_HEAP_SIZE": "32M",
           "OMP_NUM_THREADS": "1"}
    first = subprocess.run([*namespaces, "bash", "-c", HOSTS, "hosts", sys.executable, launch.__file__, str(script)], env=env,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    return first.returncode, first.stdout, second.read_text()


@pytest.mark.full
def test_ops_run_over_a_network(namespaces, tmp_path):
    status, *out = run(namespaces, tmp_path, hang=False)
    assert status == 0, "\n".join(out)
    for rank in range(4):
        assert f"rank {rank}: node {rank // 2}, local rank {rank % 2} of 2" in out[rank // 2]
        assert f"rank {rank} is done" in out[rank // 2], "\n".join(out)


@pytest.mark.full
def test_a_hang_over_a_network_is_told_on_both_hosts(namespaces, tmp_path):
    status, *out = run(namespaces, tmp_path, hang=True)
    assert status != 0
    for host in out:
        assert "HangError" in host, "\n".join(out)
    assert any(re.search(r"^1 +wait_kernel .*never written", host, re.M) for host in out), "\n".join(out)
