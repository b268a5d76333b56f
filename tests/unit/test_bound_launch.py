# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Prepared launches, and the NVIDIA launcher with bound arguments: what reaches the driver, without a driver."""
import ctypes
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from triton import knobs

from triton_dist.backends.gpu import backend as gpu
from triton_dist.backends.nvidia import launch as module
from triton_dist.backends.nvidia.launch import _Config, BoundLaunch, Parameters

pytestmark = pytest.mark.usefixtures("few_objects")


class Driver:
    """Stands in for CudaDriver: keeps what cuLaunchKernelEx and cuTensorMapEncodeTiled were given."""

    def __init__(self):
        self.launches, self.maps, self.fills, self.at, self.status = [], [], [], {}, 0

    def bound(self, name, *types):
        assert name == "cuLaunchKernelEx"
        return self.launch

    def launch(self, config, function, params, extra):
        at = _Config.from_address(config)
        count = len(self.kinds)
        addresses = (ctypes.c_void_p * count).from_address(params)
        values = [kind.from_address(address).value if kind else address for kind, address in zip(self.kinds, addresses)]
        self.launches.append((tuple(at.grid), tuple(at.block), at.shared, at.stream, at.num_attributes, function, values))
        return self.status

    def encode_tensor_map(self, where, kind, rank, address, dims, strides, box, ones, interleave, swizzle, promotion, fill):
        dims, box = [list((word * rank).from_address(at)) for word, at in ((ctypes.c_uint64, dims), (ctypes.c_uint32, box))]
        strides = list((ctypes.c_uint64 * (rank - 1)).from_address(strides))
        assert where % 64 == 0 and list((ctypes.c_uint32 * rank).from_address(ones)) == [1] * rank
        assert (interleave, promotion) == (0, 2)
        self.maps.append((kind, rank, address, dims, strides, box, swizzle))
        self.fills.append(fill)
        self.at[int(where)] = self.maps[-1]

    def check(self, name, code):
        raise RuntimeError(f"{name}: {code}")


def compiled(signature, ptx="", **meta):
    facts = dict(num_ctas=1, launch_pdl=False, global_scratch_size=0, profile_scratch_size=0, num_warps=12, shared=1000,
                 launch_cooperative_grid=True, tensordesc_meta=[])
    return SimpleNamespace(metadata=SimpleNamespace(**{**facts, **meta}), function=77, src=SimpleNamespace(signature=signature),
                           asm={"ptx": ptx})


def bound(driver, kernel, grid, args, positions):
    """A launch of a compiled kernel; the first one of it says what the others have in common."""
    known = vars(kernel).setdefault("common", {})
    if positions not in known:
        known[positions] = Parameters(driver, kernel, positions)
    return BoundLaunch(known[positions], grid, args)


def test_pointers_and_integers_are_rewritten_and_constexprs_left_out():
    driver, x, y = Driver(), torch.zeros(4), torch.zeros(4)
    driver.kinds = [ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(x="*fp32", n="i32", one="constexpr", big="i64", B="constexpr")), (132,),
                         (x, 5, 1, 2**40), (0, 1, 2, 3))
    launch(9, (x, 5, 1, 2**40))
    launch(10, (y, -6, 1, 7))
    common = ((132, 1, 1), (384, 1, 1), 1000)
    assert driver.launches == [(*common, 9, 1, 77, [x.data_ptr(), 5, 2**40, 0, 0]),
                               (*common, 10, 1, 77, [y.data_ptr(), -6, 7, 0, 0])]


def test_a_tensor_map_is_encoded_once_an_address():
    driver = Driver()
    meta = dict(swizzle=3, elem_size=2, elem_type=10, block_size=[128, 64], fp4_padded=False)
    views = [SimpleNamespace(base=torch.zeros(8, 24), shape=[8, 20], strides=[24, 1], padding="zero") for _ in range(2)]
    driver.kinds = [None, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(d="tensordesc<bf16[128, 64],layout>"), tensordesc_meta=[meta]), (4, 2),
                         (views[0],), (0,))
    for view in (views[0], views[1].base, views[0].base):       # the tensor under a descriptor is as good
        launch(1, (view,))
    assert driver.maps == [(9, 2, view.base.data_ptr(), [20, 8], [48], [64, 128], 3) for view in views]
    maps = [values[0] for *_, values in driver.launches]
    assert maps[0] == maps[2] != maps[1]
    assert [values[1:] for *_, values in driver.launches] == [[8, 20, 24, 1, 0, 0]] * 3


@pytest.mark.parametrize("signature, meta", [(dict(x="fp32"), {}), (dict(x="i32"), dict(num_ctas=2)),
                                             (dict(x="i32"), dict(global_scratch_size=8)),
                                             (dict(x="tensordesc<bf16[8, 8]>"), {})])
def test_kernels_that_need_more_are_left_to_triton(signature, meta):
    with pytest.raises(NotImplementedError):
        bound(Driver(), compiled(signature, **meta), (1,), (1,), (0,))


def test_what_does_not_vary_stays_and_a_launch_can_be_made_again():
    driver, x, y, z = Driver(), torch.zeros(4), torch.zeros(4), torch.zeros(4)
    driver.kinds = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(x="*fp32", y="*fp32", n="i32")), (1,), (x, y, 5), (0,))
    launch(9, (z,))
    launch.again()
    assert [values for *_, values in driver.launches] == [[z.data_ptr(), y.data_ptr(), 5, 0, 0]] * 2


def test_arguments_may_vary_in_any_places():
    """What a call passes in other places is not looked at."""
    driver, x, y, z = Driver(), torch.zeros(4), torch.zeros(4), torch.zeros(4)
    driver.kinds = [ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(x="*fp32", n="i32", y="*fp32", m="i32")), (1,), (x, 5, y, 6), (2, 3))
    launch(9, (None, None, z, 7))
    launch(9, (z, 1, y, 8))
    assert [values for *_, values in driver.launches] == [[x.data_ptr(), 5, z.data_ptr(), 7, 0, 0],
                                                          [x.data_ptr(), 5, y.data_ptr(), 8, 0, 0]]


def test_a_launch_on_another_grid_has_other_arguments_and_leaves_the_first_as_it_was():
    driver, x, y, z = Driver(), torch.zeros(4), torch.zeros(4), torch.zeros(4)
    driver.kinds = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    first = bound(driver, compiled(dict(x="*fp32", y="*fp32", n="i32", one="constexpr", m="i32")), (132,), (x, y, 5, 1, 6), (0,))
    first(9, (x,))
    other = first.on((7, 8), {1: z, 3: 1, 4: 60})
    for launch in (other, first, other):
        launch(9, (y,))
    assert [(grid, stream, values[:4]) for grid, _, _, stream, _, _, values in driver.launches] == [
        ((132, 1, 1), 9, [x.data_ptr(), y.data_ptr(), 5, 6]), ((7, 8, 1), 9, [y.data_ptr(), z.data_ptr(), 5, 60]),
        ((132, 1, 1), 9, [y.data_ptr(), y.data_ptr(), 5, 6]), ((7, 8, 1), 9, [y.data_ptr(), z.data_ptr(), 5, 60])]


@pytest.mark.parametrize("changed", [(), (0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_descriptors_of_a_launch_on_another_grid_are_as_of_one_that_was_made_for_them(changed):
    """Of those that stay, which the second one is, the map stays in memory too."""
    driver, kernel = Driver(), of_descriptors("abc")
    driver.kinds = [None, *[ctypes.c_int64] * 4] * 3 + [ctypes.c_uint64] * 2
    others = [SimpleNamespace(**{**vars(VIEW), "base": torch.zeros(8, 24), "shape": [m, 20]}) for m in (5, 6, 7)]
    first = bound(driver, kernel, (1,), (VIEW, VIEW, VIEW), (0, 2))
    wanted = [others[i] if i in changed else VIEW for i in range(3)]
    launch, direct = first.on((3,), {i: others[i] for i in changed}), bound(driver, kernel, (3,), tuple(wanted), (0, 2))
    del first
    gc.collect()
    for made in (launch, direct):
        made(1, (others[0], None, others[2].base))
    (*how, values), (*directly, others) = driver.launches
    assert how == directly and values[6:8] == [wanted[1].shape[0], 20]
    assert [driver.at.get(value, value) for value in values] == [driver.at.get(value, value) for value in others]


VIEW = SimpleNamespace(base=torch.zeros(8, 24), shape=[8, 20], strides=[24, 1], padding="zero")
META = dict(swizzle=3, elem_size=2, elem_type=10, block_size=[128, 64])


def of_descriptors(names="ab"):
    return compiled({name: "tensordesc<bf16[128, 64],layout>" for name in names}, tensordesc_meta=[META] * len(names))


def test_a_tensor_map_that_does_not_vary_is_kept(monkeypatch):
    """The driver reads it from host memory at every launch, also when other addresses have taken its place among those known."""
    gone = []

    class Watched(module._Map):
        def __del__(self):
            gone.append(int(self))
    monkeypatch.setattr(module, "_Map", Watched)
    monkeypatch.setattr(module, "_MAX_MAPS", 1)
    common = of_descriptors()
    launch = bound(Driver(), common, (1,), (VIEW, VIEW), (0,))
    kept = launch._block[common.common[(0,)].descriptors[1][0]]
    for _ in range(2):
        other = SimpleNamespace(**{**vars(VIEW), "base": torch.zeros(8, 24)})
        bound(Driver(), common, (1,), (VIEW, other), (0,))
    gc.collect()
    assert len(gone) == 2 and kept not in gone


def test_launches_for_many_numbers_of_rows_share_the_maps_of_one_weight_and_of_buffers():
    driver, kernel = Driver(), of_descriptors("abc")
    rows = [SimpleNamespace(**{**vars(VIEW), "base": torch.zeros(8, 24), "shape": [m, 20]}) for m in (8, 7, 6)]
    weight, buffer = (SimpleNamespace(**{**vars(VIEW), "base": torch.zeros(8, 24), "shape": [m, 20]}) for m in (5, 4))
    launches = [bound(driver, kernel, (1,), (rows[0], weight, buffer), (0, 1))]
    launches += [launches[-1].on((1,), {0: x}) for x in rows[1:]]
    driver.kinds = [None, *[ctypes.c_int64] * 4] * 3 + [ctypes.c_uint64] * 2
    for launch, x in [*zip(launches, rows)] * 2:
        launch(1, (x, weight))
    assert [dims for _, _, _, dims, *_ in driver.maps] == [[20, 4], [20, 8], [20, 5], [20, 7], [20, 6]]
    assert [values[1:5] for *_, values in driver.launches] == [[m, 20, 24, 1] for m in (8, 7, 6)] * 2


def test_tensors_at_one_address_that_differ_in_strides_or_padding_have_maps_of_their_own():
    """Memory that was freed comes back for another tensor."""
    driver, common = Driver(), of_descriptors("a")
    alike = [SimpleNamespace(**{**vars(VIEW), **more}) for more in ({}, {"strides": [32, 1]}, {"padding": "nan"})]
    launches = [bound(driver, common, (1,), (x,), (0,)) for x in alike]
    driver.kinds = [None, *[ctypes.c_int64] * 4, *[ctypes.c_uint64] * 2]
    for launch in launches + launches:
        launch(1, (VIEW.base,))
    assert [strides for *_, strides, _, _ in driver.maps] == [[48], [64], [48]] and driver.fills == [0, 0, 1]
    used = [values[0] for *_, values in driver.launches]
    assert len(set(used)) == 3 and used[:3] == used[3:]


@pytest.mark.parametrize("ptx, cooperative, attribute", [("griddepcontrol.wait;", False, 6), ("griddepcontrol.wait;", True, 2),
                                                        ("", True, 2), ("griddepcontrol.launch_dependents;", False, None)])
def test_a_kernel_that_waits_for_the_one_ahead_may_be_launched_early(ptx, cooperative, attribute):
    """By the attributes' numbers in the driver's header; where it is cooperative, it is that and no more."""
    driver = Driver()
    driver.kinds = [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(n="i32"), ptx, launch_cooperative_grid=cooperative), (1,), (3,), (0,))
    config = _Config.from_address(launch._where[0])
    assert [config.attributes[i].id for i in range(config.num_attributes)] == ([attribute] if attribute else [])
    assert all(config.attributes[i].value[0] == 1 for i in range(config.num_attributes))


def test_a_refused_launch_raises():
    driver = Driver()
    driver.kinds, driver.status = [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64], 700
    launch = bound(driver, compiled(dict(n="i32"), launch_cooperative_grid=False), (1,), (3,), (0,))
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx: 700"):
        launch(0, (3,))
    assert driver.launches[0][4] == 0


def test_launches_go_to_the_stream_of_their_call():
    driver = Driver()
    driver.kinds = [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    launch = bound(driver, compiled(dict(n="i32")), (1,), (3,), (0,))
    for stream in (0, 5, 5, 0, 7):
        launch(stream, (3,))
    assert [stream for _, _, _, stream, *_ in driver.launches] == [None, 5, 5, None, 7]


def test_maps_of_addresses_that_change_all_the_time_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(module, "_MAX_MAPS", 2)
    driver = Driver()
    maps = module.TensorMaps(module._Boxes(driver, "", META), VIEW)
    for address in (1 << 20, 2 << 20, 3 << 20, 3 << 20, 1 << 20):
        assert maps[address] % 64 == 0 and len(maps) <= 2
    assert [address for _, _, address, *_ in driver.maps] == [1 << 20, 2 << 20, 3 << 20, 1 << 20]


class Described:
    """Stands in for a tensor descriptor."""

    def __init__(self, base):
        self.base, self.shape = base, list(base.shape)


@pytest.fixture
def prepared(monkeypatch):
    """Makes a PreparedLaunch of (descriptor, tensor), one constant behind them; and where its launches are noted."""
    noted = []

    def make(bound):
        kernel = SimpleNamespace(run=lambda *args: noted.append(("triton", *args)), function=77, packed_metadata="packed",
                                 launch_metadata=lambda grid, stream, *args: ("metadata", grid, stream, *args))
        whole = gpu.Arguments((Described(torch.zeros(2, 3)), torch.zeros(4), 9), (0, 1))
        variant = SimpleNamespace(compiled=kernel)
        return gpu.PreparedLaunch(variant, 6, (5,), whole, (lambda *args: noted.append(("bound", *args))) if bound else None)
    monkeypatch.setattr(gpu, "_raw_stream", lambda device: 100 + device)
    return make, noted


@pytest.mark.parametrize("listens", ["nobody", "enter", "leave"])
@pytest.mark.parametrize("bound", [True, False])
def test_a_prepared_launch_is_seen_by_who_listens_to_launches(bound, listens, prepared, monkeypatch):
    """And it is the vendor's own, which takes tensors as they are, where nobody does."""
    make, noted = prepared
    hooks = {name: knobs.HookChain() for name in ("enter", "leave")}
    for name, chain in hooks.items():
        monkeypatch.setattr(knobs.runtime, f"launch_{dict(enter='enter', leave='exit')[name]}_hook", chain)
    if listens != "nobody":
        hooks[listens].add(print)
    a, b = torch.zeros(2, 3), torch.zeros(4)
    make(bound)(a, b)
    (who, *args), = noted
    if bound and listens == "nobody":
        assert (who, args[0]) == ("bound", 106) and args[1][0] is a and args[1][1] is b
        return
    *grid, stream, function, packed, metadata, enter, leave, described, tensor, constant = args
    assert (who, grid, stream, function, packed, constant) == ("triton", [5, 1, 1], 106, 77, "packed", 9)
    assert type(described) is Described and described.base is a and described.shape == [2, 3] and tensor is b
    if listens == "nobody":
        assert metadata is enter is leave is None
    else:
        assert metadata == ("metadata", (5, 1, 1), 106, described, b, 9)
        assert (enter, leave) == (hooks["enter"], hooks["leave"])


def test_a_prepared_launch_is_on_another_grid_where_triton_would_take_the_same_binary(prepared):
    """It looks at integers that Triton specialises for; the launchers of Triton and of the vendor get the new arguments."""
    make, noted = prepared
    launch = make(False)
    specialised, plain = (SimpleNamespace(do_not_specialize=plain) for plain in (False, True))
    launch._variant.integers = gpu.specialised((specialised, specialised, specialised, plain), (Described(torch.zeros(1)),
                                                                                                 torch.zeros(4), 9, 9))
    assert list(launch._variant.integers) == [2]
    a, b, other = torch.zeros(2, 3), torch.zeros(4), Described(torch.zeros(7, 3))
    assert launch.on((3,), {2: 16}) is launch.on((3,), {2: 1}) is launch.on((3,), {0: other, 2: 2**31}) is None
    launch.on((3,), {0: other, 2: 10})(a, b)
    launch(a, b)
    (who, *grid, _, _, _, _, _, _, described, tensor, number), first = noted
    assert (who, grid, number) == ("triton", [3, 1, 1], 10) and tensor is b
    assert described.base is a and described.shape == [7, 3] and other.base is not a
    assert first[1:4] == (5, 1, 1) and first[-1] == 9 and first[-3].shape == [2, 3]
    launch._launcher = SimpleNamespace(on=lambda grid, changed: lambda stream, args: noted.append((grid, changed, args)))
    launch.on((4,), {2: 11})(a, b)
    assert noted[-1][:2] == ((4,), {2: 11}) and noted[-1][2][0] is a


def test_a_prepared_launch_keeps_no_tensor_alive(prepared):
    descriptor = Described(torch.zeros(2, 3))
    tensor, stays = torch.zeros(4), torch.zeros(2)
    gone, kept = [weakref.ref(t) for t in (descriptor.base, tensor)], weakref.ref(stays)
    whole = gpu.Arguments((7, descriptor, tensor, stays), (1, 2))
    del descriptor, tensor, stays
    gc.collect()
    assert [t() for t in gone] == [None, None] and kept() is not None
    other = torch.zeros(2, 3)
    changed = Described(torch.zeros(5, 3))
    gone, on = weakref.ref(changed.base), whole.on({0: 8, 1: changed})
    del changed
    gc.collect()
    eight, described, _, last = on((None, other, None))
    assert gone() is None and (eight, described.base, described.shape) == (8, other, [5, 3]) and last is kept()
    seven, described, missing, last = whole((None, other, None))
    assert (seven, described.base, described.shape, missing) == (7, other, [2, 3], None) and last is kept()
