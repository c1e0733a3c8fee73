"""Several tensors travel as one copy and arrive as they were."""

import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator

from treespec.tree.transfer import KERNEL_BYTES, download, upload

TENSORS = [
    torch.tensor([[True, False, True]]), torch.arange(5), torch.empty(0, 2), torch.tensor(0.5, dtype=torch.float64),
    torch.arange(6.0).view(2, 3).T,
]  # fmt: skip


def test_one_copy_each_way():
    with PretendAccelerator() as device:
        there = upload(DEVICE, *TENSORS)
        assert all(tensor.device == DEVICE for tensor in there)
        back = download(*there, TENSORS[1])
        assert (sum(device.pinned.values()), sum(device.reads.values()), sum(device.uploads.values())) == (1, 1, 0)
    for tensor, copy in zip([*TENSORS, TENSORS[1]], back, strict=True):
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy, tensor)


def test_what_is_uploaded_begins_where_kernels_read_vectors():
    """CUDA's attention ended with "misaligned address" on a second mask behind one of odd length."""
    with PretendAccelerator():
        there = upload(DEVICE, *TENSORS, torch.zeros(3, 1, 1, 5), torch.zeros(3, 1, 1, 16))
        begins = [tensor.storage_offset() * tensor.element_size() for tensor in there]
    assert all(begin % KERNEL_BYTES == 0 for begin in begins)


def test_a_cpu_copies_nothing():
    assert all(a is b for a, b in zip(upload(torch.device("cpu"), *TENSORS), TENSORS, strict=True))
    assert all(a is b for a, b in zip(download(*TENSORS), TENSORS, strict=True))
