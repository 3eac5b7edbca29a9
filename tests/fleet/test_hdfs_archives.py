"""Archives that HDFSClient.download unpacks: no file leaves the folder."""

import io
import stat
import tarfile
import zipfile

import pytest

from jfluid import errors
from jfluid.fleet.hdfs import HDFSClient

OUTSIDE = ["../escaped", "/tmp/jfluid-escaped", "a/../../escaped"]


def tar_of(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, link in members:
            about = tarfile.TarInfo(name)
            if link:
                about.type, about.linkname = tarfile.SYMTYPE, link
            about.size = 0 if link else 1
            archive.addfile(about, None if link else io.BytesIO(b"x"))


def zip_of(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, link in members:
            about = zipfile.ZipInfo(name)
            about.external_attr = (stat.S_IFLNK | 0o777 if link else stat.S_IFREG | 0o644) << 16
            archive.writestr(about, link or "x")


FORMS = {"tar.gz": tar_of, "zip": zip_of}


@pytest.fixture
def downloaded(tmp_path):
    """A function that downloads and unpacks an archive, and returns the names in the folder."""
    remote, local = tmp_path / "remote", tmp_path / "job" / "local"
    remote.mkdir()
    local.mkdir(parents=True)
    client = HDFSClient("", {"fs.default.name": "file:///"})

    def found(form, *members):
        FORMS[form](remote / f"a.{form}", *members)
        try:
            assert client.download(str(remote / f"a.{form}"), str(local), unzip=True)
        finally:
            assert not [path for path in tmp_path.rglob("escaped*") if not path.is_relative_to(local)]
        return sorted(path.relative_to(local).as_posix() for path in local.rglob("*"))

    return found


@pytest.mark.parametrize("form", FORMS)
def test_archives_are_unpacked(downloaded, form):
    assert downloaded(form, ("one", ""), ("b/two", "")) == [f"a.{form}", "b", "b/two", "one"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_are_refused_before_the_first_file(downloaded, form, name, tmp_path):
    if form == "tar.gz" and name.startswith("/"):  # the slash is left out
        assert "tmp/jfluid-escaped" in downloaded(form, (name, ""))
        return
    with pytest.raises(errors.DataError, match="not unpacked"):
        downloaded(form, ("one", ""), (name, ""))
    assert not (tmp_path / "job" / "local" / "one").exists()


@pytest.mark.parametrize("link", ["/etc", "../..", "b/../../.."])
def test_links_that_lead_out_are_refused(downloaded, link):
    with pytest.raises(errors.DataError, match="not unpacked"):
        downloaded("tar.gz", ("link", link), ("link/escaped", ""))


def test_a_zip_has_no_links(downloaded, tmp_path):
    assert downloaded("zip", ("link", "/etc")) == ["a.zip", "link"]
    assert not (tmp_path / "job" / "local" / "link").is_symlink()


@pytest.mark.parametrize("form", FORMS)
def test_damage_is_named(tmp_path, form):
    path = tmp_path / "remote" / f"a.{form}"
    path.parent.mkdir()
    FORMS[form](path, ("one", ""))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(errors.DataError, match=rf"a\.{form}: no archive"):
        HDFSClient("", {"fs.default.name": "file:///"}).download(str(path), str(tmp_path / "local"), unzip=True)
