# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The rules of the house: which room may import which, where a vendor may be named, and what every file looks like."""
import ast
import functools
import gzip
import importlib
import inspect
import io
import re
import subprocess
import tokenize
import tomllib
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "triton_dist"
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
           for path in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = ("python", "tests", "tutorials", "benchmarks", "scripts", "tools")
SOURCES = [path for folder in FOLDERS if (ROOT / folder).is_dir() for path in sorted((ROOT / folder).rglob("*"))
           if path.suffix in (".py", ".ll") and "build" not in path.relative_to(ROOT).parts]
short = {path: str(path.relative_to(ROOT)) for path in SOURCES}

BACKENDS = ("backends.nvidia", "backends.amd", "backends.emulator")
TOOLS = ("tools", "bench", "checker", "cli", "doctor", "testing", "tiles", "trace", "tune", "profile", "aot")
# room: what of the package it may import beside itself. The package's own face, triton_dist, may import layers and below.
MAY_IMPORT = {
    "compat": (),
    "language": ("compat",),
    "runtime": ("language", "compat"),
    "ops": ("runtime", "language", "compat"),
    "layers": ("ops", "runtime", "language", "compat"),
    "integrations": ("layers", "ops", "runtime", "language", "compat"),
    "cores": ("runtime", "language", "compat"),
    "backends": ("cores", "runtime", "language", "compat"),
}
# The rooms of the emulator, from the bottom up: each may import those before it. "" is its face, the files outside of a room.
EMULATOR = "triton_dist.backends.emulator"
EMULATOR_ROOMS = ("engine", "values", "memory", "rebuild", "twins", "worlds", "")
# Where a vendor's word is necessary, by module: a pattern of such words.
SHMEM_NAMES = r"\b(NVSHMEM[XI]?|ROCSHMEM|MORI)_\w+|\bset_rocshmem_ctx\b"     # the published SHMEM API, which kernels call
VENDOR_PLACES = {
    # The registry, and torch's own names for what both vendors have.
    "triton_dist.runtime.backend": r'^"(triton_dist\.backends\.)?(nvidia|amd)"$|^"/dev/nvidiactl"$|^(cuda|hip)$',
    "triton_dist.language.extra.shmem_constants": SHMEM_NAMES,          # defines these constants
    "triton_dist.language.shmem_abi": SHMEM_NAMES,                      # the table of functions: its names, and help() on them
    "triton_dist.language._shmem_check": SHMEM_NAMES,                   # errors that say which constants an argument may be
    "triton_dist.ops.internode.kernels": SHMEM_NAMES,                   # calls the API
}
VENDOR_WORD = re.compile(r"nvidia|cuda|rocm|nvshmem|rocshmem|(?<![a-z])(hip|amd|ptx|mori)(?![a-z])", re.I)


@functools.cache
def imports_of(module: str) -> set:
    """Modules of the package that `module` imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            found |= {name if name in MODULES else node.module
                      for name in (f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] == "triton_dist"}


def room(module: str) -> str:
    return (module.split(".") + [""])[1]


def concrete(module: str) -> str:
    """The concrete backend that a module belongs to, or ''."""
    return next((name for name in BACKENDS if f"{module}.".startswith(f"triton_dist.{name}.")), "")


# -- imports -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MAY_IMPORT)
def test_imports_go_one_way(name):
    wrong = [f"{module} imports {other}" for module in MODULES if room(module) == name for other in imports_of(module)
             if room(other) not in (name, *MAY_IMPORT[name])]
    assert not wrong, f"{name} may import {MAY_IMPORT[name] or 'nothing'}: {wrong}"


def test_a_concrete_backend_is_found_by_the_registry_only():
    inside = [module for module in MODULES if room(module) in MAY_IMPORT]
    wrong = [f"{module} imports {other}" for module in inside for other in imports_of(module)
             if concrete(other) not in ("", concrete(module))]
    assert not wrong


def test_rooms_of_the_emulator_import_downwards():
    """Each room exists, and imports no room above it. twins and worlds do not know each other."""
    def floor(module: str) -> int:
        name = module.removeprefix(EMULATOR).split(".")[1:2]
        return EMULATOR_ROOMS.index(name[0] if name and name[0] in EMULATOR_ROOMS else "")

    inside = [module for module in MODULES if f"{module}.".startswith(f"{EMULATOR}.")]
    assert {EMULATOR_ROOMS[floor(module)] for module in inside} == set(EMULATOR_ROOMS)
    pairs = [(module, other) for module in inside for other in imports_of(module) if other in inside]
    assert not [f"{module} imports {other}" for module, other in pairs if floor(other) > floor(module)]
    beside = [{EMULATOR_ROOMS[floor(module)], EMULATOR_ROOMS[floor(other)]} for module, other in pairs]
    assert {"twins", "worlds"} not in beside


def test_nothing_below_imports_a_tool():
    inside = [module for module in MODULES if room(module) not in (*TOOLS, "__main__")]
    assert not [f"{module} imports {other}" for module in inside for other in imports_of(module) if room(other) in TOOLS]


# -- vendors -----------------------------------------------------------------------------------------------------------
def words_of_code(path: Path) -> list:
    """Names and strings of a file, without comments, docstrings, and the texts of errors and warnings."""
    source = path.read_text()
    prose = [node for parent in ast.walk(ast.parse(source)) for node in prose_of(parent)]
    spans = [((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)) for node in prose]
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING) and not any(a <= token.start < b for a, b in spans):
            found.append(token.string)
    return found


def prose_of(node: ast.AST) -> list:
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
        first = node.body[0]
        return [first] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else []
    if isinstance(node, ast.Raise):
        return [node]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warn":
        return [node]
    return []


@pytest.mark.parametrize("name", ["ops", "layers", "runtime", "language"])
def test_no_vendor_is_named_above_the_backends(name):
    wrong = {}
    for module in MODULES:
        if room(module) == name:
            allowed = re.compile(VENDOR_PLACES.get(module, r"(?!)"))
            words = sorted({word for word in words_of_code(MODULES[module]) if VENDOR_WORD.search(allowed.sub("", word))})
            if words:
                wrong[module] = words
    assert not wrong, f"vendor words outside backends/, let the backend say it (Backend, or language._linked): {wrong}"


def test_no_comment_of_the_language_names_a_vendor():
    """Its docstrings and comments neither, but for names that kernels are written with."""
    paths = [path for module, path in MODULES.items() if room(module) == "language"]
    lines = [f"{path.name}:{i + 1}: {line.strip()}" for path in paths for i, line in enumerate(path.read_text().splitlines())
             if VENDOR_WORD.search(re.sub(SHMEM_NAMES, "", line))]
    assert len(paths) > 10 and not lines


def test_the_contract_of_a_device_knows_no_op():
    """Adding an op edits neither the contract of a device nor its capabilities."""
    ops = {path.parent.name for path in (PACKAGE / "ops").glob("*/op.py")}
    assert {"ag_gemm", "all_reduce"} <= ops
    contract = [f"triton_dist.runtime.{name}" for name in ("backend", "capabilities", "device")]
    words = {module: {word.strip("\"'") for word in words_of_code(MODULES[module])} for module in contract}
    assert not {module: found & ops for module, found in words.items() if found & ops}


# -- docstrings --------------------------------------------------------------------------------------------------------
PUBLIC = ["triton_dist", "triton_dist.language", "triton_dist.ops", "triton_dist.layers", "triton_dist.testing",
          *(f"triton_dist.runtime.{name}" for name in ("backend", "capabilities", "device", "errors", "groups", "heap", "streams",
                                                       "workspace", "world"))]


def public_objects(module) -> list:
    """(name, object) of what a module exports, and of the public methods that its classes define."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__ and (inspect.isclass(value) or callable(value))]
    found = [(f"{module.__name__}.{name}", getattr(module, name)) for name in names]
    return found + [(f"{name}.{member}", value) for name, cls in found if inspect.isclass(cls)
                    for member, value in vars(cls).items() if not member.startswith("_")
                    and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod, property)))
                    and not documented_above(cls, member)]


def documented_above(cls: type, member: str) -> bool:
    return any(getattr(vars(base).get(member), "__doc__", None) for base in cls.__mro__[1:])


def docstring(value: typing.Any) -> str:
    """Of a function, class or method, or of the function behind a jit function."""
    return (getattr(getattr(value, "fn", value), "__doc__", None) or "").strip()


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_is_documented(name):
    objects = public_objects(importlib.import_module(name))
    assert objects and not [known for known, value in objects if not docstring(value)]


def test_every_error_is_exported():
    import triton_dist
    from triton_dist.runtime import errors
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert len(raised) > 10 and raised <= {*triton_dist.__all__}


def test_run_ranks_is_documented():
    from triton_dist.backends.emulator import run_ranks
    assert "world_size" in inspect.signature(run_ranks).parameters
    assert all(f"{word}:" in docstring(run_ranks) for word in ("mode", "seed", "num_sms", "groups", "heap"))


def test_every_module_says_what_it_is_for():
    assert not [name for name, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))]


# -- the device language -----------------------------------------------------------------------------------------------
RETURN_NOTHING = {"barrier_all", "breakpoint_if", "fence", "gdc_launch_dependents", "gdc_wait", "ll_store", "ll_store_pair",
                  "notify", "notify_each", "notify_warp", "prefetch", "print_if", "sf_store", "trace_start", "trace_stop"}


def test_device_functions_say_what_they_take_and_return():
    """As Triton's own do: Args with each parameter, and Returns."""
    import triton_dist.language as dl
    assert set(dl.__all__) >= RETURN_NOTHING
    for name in dl.__all__:
        function = getattr(getattr(dl, name), "fn", getattr(dl, name))
        function = getattr(function, "__tdist_select__", function)
        text, parameters = docstring(function), inspect.signature(function).parameters
        assert ("Returns:" in text) == (name not in RETURN_NOTHING), name
        missing = [parameter for parameter in parameters if not re.search(rf"^ +{parameter}: ", text, re.M)]
        assert not missing and ("Args:" in text) == bool(parameters), (name, missing)


def test_shmem_functions_say_what_they_take_and_return():
    from triton_dist.language.extra import libshmem_device
    from triton_dist.language.shmem_abi import FUNCTIONS, PARAMETERS
    for name, function in FUNCTIONS.items():
        text = docstring(getattr(libshmem_device, name))
        assert all(f"    {parameter}: {PARAMETERS[parameter][2]}." in text for parameter in function.params), name


# -- files -------------------------------------------------------------------------------------------------------------
def test_every_file_has_its_header():
    wrong = []
    for path in [*SOURCES, *ROOT.glob("*.sh"), *(ROOT / "scripts").glob("*.sh")]:
        mark = ";" if path.suffix == ".ll" else "#"
        head = f"{mark} SPDX-FileCopyrightText: Copyright (c) triton_dist contributors\n{mark} SPDX-License-Identifier: MIT\n"
        text = re.sub(r"\A#!.*\n", "", path.read_text())
        wrong += [] if text.startswith(head) else [path.name]
    assert not wrong


def test_files_and_lines_are_short():
    code = [path for folder in (*FOLDERS, "examples") for path in (ROOT / folder).rglob("*.[ch]*")
            if path.suffix in (".c", ".h", ".cpp", ".hpp")]
    assert not {path.name for path in code if len(path.read_text().splitlines()) > 450}
    lines = {path: path.read_text().splitlines() for path in SOURCES}
    assert not {short[path]: len(text) for path, text in lines.items() if len(text) > 400 and path.suffix == ".py"}
    assert not [f"{short[path]}:{i + 1}: {len(line)}" for path, text in lines.items() for i, line in enumerate(text)
                if len(line) > 130]


def test_no_file_names_a_machine():
    """Neither its folders nor the registry it installs from."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    # Spelled so that this file does not name what it looks for.
    folders = re.compile(r"(?<![\w.~])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me")) + r")(?:/|\b)")
    hosts = re.compile(r"py" + r"pi\.|artifact" + r"ory|index" + r"-url")
    wrong = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix != ".png":
            text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
            wrong += [f"{name}: {found.group()}" for pattern in (folders, hosts) for found in pattern.finditer(text)]
    assert not wrong


def test_no_check_is_an_assert_statement():
    """python -O drops them. Scripts that print whether results are right are checks as well."""
    roots = [path for path in SOURCES if short[path].startswith(("python/", "tutorials/", "benchmarks/", "tools/"))]
    found = [f"{short[path]}:{node.lineno}" for path in roots if path.suffix == ".py"
             for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not found


def test_every_test_file_asserts_something():
    """By itself, or by the tests of mutants that it takes from checking.py."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        if not any(isinstance(node, ast.Assert) for node in nodes) and not any(
                isinstance(node, ast.Attribute) and node.attr == "raises" or isinstance(node, ast.Name) and node.id == "checks_of"
                for node in nodes):
            wrong.append(short[path])
    assert not wrong


# -- packaging ---------------------------------------------------------------------------------------------------------
def project() -> dict:
    return tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())


def test_device_runtime_is_package_data():
    globs = project()["tool"]["setuptools"]["package-data"]["*"]
    data = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts]
    named = {path.name for path in data if not path.match("tuned_*.json") and path.parent != PACKAGE / "aot" / "c"}
    assert named == {"common.ll", "device.ll", "threads.ll", "py.typed"}
    assert {path.suffix for path in data if path.parent == PACKAGE / "aot" / "c"} == {".c", ".h", ".txt"}
    for path in data:
        assert any(path.match(pattern) for pattern in globs), f"{path.name} is in no wheel"
        assert (path.parent / "__init__.py").is_file(), "setuptools takes data from packages only"


def test_extras_hold_what_the_tests_and_tools_import():
    extras = {name: {re.split(r"[<>=]", item)[0] for item in items}
              for name, items in project()["project"]["optional-dependencies"].items()}
    assert extras["dev"] >= {"pytest", "hypothesis", *extras["plot"], *extras["emulator"], *extras["tune"], *extras["docs"]}


# -- environment -------------------------------------------------------------------------------------------------------
def test_every_variable_is_listed_once():
    """The table of variables has every one of ours that the package, the scripts, tests or tools read, and no other."""
    from triton_dist.doctor.variable_table import SECTIONS, VARIABLES
    pattern = re.compile(r"\bTRITON_DIST_[A-Z]+(?:_[A-Z]+)*\b")
    table = PACKAGE / "doctor" / "variable_table.py"
    files = [*(path for path in MODULES.values() if path != table), *(ROOT / "scripts").glob("*.sh"), *ROOT.glob("*.sh")]
    read = {name for path in files for name in pattern.findall(path.read_text())} - {"TRITON_DIST_ROOT"}     # setenv.sh sets it
    listed = [variable.name for section in SECTIONS.values() for variable in section]
    assert len(listed) == len(VARIABLES) and {name for name in listed if name.startswith("TRITON_DIST_")} == read
    elsewhere = {name for folder in ("tests", "tools", "tutorials", "benchmarks") for path in (ROOT / folder).rglob("*.py")
                 for name in pattern.findall(path.read_text()) if not name.startswith("TRITON_DIST_TEST")}
    assert elsewhere - read - {"TRITON_DIST_ROOT"} <= UNKNOWN


UNKNOWN = {"TRITON_DIST_" + word for word in ("HEAPSIZE", )}      # names that tests use as those of no variable
