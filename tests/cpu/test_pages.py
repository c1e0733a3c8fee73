"""Copies of weights in huge pages: equal, apart from each other, and writable in every mode."""

import mmap

import pytest
import torch

from treespec.cpu.pages import CHUNK, LINE, HugePages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_copies_share_chunks_but_no_bytes(dtype):
    pages = HugePages()
    weights = [torch.full((3, count, 5), count).to(dtype) for count in (0, 1, 7, 64)]
    copies = [pages.copy(weight) for weight in weights]
    assert all(copy.equal(weight) for copy, weight in zip(copies, weights, strict=True))
    assert all(copy.dtype == dtype and copy.data_ptr() % LINE == 0 for copy in copies)
    assert copies[1].untyped_storage().data_ptr() == copies[3].untyped_storage().data_ptr()
    large = torch.ones(CHUNK + 9).to(dtype)
    assert pages.copy(large).equal(large), "it has a chunk of its own"


def test_a_chunk_of_inference_mode_is_written_without_it():
    pages = HugePages()
    with torch.inference_mode():
        first = pages.copy(torch.ones(3))
    assert pages.copy(torch.zeros(3)).equal(torch.zeros(3))
    assert first.equal(torch.ones(3))


def test_a_system_without_huge_pages_gives_usual_ones(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError("no such advice")

    monkeypatch.setattr("treespec.cpu.pages.mmap.mmap", Refusing)
    assert HugePages().copy(torch.ones(3)).equal(torch.ones(3))


def test_other_systems_have_usual_pages(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    pages = HugePages()
    copies = [pages.copy(torch.full((3,), float(number))) for number in range(3)]
    assert all(copy.eq(number).all() and copy.data_ptr() % LINE == 0 for number, copy in enumerate(copies))
