"""Files of an HDFS cluster: by the `hadoop` command where there is one, else by fsspec."""

import os
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jfluid import errors
from jfluid.fleet.filesystem import RemoteFS

__all__ = ["HDFSClient", "multi_download", "multi_upload"]

_ADDRESS = "fs.default.name", "fs.defaultFS"


class HDFSClient:
    """Copies, lists and removes files of an HDFS cluster.

    Commands are `HADOOP_HOME/bin/hadoop fs ...`; where there is no such command, fsspec opens the
    address that the configuration gives as `fs.default.name` (or `fs.defaultFS`), which may be one
    of any file system that it knows.

    Args:
        hadoop_home: the folder of a Hadoop installation.
        configs: Hadoop's settings, each given to the command as `-Dname=value`.

    Methods return True or False (or an empty list), as in Fluid, where a path is not there or the
    command fails; what it said is in `last_error`. Raises UnsupportedError when there is neither
    the command nor an address that fsspec can open.
    """

    def __init__(self, hadoop_home: str, configs: Mapping[str, Any]):
        command = os.path.join(hadoop_home, "bin", "hadoop")
        self.last_error, self.retries = "", 5
        self._fs: RemoteFS | None = None
        self.pre_commands = [command, "fs", *(f"-D{k}={v}" for k, v in configs.items())]
        if not os.access(command, os.X_OK):
            address = next((str(configs[k]) for k in _ADDRESS if k in configs), None)
            if address is None:
                raise errors.UnsupportedError(
                    f"HDFSClient: there is no command {command}, and configs give no address "
                    f"({_ADDRESS[0]}) that fsspec could open"
                )
            user = str(configs.get("hadoop.job.ugi", "")).split(",")[0]
            named = {"user": user} if user and address.startswith("hdfs:") else {}
            self._fs = RemoteFS(address, **named)

    # ---- the command ----

    def _run(self, *arguments: str, retries: int = 0) -> str | None:
        """Return the output of a command; None if it fails, after `retries` more attempts."""
        for _ in range(retries + 1):
            done = subprocess.run([*self.pre_commands, *arguments], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout
        self.last_error = done.stderr
        return None

    def _listed(self, *arguments: str) -> list[tuple[bool, str, str]]:
        """(whether it is a folder, its time, its path) of each line of a listing."""
        lines = [line.split(None, 7) for line in (self._run(*arguments) or "").splitlines()]
        return [(f[0][0] == "d", f"{f[5]} {f[6]}", f[7]) for f in lines if len(f) == 8]

    # ---- questions ----

    def is_exist(self, hdfs_path: str) -> bool:
        """Return True if the file or folder exists."""
        if self._fs is not None:
            return self._fs.stat(hdfs_path)
        return self._run("-test", "-e", hdfs_path) is not None

    def is_dir(self, hdfs_path: str) -> bool:
        """Return True if the path is a folder."""
        if self._fs is not None:
            return self._fs.is_dir(hdfs_path)
        return self._run("-test", "-d", hdfs_path) is not None

    def is_file(self, hdfs_path: str) -> bool:
        """Return True if the path is a file."""
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def ls(self, hdfs_path: str) -> list[str]:
        """Return the paths in a folder; none without the folder."""
        if not self.is_exist(hdfs_path):
            return []
        if self._fs is None:
            return [path for _, _, path in self._listed("-ls", hdfs_path)]
        if not self.is_dir(hdfs_path):
            return [hdfs_path]
        folders, files = self._fs.ls_dir(hdfs_path)
        return [os.path.join(hdfs_path, name) for name in sorted([*folders, *files])]

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """Return the paths of all files below a folder; with `only_file=False` also of folders.

        With `sort` the oldest come first (by fsspec in the order of their names).
        """
        if self._fs is None:
            found = self._listed("-ls", "-R", hdfs_path) if self.is_exist(hdfs_path) else []
            found = [entry for entry in found if not (only_file and entry[0])]
            return [path for *_, path in (sorted(found, key=lambda e: e[1]) if sort else found)]
        paths = []
        for path in self.ls(hdfs_path):
            folder = self.is_dir(path)
            paths += [path] * (not folder or not only_file)
            paths += HDFSClient.lsr(self, path, only_file, sort) if folder else []
        return paths

    def cat(self, hdfs_path: str) -> str:
        """Return the text of a file; "" without the file."""
        if not self.is_file(hdfs_path):
            return ""
        if self._fs is not None:
            return self._fs.read_text(hdfs_path).strip()
        return (self._run("-cat", hdfs_path) or "").strip()

    # ---- changes ----

    def delete(self, hdfs_path: str) -> bool:
        """Remove a file, or a folder with all that is in it. True also where there is none."""
        if self._fs is not None:
            self._fs.delete(hdfs_path)
            return True
        return not self.is_exist(hdfs_path) or self._run("-rm", "-r", hdfs_path) is not None

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> bool:
        """Move a file or folder; onto one that exists only with `overwrite`."""
        if not self.is_exist(hdfs_src_path) or (self.is_exist(hdfs_dst_path) and not overwrite):
            return False
        if overwrite:
            self.delete(hdfs_dst_path)
        if self._fs is not None:
            self._fs.mv(hdfs_src_path, hdfs_dst_path)
            return True
        return self._run("-mv", hdfs_src_path, hdfs_dst_path) is not None

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        """Make a folder of this host, unless it exists."""
        os.makedirs(local_path, exist_ok=True)

    def makedirs(self, hdfs_path: str) -> bool:
        """Make a folder and its parents, unless the folder exists."""
        if self._fs is not None:
            self._fs.mkdir(hdfs_path)
            return True
        return self._run("-mkdir", "-p", hdfs_path) is not None

    def upload(self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int | None = None) -> bool:
        """Copy a file of this host into a folder, which is made if need be; onto one that exists only with `overwrite`.

        A command that fails is tried `retry_times` (5) more times.
        """
        if not os.path.isfile(local_path):
            raise FileNotFoundError(f"upload: {local_path} is no file; multi_upload takes folders")
        target = os.path.join(hdfs_path, os.path.basename(local_path))
        if self.is_exist(target) and not (overwrite and self.delete(target)):
            return False
        self.makedirs(hdfs_path)
        if self._fs is not None:
            self._fs.upload(local_path, target)
            return True
        return (
            self._run("-put", local_path, target, retries=self.retries if retry_times is None else retry_times)
            is not None
        )

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        overwrite: bool = False,
        unzip: bool = False,
        retry_times: int | None = None,
    ) -> bool:
        """Copy a file into a folder of this host; onto one that exists only with `overwrite`.

        `unzip` unpacks an archive there. Raises DataError for a damaged archive, and for an archive with names or links
        that lead out of the folder; then nothing outside the folder is written.
        """
        if not self.is_file(hdfs_path):
            return False
        target = os.path.join(local_path, os.path.basename(hdfs_path))
        if os.path.exists(target) and not overwrite:
            return False
        self.make_local_dirs(local_path)
        # A copy that is cut off is never taken for the file.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=local_path) as folder:
            copy = os.path.join(folder, os.path.basename(hdfs_path))
            tries = 1 + (self.retries if retry_times is None else retry_times)
            if self._fs is not None:
                self._fs.download(hdfs_path, copy)
            elif not any(self._got(hdfs_path, copy) for _ in range(tries)):
                return False
            os.replace(copy, target)
        if unzip:
            _unpack(target, local_path)
        return True

    def _got(self, hdfs_path: str, copy: str) -> bool:
        """Return True if the command has copied a file; remove an existing copy first, since the command keeps it."""
        if os.path.exists(copy):
            os.remove(copy)
        return self._run("-get", hdfs_path, copy) is not None

    @staticmethod
    def split_files(files: Sequence[str], trainer_id: int, trainers: int) -> list[str]:
        """Return the files of one trainer: every `trainers`-th file."""
        return list(files)[trainer_id::trainers]

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """Copy a folder of this host with all files in it."""
        return all(multi_upload(self, dest_dir, local_dir, overwrite=overwrite))


def _unpack(archive: str, folder: str) -> None:
    """Unpack a zip or tar archive into a folder. Raises DataError, before the first file for names that lead out."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as found:
                outside = [name for name in found.namelist() if not _stays_inside(name)]
                if outside:
                    raise errors.DataError(f"{archive}: not unpacked: {outside[0]!r} leads out of the folder")
                found.extractall(folder)
            return
        with tarfile.open(archive) as packed:
            for member in packed:
                tarfile.data_filter(member, folder)
            packed.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise errors.DataError(f"{archive}: not unpacked: {error}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise errors.DataError(f"{archive}: no archive, or a damaged one ({error})") from None


def _stays_inside(name: str) -> bool:
    return not name.startswith(("/", "\\")) and ".." not in name.replace("\\", "/").split("/")


def _check_client(client: Any) -> None:
    if not isinstance(client, HDFSClient):
        raise TypeError(f"client: expected an HDFSClient, found {type(client).__name__}")


def multi_download(
    client: HDFSClient, hdfs_path: str, local_path: str, trainer_id: int, trainers: int, multi_processes: int = 5
) -> list[str]:
    """Copy this trainer's share of the files below a folder to this host, several at a time.

    Args:
        trainer_id, trainers: number of this trainer, and of all; each takes every `trainers`-th file.
        multi_processes: how many files at a time.

    Returns the paths of the copies, which lie as in the folder. Raises OSError where one fails.
    """
    _check_client(client)
    client.make_local_dirs(local_path)
    files = client.split_files(client.lsr(hdfs_path), trainer_id, trainers)
    folders = [
        os.path.normpath(os.path.join(local_path, os.path.relpath(os.path.dirname(f), hdfs_path))) for f in files
    ]
    with ThreadPoolExecutor(multi_processes) as pool:
        done = list(pool.map(lambda f, to: client.download(f, to, True), files, folders))
    failed = [f for f, ok in zip(files, done) if not ok]
    if failed:
        raise OSError(f"multi_download: {', '.join(failed)}: {client.last_error or 'not copied'}")
    return [os.path.join(to, os.path.basename(f)) for f, to in zip(files, folders)]


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> list[bool]:
    """Copy all files below a folder of this host, several at a time; each lies as in the folder.

    Args:
        multi_processes: how many files at a time.
        overwrite: replace files that exist.
        sync: without effect, as in Fluid: it returns when all are copied.

    Returns whether each was copied.
    """
    _check_client(client)
    files = [os.path.join(d, f) for d, _, names in os.walk(local_path) for f in sorted(names)]

    def copied(path: str) -> bool:
        inner = os.path.relpath(os.path.dirname(path), local_path)
        return client.upload(os.path.normpath(os.path.join(hdfs_path, inner)), path, overwrite)

    with ThreadPoolExecutor(multi_processes) as pool:
        return list(pool.map(copied, files))
