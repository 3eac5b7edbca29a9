"""Client of `fluid.incubate.fleet.utils.hdfs`, which uploads and downloads folders."""

import fnmatch
import os
from collections.abc import Sequence

from jfluid.fleet import hdfs

__all__ = ["HDFSClient"]


class HDFSClient(hdfs.HDFSClient):
    """Client with methods for folders; the base class has the methods of `fluid.contrib.HDFSClient`."""

    def lsr(self, hdfs_path: str, excludes: Sequence[str] = ()) -> list[str]:  # type: ignore[override]
        """Return the paths of all files below a folder, except names that match an entry of `excludes`."""
        return [
            path
            for path in super().lsr(hdfs_path)
            if not any(fnmatch.fnmatch(os.path.basename(path), e) for e in excludes)
        ]

    def upload(  # type: ignore[override]
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Copy a file, or all files of a folder, of this host into a folder, `multi_processes` at a time."""
        if os.path.isdir(local_path):
            return all(hdfs.multi_upload(_Files(self, retry_times), hdfs_path, local_path, multi_processes, overwrite))
        return super().upload(hdfs_path, local_path, overwrite, retry_times)

    def download(  # type: ignore[override]
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Copy a file, or all files of a folder, into a folder of this host.

        `multi_processes` files are copied at a time. An existing file is only replaced with `overwrite`.
        """
        if not self.is_dir(hdfs_path):
            return super().download(hdfs_path, local_path, overwrite, retry_times=retry_times)
        client = _Files(self, retry_times)
        if not overwrite and any(
            os.path.exists(os.path.join(local_path, os.path.relpath(f, hdfs_path))) for f in client.lsr(hdfs_path)
        ):
            return False
        hdfs.multi_download(client, hdfs_path, local_path, 0, 1, multi_processes)
        return True

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """Copy a folder of this host with all files in it."""
        return self.upload(dest_dir, local_dir, overwrite=overwrite)


class _Files(hdfs.HDFSClient):
    """Client that copies single files of an existing client's cluster."""

    def __init__(self, other: hdfs.HDFSClient, retries: int):
        vars(self).update(vars(other))
        self.retries = retries
