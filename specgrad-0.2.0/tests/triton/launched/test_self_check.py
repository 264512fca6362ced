"""Kernels that check themselves at their first call, and faults planted on the way there."""

import json
import warnings

import pytest
import torch
from representatives import only
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import CompiledKernel
from triton_tools.compare import random_grads, reference

from specgrad_kernels import __main__ as command
from specgrad_kernels.backends import triton
from specgrad_kernels.backends.triton import binding, failures, launch, self_check, targets
from specgrad_kernels.spec import FilterSpec

SPEC = FilterSpec("centralize")
CPU = torch.device("cpu")


@pytest.fixture
def checking(device, monkeypatch, tmp_path):
    """The self-check is on, waits for the stand-in device, and nothing was compiled before."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(self_check, "enabled", lambda device: True)
    monkeypatch.setattr(launch, "wait_for", lambda _: device.work())
    for kernel in targets.KERNELS.values():
        kernel.device_caches.clear()
    failures.forget()
    yield device
    failures.forget()
    for kernel in targets.KERNELS.values():
        kernel.device_caches.clear()


def _grads():
    return random_grads([(4, 8, 3, 3), (3, 5)])


def _falls_back_once(match):
    """Under ``auto`` PyTorch filters, with one warning; by name it raises with nothing changed."""
    backend = triton._OrTorch()
    with pytest.warns(RuntimeWarning, match=match):
        _filters_exactly(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _filters_exactly(backend)
    grads = _grads()
    before = [grad.clone() for grad in grads]
    with pytest.raises(failures.KernelFailure, match=match):
        triton.run(grads, SPEC)
    assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


def _filters_exactly(backend):
    grads = _grads()
    exact = reference(grads, SPEC)
    backend.run(grads, SPEC)
    for grad, truth in zip(grads, exact, strict=True):
        assert (grad.double() - truth).norm() < 1e-6 * truth.norm()


def test_kernels_pass_and_are_remembered(checking, monkeypatch):
    grads = _grads()
    exact = reference(grads, SPEC)
    launch.run(grads, SPEC)
    names = checking.work()
    assert names.count("subtract_means") == 1
    for grad, truth in zip(grads, exact, strict=True):
        assert (grad.double() - truth).norm() < 1e-6 * truth.norm()
    (note,) = self_check.passed()
    assert note["kernel"] == "subtract_means"
    assert note["triton"]
    assert note["specgrad"]
    launch.calls.clear()
    monkeypatch.setattr(self_check, "probes", lambda *_: pytest.fail("checked once more"))
    launch.run(_grads(), SPEC)


@pytest.mark.parametrize("damage", only(["{}"], ["", "{}", "\x00"]))
def test_a_damaged_note_is_no_proof(checking, monkeypatch, damage):
    grads = _grads()
    launch.run(grads, SPEC)
    checking.work()
    (path,) = self_check.folder().glob("*.json")
    path.write_text(damage)
    launch.calls.clear()
    checked = []
    probes = self_check.probes
    monkeypatch.setattr(self_check, "probes", lambda *given: (checked.append(1), probes(*given))[1])
    launch.run(_grads(), SPEC)
    assert checked
    assert json.loads(path.read_text())["kernel"] == "subtract_means"


def _miscompiled(old, new):
    """A compiler that writes one instruction of PTX for another."""
    make_ptx = CUDABackend.make_ptx

    def changed(*given, **named):
        text = make_ptx(*given, **named)
        assert old in text
        return text.replace(old, new)

    return changed


def test_a_miscompiled_kernel_is_found(checking, monkeypatch):
    monkeypatch.setattr(CUDABackend, "make_ptx", _miscompiled("sub.f32", "add.f32"))
    _falls_back_once("a probe is .* from the exact result")


def test_results_that_change_from_run_to_run_are_found(checking, monkeypatch):
    run = launch.run_schedule

    def unsteady(plan, lists, room):
        run(plan, lists, room)
        lists[1][0].mul_(1 + 1e-6)

    monkeypatch.setattr(launch, "run_schedule", unsteady)
    _falls_back_once("two runs of one probe differ")


def _fail(*_, **__):
    raise RuntimeError("planted fault")


FAULTS = {
    "compiler": (CUDABackend, "make_ttgir", "compiling a kernel failed.*planted fault"),
    "assembler": (CUDABackend, "make_cubin", "compiling a kernel failed.*planted fault"),
    "load": (CompiledKernel, "_init_handles", "failed.*planted fault"),
    "launch": (launch.DtypeGroup, "launches", "failed.*planted fault"),
}


@pytest.mark.parametrize("place", FAULTS)
def test_an_error_on_the_way_is_a_warning_under_auto(checking, monkeypatch, place):
    owner, name, match = FAULTS[place]
    monkeypatch.setattr(owner, name, _fail)
    _falls_back_once(match)


def test_a_launch_that_the_driver_refuses(checking, monkeypatch):
    monkeypatch.setattr(self_check, "enabled", lambda device: False)

    def refuse(*_):
        raise AssertionError("planted fault")

    monkeypatch.setattr(checking, "_read", refuse)
    _falls_back_once("launching a kernel failed")
    checking._errors.clear()


@pytest.mark.parametrize("suffix", only(["ptx"], ["json", "ptx"]))
def test_a_corrupt_cache_is_a_warning_under_auto(checking, tmp_path, suffix):
    grads = _grads()
    launch.run(grads, SPEC)
    checking.work()
    launch.calls.clear()
    for kernel in targets.KERNELS.values():
        kernel.device_caches.clear()
    for path in tmp_path.glob(f"*/subtract_means.{suffix}"):
        path.write_text(path.read_text()[:40])
    for path in self_check.folder().glob("*.json"):
        path.unlink()
    _falls_back_once("failed")
    checking._errors.clear()


def test_a_lack_of_memory_is_no_fault_of_the_kernels(checking, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(launch, "run_schedule", full)
    with pytest.raises(torch.OutOfMemoryError):
        launch.run(_grads(), SPEC)
    assert failures.reason(CPU) is None


def test_kernels_compiled_ahead_serve_the_first_call(checking, monkeypatch, capsys):
    arguments = ["compile", "--target", "sm_80", "--model", "resnet20", "--method", "centralize"]
    assert command.main(arguments) == 0
    said = capsys.readouterr()
    assert "1 of 1: subtract_means" in said.err
    assert "1 kernels are in the cache" in said.out
    hits = []
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda **found: hits.append(found["cache_hit"])
    )
    binding.store_addresses.device_caches.clear()
    grads = random_grads([(4, 8)] * 19)  # as many as the model's layers
    launch.run(grads, SPEC)
    checking.work()
    assert hits
    assert all(hits)


def test_the_environment_turns_it_off(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.delenv("SPECGRAD_SELF_CHECK", raising=False)
    assert self_check.enabled(gpu)
    assert not self_check.enabled(CPU)
    monkeypatch.setenv("SPECGRAD_SELF_CHECK", "0")
    assert not self_check.enabled(gpu)
