# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The launcher, launch.sh and `triton-dist launch`: finds a script, picks GPUs or the emulator, and hands over to torchrun.

Emulated ranks of one node are forks of one process (forks.py), unless the command asks for something of torchrun.
Run by path, with the standard library only, so that it starts at once.
"""
import difflib
import importlib.util
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]        # of a checkout; installed, it holds none of the folders below
PACKAGES = Path(__file__).resolve().parents[2]    # from where triton_dist is imported
_SEARCHED = ("tests", "tutorials", "benchmarks")
_EMULATED_RANKS = 4
_MAX_WORLD = 64                                  # runtime.context.MAX_WORLD, which this file does not import
_OWN = {  # option -> environment variable that gives its default
    "nproc_per_node": "NPROC_PER_NODE",
    "nnodes": "NNODES",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "vendor": None,
}


class HelpRequested(Exception):
    """--help was among the launcher's options."""


class UsageError(Exception):
    """The command line makes no sense; the message says why."""


@dataclass
class Command:
    """A parsed command line. `torchrun` holds options of torchrun, or of the checker, that are passed on as they are."""
    script: Path
    script_args: list
    options: dict
    torchrun: list = field(default_factory=list)
    given: set = field(default_factory=set)         # options that were not taken from the environment


def parse(argv: list, environ: dict) -> Command:
    """Splits launcher options, torchrun options, the script and the script's arguments."""
    options = {name: environ[variable] for name, variable in _OWN.items() if variable and environ.get(variable)}
    torchrun: list = []
    given: set = set()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            script = find_script(word, options.get("vendor", "nvidia"))
            if script is not None:
                return Command(script, rest, options, torchrun, given)
            if torchrun and (torchrun[-1].startswith("--") and "=" not in torchrun[-1] or torchrun[-1] in ("-r", "-t")):
                torchrun.append(word)           # the value of a torchrun option
                continue
            raise UsageError(f"no script {word!r} {_suggest(word)}")
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in ("h", "help"):
            raise HelpRequested
        if name in ("check", "published"):
            options[name] = True
            continue
        if name not in _OWN:
            alike = [f"--{own}" for own in _OWN if name and own.startswith(name)]
            if alike and name not in ("m", "r", "t"):       # torchrun has these
                raise UsageError(f"no option {word.partition('=')[0]}; did you mean {' or '.join(alike)}?")
            torchrun.append(word)
            continue
        if not equals:
            if not rest:
                raise UsageError(f"--{name} needs a value")
            value = rest.pop(0)
        options[name] = value
        given.add(name)
        if name == "vendor" and value not in ("nvidia", "amd"):
            raise UsageError(f"--vendor: expected nvidia or amd, found {value!r}")
    raise UsageError(f"no script given\n{USAGE}")


def misplaced(command: Command) -> str | None:
    """What to say where an option of the launcher stands after a script that does not mention it."""
    return astray(command.script, command.script_args, {*_OWN, "check", "published"}, "the launcher")


def astray(script: Path, args: list, names: set, tool: str) -> str | None:
    """What to say where one of a tool's options, `names`, stands after a script that does not mention it."""
    words = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in args if word.startswith("--")}
    text = script.read_text(errors="replace")          # it may say that it is of another encoding
    for name in sorted(words & names):
        if name not in text:
            return (f"--{name} stands after {script.name}, so it goes to the script, which does not mention it; "
                    f"options of {tool} come before the script")
    return None


USAGE = """usage: bash launch.sh [--nproc_per_node N] [--nnodes N] [--node_rank R] [--master_addr A] [--master_port P]
                      [torchrun options] SCRIPT [ARGS...]
       bash launch.sh --published ... SCRIPT     one that was written against the published API (docs/migration.md)
       bash launch.sh --check [--nproc_per_node N] [options of triton-dist check] SCRIPT [ARGS...]
`triton-dist launch` is the same. SCRIPT is a path, or the bare name of a file under tests/, tutorials/ or benchmarks/.
Each option may come from the environment: NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT (the last
two count where there are several nodes: one node needs no address).
TRITON_DIST_BACKEND=emulator (or TRITON_INTERPRET=1) runs emulated ranks on a machine that has GPUs."""


def find_script(word: str, vendor: str) -> Path | None:
    """The file of a path or a bare name; with several of one name, the vendor's own."""
    names = [word] if word.endswith(".py") else [word, word + ".py"]
    for name in names:
        for base in (_here(), ROOT):
            if (base / name).is_file():
                return (base / name).resolve()
    if "/" in word:
        return None
    found = [path for name in names for folder in _SEARCHED for path in sorted((ROOT / folder).rglob(name))]
    own = [path for path in found if path.parent.name == vendor]
    if len(found) > 1 and not own:
        raise UsageError(f"{word!r} is the name of several scripts; give a path: "
                         + ", ".join(str(path.relative_to(ROOT)) for path in found))
    return (own or found or [None])[0]


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been deleted; cd to another one") from None


def _suggest(word: str) -> str:
    known = sorted({path.name for folder in _SEARCHED for path in (ROOT / folder).rglob("*.py")})
    close = difflib.get_close_matches(Path(word).name, known, n=3, cutoff=0.5)
    return "here or under tests/, tutorials/, benchmarks/" + (f"; did you mean {', '.join(close)}?" if close else "")


def count_gpus(environ: dict) -> int:
    """GPUs that a process started with `environ` would see. Asks the drivers' tools and files, not torch."""
    vendor, count = devices(Path("/"))
    of_hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    for variable in ("CUDA_VISIBLE_DEVICES",) if vendor == "nvidia" else ("ROCR_VISIBLE_DEVICES", of_hip):
        if variable in environ:
            count = _shown(environ[variable], count)
    return count


def devices(root: Path) -> tuple[str, int]:
    """(vendor, number) of the GPUs whose driver shows them under `root`."""
    nvidia = [path for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if nvidia:
        return "nvidia", len(nvidia)
    if any((root / "dev" / name).exists() for name in ("dxg", "nvidiactl")):        # WSL, and sandboxes that number no files
        try:
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
        except OSError:                         # a GPU of another vendor
            listed = ""
        return "nvidia", len(re.findall(r"^GPU \d+", listed, re.MULTILINE))
    return "amd", sum(map(_computes, (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")))


def _computes(properties: Path) -> bool:
    """Whether a node of AMD's driver is a GPU, and one of this container: the driver lets nobody else read it."""
    try:
        return re.search(r"^simd_count 0$", properties.read_text(), re.MULTILINE) is None
    except OSError:
        return False


def _shown(text: str, count: int) -> int:
    """How many of `count` devices a list of numbers and UUIDs shows. As for the drivers, what is wrong ends the list."""
    seen: list = []
    for word in map(str.strip, text.split(",")):
        if not (word.isdecimal() and int(word) < count or word.startswith(("GPU-", "MIG-"))):
            break
        if word in seen:
            return 0
        seen.append(word)
    return len(seen)


def wants_emulator(environ: dict, gpus: int) -> bool:
    """The user's word, Triton's own switch, or no GPU."""
    asked = environ.get("TRITON_DIST_BACKEND", "").lower()
    if asked and asked != "auto":
        return asked == "emulator"
    return environ.get("TRITON_INTERPRET", "0") not in ("", "0") or gpus == 0


def plan(command: Command, environ: dict, name: str = "launch.sh") -> tuple[list, dict]:
    """(torchrun's command line, the environment for it). Sets no variable that the user has set. `name`: for its last line."""
    env = dict(environ)
    gpus = count_gpus(environ)
    if wants_emulator(environ, gpus):
        env.setdefault("TRITON_DIST_BACKEND", "emulator")
        ranks = _EMULATED_RANKS
    elif gpus or "nproc_per_node" in command.options or command.options.get("check"):
        ranks = gpus
    else:
        raise UsageError(f"TRITON_DIST_BACKEND={environ.get('TRITON_DIST_BACKEND')}: no GPU is visible; leave it out for "
                         "emulated ranks, or name --nproc_per_node")
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("OMP_NUM_THREADS", "1")          # as torchrun would set it, with a warning
    path = str(PACKAGES)
    if path not in env.get("PYTHONPATH", "").split(os.pathsep):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [path, env.get("PYTHONPATH")]))
    options = command.options
    if options.get("published") and options.get("check"):
        raise UsageError("--check: scripts that run by --published cannot be checked; run them without one of the two")
    if options.get("check"):                    # emulated ranks of one process, whatever the machine has
        env["TRITON_DIST_BACKEND"] = "emulator"
        words = [f"--nproc_per_node={_number(options, 'nproc_per_node', _EMULATED_RANKS)}", *command.torchrun]
        starter = str(Path(__file__).with_name("check.py"))
        return [sys.executable, starter, name, *words, str(command.script), *command.script_args], env
    per_node, nodes = _number(options, "nproc_per_node", ranks), _number(options, "nnodes", 1)
    if per_node * nodes > _MAX_WORLD:
        raise UsageError(f"--nproc_per_node times --nnodes: expected at most {_MAX_WORLD} ranks, found {per_node * nodes}")
    argv = [name, f"--nproc-per-node={per_node}"]
    starter = "torchrun.py"                     # beside this file
    if nodes > 1 or command.given & {"master_addr", "master_port"}:       # else a stale MASTER_ADDR would be waited for
        node, port = _number(options, "node_rank", 0, least=0), _number(options, "master_port", 29500)
        if node >= nodes:
            raise UsageError(f"--node_rank: expected a number below --nnodes={nodes}, found {node}")
        if port > 65535:
            raise UsageError(f"--master_port: expected at most 65535, found {port}")
        argv += [f"--nnodes={nodes}", f"--node-rank={node}",
                 f"--master-addr={options.get('master_addr', '127.0.0.1')}", f"--master-port={port}"]
    else:
        argv.append("--standalone")             # a free port: two launches do not meet
        if env.get("TRITON_DIST_BACKEND") == "emulator" and not _needs_torchrun(command, env):
            starter = "forks.py"
    words = [str(command.script), *command.script_args]
    if options.get("published"):
        command.torchrun.append("-m")
        words.insert(0, "triton_dist.dropin.run")
        if "TRITON_DIST_BACKEND" not in env and importlib.util.find_spec("nvshmem") is not None:
            env.setdefault("TRITON_DIST_HEAP", "nvshmem")        # its kernels may call SHMEM
    # Behind "--" torchrun leaves options alone that look like short forms of its own.
    return [sys.executable, "-u", str(Path(__file__).with_name(starter)), *argv, *command.torchrun, "--", *words], env


def _needs_torchrun(command: Command, environ: dict) -> bool:
    """Whether words or variables ask for what torchrun alone does: its options, another Python, ${local_rank} in words."""
    return (command.torchrun not in ([], ["-m"]) or any("$" in word for word in command.script_args)
            or any(name.startswith(("PET_", "PYTHON_EXEC", "TORCHELASTIC_")) for name in environ))


def obstacle(command: Command, environ: dict) -> str | None:
    """Why ranks that are started now would fail, in a line that says what to do; None where nothing is in the way."""
    spec: Any = importlib.util.spec_from_file_location("_folders", PACKAGES / "triton_dist" / "runtime" / "folders.py")
    folders = importlib.util.module_from_spec(spec)         # by path: the package itself would import torch
    spec.loader.exec_module(folders)
    wrong = folders.unwritable(environ, environ.get("TRITON_DIST_BACKEND") == "emulator")
    if wrong:
        return "; ".join(wrong)
    address = command.options.get("master_addr")
    if address and (_number(command.options, "nnodes", 1) > 1 or "master_addr" in command.given):
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            return f"--master_addr (MASTER_ADDR): cannot find the host {address!r} ({error.strerror}); name the first node"
    return None


def _number(options: dict, name: str, default: int, least: int = 1) -> int:
    text = str(options.get(name, default))
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"--{name}: expected a whole number of at least {least}, found {text!r}")
    return int(text)


def start_tool(name: str, words: list, ranks: int | None) -> int:
    """Replaces this process by torchrun with `python -m triton_dist.NAME` on every rank; returns only on a usage error."""
    options = {} if ranks is None else {"nproc_per_node": str(ranks)}
    try:
        torchrun, environment = plan(Command(Path(f"triton_dist.{name}"), words, options, torchrun=["-m"]), dict(os.environ),
                                     f"triton-dist {name}")
    except UsageError as error:
        print(f"triton-dist {name}: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execve(torchrun[0], torchrun, environment)


def main(argv: list, name: str = "launch.sh") -> int:
    """Replaces this process by torchrun; returns only on a usage error. `name`: what the user has called."""
    try:
        parsed = parse(argv, dict(os.environ))
        command, environment = plan(parsed, dict(os.environ), name)
        wrong = obstacle(parsed, environment)
        if wrong is not None:
            raise UsageError(wrong)
    except HelpRequested:
        print(USAGE)
        return 0
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    note = misplaced(parsed)
    if note is not None:
        print(f"{name}: note: {note}", file=sys.stderr, flush=True)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
