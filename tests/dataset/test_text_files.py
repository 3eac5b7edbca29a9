"""What a file's name and a file's bytes may do: be read, or raise DataError."""

import bz2
import gzip
import io
import lzma
import os
import zipfile

import pytest

from jfluid import errors
from jfluid.dataset.text_files import FileSource, ShellCommands

TEXT = b"1 5\n" * 1000


def zipped(data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", data)
    return out.getvalue()


PACKED = {
    ".gz": gzip.compress(TEXT),
    ".bz2": bz2.compress(TEXT),
    ".xz": lzma.compress(TEXT),
    ".zip": zipped(TEXT),
}


def read(path, **source):
    return b"".join(bytes(block) for block in FileSource(**source).blocks(str(path), ShellCommands()))


@pytest.mark.parametrize("command", ["echo 1 5 #", "printf '1 5\\n%.0s'", "cat"])
@pytest.mark.parametrize(
    "name",
    [
        "part-0$(touch pwned)",
        'part-0"; touch pwned; "',
        "part-0'; touch pwned; '",
        "`touch pwned`",
        "a\ntouch pwned\n",
        "a;touch pwned",
        "a&touch pwned",
        "a|touch pwned",
        "$HOME",
        "*",
        "\\",
    ],
)
def test_a_files_name_is_one_word_of_the_download_command(name, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command == "cat" and "/" not in name:
        (tmp_path / name).write_bytes(TEXT)
    found = read(name, download_cmd=command)
    assert found == (TEXT if command == "cat" else b"1 5\n") and not (tmp_path / "pwned").exists()
    assert sorted(os.listdir(tmp_path)) == ([name] if command == "cat" else [])


@pytest.mark.parametrize("name", ["-rf", "--help", "a\0b"])
def test_names_that_are_no_files_of_a_command_are_refused(name):
    with pytest.raises(errors.DataError, match="no name of a file for the command 'cat'"):
        read(name, download_cmd="cat")


def test_the_command_still_gets_options_of_its_own(tmp_path):
    (tmp_path / "a b").write_bytes(TEXT)
    assert read(tmp_path / "a b", download_cmd="head -n 2") == b"1 5\n" * 2


@pytest.mark.parametrize("suffix", PACKED)
def test_damaged_compression_is_a_named_error(suffix, tmp_path):
    path, data = tmp_path / f"a{suffix}", PACKED[suffix]
    path.write_bytes(data)
    assert read(path) == TEXT
    outcomes = set()
    for i in range(0, len(data), max(len(data) // 60, 1)):
        for changed in (
            data[:i],
            data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :],
            data[:i] + data[i + 1 :],
            data + data[i:],
        ):
            path.write_bytes(changed)
            try:
                outcomes.add(type(read(path)))
            except errors.DataError as error:
                assert str(path) in str(error)
                outcomes.add(errors.DataError)
    assert errors.DataError in outcomes
