"""File systems for checkpoints: that of this host, or a remote one through fsspec."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from jfluid import errors
from jfluid.progress import Transfer

__all__ = ["BDFS", "FS", "LocalFS", "RemoteFS"]


class FS:
    """Interface of file systems for checkpoints.

    A subclass defines all methods; here they raise NotImplementedError.
    """

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__}.{method}: a subclass of FS has to define it")

    def list_dirs(self, fs_path: str) -> list[str]:
        """Return the names of the folders in a folder; none when it does not exist."""
        raise self._missing("list_dirs")

    def ls_dir(self, fs_path: str) -> Any:
        """Return the names of the files and folders in a folder."""
        raise self._missing("ls_dir")

    def stat(self, fs_path: str) -> bool:
        """Return True if the file or folder exists."""
        raise self._missing("stat")

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copy a file or folder of this host to the file system."""
        raise self._missing("upload")

    def download(self, fs_path: str, local_path: str) -> None:
        """Copy a file or folder from the file system to this host."""
        raise self._missing("download")

    def mkdir(self, fs_path: str) -> None:
        """Make a folder and its parents, unless the folder exists."""
        raise self._missing("mkdir")

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Rename a file or folder."""
        raise self._missing("mv")

    def rmr(self, fs_path: str) -> None:
        """Remove a folder with all that is in it."""
        raise self._missing("rmr")

    def rm(self, fs_path: str) -> None:
        """Remove a file."""
        raise self._missing("rm")

    def delete(self, fs_path: str) -> None:
        """Remove a file or folder, if there is one."""
        raise self._missing("delete")

    def need_upload_download(self) -> bool:
        """Return whether files have to be copied to the file system, rather than written in place."""
        raise self._missing("need_upload_download")


class LocalFS(FS):
    """The file system of this host."""

    def list_dirs(self, fs_path: str) -> list[str]:
        return (
            [f for f in self.ls_dir(fs_path) if os.path.isdir(os.path.join(fs_path, f))] if self.stat(fs_path) else []
        )

    def ls_dir(self, fs_path: str) -> list[str]:
        return os.listdir(fs_path)

    def stat(self, fs_path: str) -> bool:
        return os.path.exists(fs_path)

    def upload(self, local_path: str, fs_path: str) -> None:
        shutil.copytree(local_path, fs_path) if os.path.isdir(local_path) else shutil.copy(local_path, fs_path)

    def download(self, fs_path: str, local_path: str) -> None:
        self.upload(fs_path, local_path)

    def mkdir(self, fs_path: str) -> None:
        os.makedirs(fs_path, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        os.rename(fs_src_path, fs_dst_path)

    def rmr(self, fs_path: str) -> None:
        shutil.rmtree(fs_path)

    def rm(self, fs_path: str) -> None:
        os.remove(fs_path)

    def delete(self, fs_path: str) -> None:
        if os.path.isdir(fs_path):
            self.rmr(fs_path)
        elif self.stat(fs_path):
            self.rm(fs_path)

    def need_upload_download(self) -> bool:
        return False


class RemoteFS(FS):
    """A file system that fsspec knows.

    Args:
        address: address of the file system, such as "s3://bucket" or "hdfs://host:9000". Paths are relative to
            the address.
        options: options of fsspec for the connection, such as `user`.

    Raises UnsupportedError when fsspec lacks a package for that kind of address.
    """

    def __init__(self, address: str, **options: Any):
        import fsspec

        try:
            self._fs, self._root = fsspec.core.url_to_fs(address, **options)
        except (ImportError, ValueError) as e:
            raise errors.UnsupportedError(f"{address}: fsspec cannot open it: {e}") from e
        self._root = self._root.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path.lstrip('/')}"

    def list_dirs(self, fs_path: str) -> list[str]:
        return self.ls_dir(fs_path)[0] if self.stat(fs_path) else []

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files in a folder."""
        self._fs.invalidate_cache()
        found = self._fs.ls(self._at(fs_path), detail=True)
        names: dict[bool, list[str]] = {True: [], False: []}
        for entry in found:
            names[entry["type"] == "directory"].append(entry["name"].rstrip("/").rsplit("/", 1)[-1])
        return sorted(names[True]), sorted(names[False])

    def stat(self, fs_path: str) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._at(fs_path)))

    def is_dir(self, fs_path: str) -> bool:
        """Return whether it is a folder."""
        self._fs.invalidate_cache()
        return bool(self._fs.isdir(self._at(fs_path)))

    def read_text(self, fs_path: str) -> str:
        """Return the text of a file."""
        return str(self._fs.cat_file(self._at(fs_path)).decode())

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copy a file or folder of this host to the file system.

        One that takes some seconds shows how far it has come.
        """
        there = self._at(fs_path)
        # each file's place is told, so that no listing of the store, which may be out of date, counts
        pairs = [(local_path, there)]
        if os.path.isdir(local_path):
            pairs += [
                (local, f"{there}/{os.path.relpath(local, local_path).replace(os.sep, '/')}")
                for folder, folders, files in os.walk(local_path)
                for local in (os.path.join(folder, name) for name in [*folders, *files])
            ]
        size = sum(os.path.getsize(local) for local, _ in pairs if os.path.isfile(local))
        try:
            with self._progress(f"upload {there}", size) as callback:
                self._fs.put(*map(list, zip(*pairs)), callback=callback)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                self._abandon_parts(fs_path)
            raise

    @staticmethod
    @contextlib.contextmanager
    def _progress(description: str, size: int) -> Iterator[Any]:
        """Yield the callback to which fsspec reports transferred bytes."""
        from jfluid.fleet.transfer import BytesOfFiles

        with contextlib.closing(Transfer(description, size)) as transfer:
            yield BytesOfFiles(transfer)

    def _abandon_parts(self, fs_path: str) -> None:
        """Let an object store drop the parts of incomplete uploads, which it keeps, and bills, otherwise."""
        if not hasattr(self._fs, "list_multipart_uploads"):
            return
        bucket, _, prefix = self._at(fs_path).partition("/")
        for upload in self._fs.list_multipart_uploads(bucket):
            if upload["Key"] == prefix or upload["Key"].startswith(f"{prefix}/"):
                self._fs.call_s3(
                    "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )

    def download(self, fs_path: str, local_path: str) -> None:
        """Copy a file or folder from the file system to this host.

        One that takes some seconds shows how far it has come.
        """
        os.makedirs(os.path.dirname(local_path) or ".", exist_ok=True)
        self._fs.invalidate_cache()
        there, is_dir = self._at(fs_path), self.is_dir(fs_path)
        found = self._fs.find(there, detail=True).values() if is_dir else [self._fs.info(there)]
        size = sum(entry["size"] or 0 for entry in found)
        with self._progress(f"download {there}", size) as callback:
            self._fs.get(there, local_path, recursive=is_dir, callback=callback)

    def mkdir(self, fs_path: str) -> None:
        self._fs.makedirs(self._at(fs_path), exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        self._fs.mv(self._at(fs_src_path), self._at(fs_dst_path), recursive=self.is_dir(fs_src_path))

    def rmr(self, fs_path: str) -> None:
        self._fs.rm(self._at(fs_path), recursive=True)

    def rm(self, fs_path: str) -> None:
        self._fs.rm(self._at(fs_path))

    def delete(self, fs_path: str) -> None:
        if self.stat(fs_path):
            self._fs.rm(self._at(fs_path), recursive=self.is_dir(fs_path))

    def need_upload_download(self) -> bool:
        return True


class BDFS(RemoteFS):
    """An HDFS cluster, or any other file system that fsspec knows.

    Args:
        hdfs_name: "hdfs://host:port", or another address such as "s3://bucket".
        hdfs_ugi: "user,password"; HDFS takes the user, and has no passwords. Empty for the user who
            runs the script.
        time_out, sleep_inter: milliseconds for which, and after which, Fluid tries its hadoop
            commands again. fsspec's clients have rules of their own: values other than the defaults
            raise UnsupportedError.

    Raises UnsupportedError when fsspec lacks a package for it (HDFS needs pyarrow).
    """

    def __init__(self, hdfs_name: str, hdfs_ugi: str, time_out: int = 20 * 60 * 1000, sleep_inter: int = 1000):
        if (time_out, sleep_inter) != (20 * 60 * 1000, 1000):
            raise errors.UnsupportedError(
                "BDFS, time_out and sleep_inter: fsspec's clients have rules for repeated calls: leave both arguments "
                "out"
            )
        user = hdfs_ugi.split(",")[0]
        super().__init__(hdfs_name, **({"user": user} if user and hdfs_name.startswith("hdfs:") else {}))
