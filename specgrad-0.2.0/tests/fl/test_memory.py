"""Freed memory is used again instead of being fetched anew from the system."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
import resource
import torch
from specgrad_fl.machine import keep_freed_memory

PR_SET_THP_DISABLE = 41  # a huge page would be one fault for 512 pages
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

def faults_of_steps():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        activations = [torch.ones(2**21) for _ in range(8)]
        del activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of_steps()
returned = faults_of_steps()
assert keep_freed_memory()
faults_of_steps()
print(returned, faults_of_steps(), 5 * 8 * 4 * 2**21 // resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is part of glibc")
def test_freed_memory_is_kept():
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # at first, all is returned
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    returned, kept, pages = map(int, output.split())
    assert returned >= pages
    assert kept < pages / 10
