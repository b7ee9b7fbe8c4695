"""A GGUF file given to ``stratos up`` and other commands: its folder is written once, and again where it changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.cli.local.options import UpOptions
from stratos.cli.local.preflight import check_options, with_model_folder
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.text.gguf.kept_folders import folder_for
from tests.support.reference.gguf_files import sentence_piece_vocabulary, tiny_llama, write


def test_up_serves_the_folder_of_a_file_under_the_name_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny-Q8_0.gguf", tiny_llama())
    given = UpOptions(model_path=path, data_dir=tmp_path / "data")
    options = with_model_folder(given)
    check_options(options)
    assert options.model_name == "tiny-Q8_0"
    assert options.model_path.is_relative_to(tmp_path / "data" / "gguf")
    assert with_model_folder(given) == options
    first = read_model_files(options.model_path).digest
    write(path, tiny_llama(sentence_piece_vocabulary()))
    changed = with_model_folder(given)
    assert changed.model_path != options.model_path
    assert changed.model_name == "tiny-Q8_0"
    assert read_model_files(changed.model_path).digest != first


def test_a_folder_that_holds_a_file_alone_is_told_to_give_the_file(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", tiny_llama())
    with pytest.raises(BadRequest, match=r"give the file itself: --model .*tiny\.gguf"):
        check_options(UpOptions(model_path=tmp_path, data_dir=tmp_path / "data"))


def test_a_broken_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny_llama()[:-100])
    with pytest.raises(InvalidCheckpoint, match=r"tiny\.gguf: tensor .* the file is truncated"):
        with_model_folder(UpOptions(model_path=path, data_dir=tmp_path / "data"))
    missing = UpOptions(model_path=tmp_path / "none.gguf", data_dir=tmp_path / "data")
    with pytest.raises(InvalidCheckpoint, match="there is no such file"):
        with_model_folder(missing)


def test_other_commands_have_a_folder_as_long_as_they_run(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny_llama())
    with folder_for(path) as folder:
        assert folder.name == "tiny"
        assert read_model_files(folder).vocab_size == 264
    assert not folder.exists()
    with folder_for(tmp_path) as folder:
        assert folder == tmp_path
