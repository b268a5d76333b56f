# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a test leaves behind is found, so that no other test fails by it."""
import os
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from process_state import changes, process_state
from torch._inductor import config


def set_aside(stack, *names):
    """Puts attributes of the settings back as they are, by torch's own means."""
    entries = [config._config[name] for name in names] + [torch.compiler.config._config["force_disable_caches"]]
    for entry in entries:
        stack.callback(setattr, entry, "hide", False)
        stack.callback(entry.user_override.set, entry.user_override.get())


def by_monkeypatch(stack):
    """To pytest a setting is an attribute that the module does not have itself: it is deleted, and so hidden for good."""
    set_aside(stack, "force_disable_caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "force_disable_caches", True)


def by_assignment(stack):
    set_aside(stack, "max_autotune")
    config.max_autotune = True


def an_environment(stack):
    stack.callback(partial(os.environ.pop, "LEFT_BY_A_TEST"))
    os.environ["LEFT_BY_A_TEST"] = "1"


def a_grad_mode(stack):
    stack.callback(torch.set_grad_enabled, True)
    torch.set_grad_enabled(False)


def a_dtype(stack):
    stack.callback(torch.set_default_dtype, torch.float32)
    torch.set_default_dtype(torch.float64)


def a_device(stack):
    stack.callback(torch.set_default_device, None)
    torch.set_default_device("meta")


@pytest.mark.parametrize("leave, names", [
    (by_monkeypatch, ["torch._inductor.config.force_disable_caches", "torch.compiler.config.force_disable_caches"]),
    (by_assignment, ["torch._inductor.config.max_autotune"]), (an_environment, ["$LEFT_BY_A_TEST"]),
    (a_grad_mode, ["grad mode"]), (a_dtype, ["default dtype"]), (a_device, ["default device", "function modes"])])
def test_what_is_left_is_found(leave, names):
    before = process_state()
    with ExitStack() as stack:
        leave(stack)
        left = changes(before, process_state())
    assert [line.split(":")[0] for line in left] == names
    assert not changes(before, process_state())


def test_what_is_put_back_is_no_change():
    before = process_state()
    with config.patch(force_disable_caches=True, max_autotune=True), torch.no_grad(), torch.device("meta"):
        assert len(changes(before, process_state())) == 5
    assert not changes(before, process_state())
