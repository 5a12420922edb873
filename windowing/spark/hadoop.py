"""Files of a checkpoint, through the JVM's Hadoop FileSystem: a checkpoint may lie on any file system that Spark can
reach.

Small text files only. A write is atomic: a hidden temporary file first (Spark's file sources skip names that start with
`_` or `.`), then a rename over the old one.
"""

from __future__ import annotations

import os
import re
from typing import Any, cast
from uuid import uuid4

from pyspark.sql import SparkSession

from windowing.errors import ConfigError, CorruptStateError, shown

__all__ = ["Folder", "checked_folder", "literal_path"]

_CHECKSUM = "org.apache.hadoop.fs.ChecksumException"


def checked_folder(path: Any, what: str) -> str:
    """Return a path that was given for a folder. Raises ConfigError for what is none: None, a number, empty text."""
    if isinstance(path, str | os.PathLike) and isinstance(text := os.fspath(path), str) and text.strip():
        return text
    raise ConfigError(
        f"{what} is a folder: text or a Path, got {shown(path)}; give one on a file system that Spark reaches"
    )


class Folder:
    """One directory on a Hadoop file system. Cost of each call: one round trip to the JVM, and one to the file
    system.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._jvm: Any = cast(Any, spark.sparkContext._jvm)
        self._conf: Any = cast(Any, spark.sparkContext)._jsc.hadoopConfiguration()
        given: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        self._fs: Any = given.getFileSystem(self._conf)
        self._path: Any = self._fs.makeQualified(given)

    @property
    def path(self) -> str:
        """The directory with its scheme, for example `file:/tmp/checkpoint`."""
        return str(self._path.toString())

    @property
    def is_local(self) -> bool:
        """Whether the directory lies on a local disk."""
        return str(self._path.toUri().getScheme()) == "file"

    def __truediv__(self, name: str) -> Folder:
        return Folder(self._spark, f"{self.path}/{name}")

    def of(self, name: str) -> str:
        """Return the full path of the file `name`."""
        return str(self._file(name).toString())

    def make(self) -> None:
        """Create the directory and its parents; one that is there stays as it is."""
        self._fs.mkdirs(self._path)

    def names(self) -> list[str]:
        """Return the names of what lies in the directory, sorted; none when there is no such directory."""
        if not self._fs.exists(self._path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._fs.listStatus(self._path))

    def files(self) -> list[str]:
        """Return the names of all files below the directory, relative to it, sorted; Hadoop's checksums are hidden."""
        found, start = [], len(self.path) + 1
        listed = self._fs.listFiles(self._path, True)
        while listed.hasNext():
            found.append(str(listed.next().getPath().toString())[start:])
        return sorted(found)

    def exists(self, name: str) -> bool:
        """Return whether there is a file or directory of this name."""
        return bool(self._fs.exists(self._file(name)))

    def read(self, name: str) -> bytes:
        """Return the content of the file `name`; a missing file raises Py4JJavaError, a damaged one CorruptStateError."""
        stream = self._fs.open(self._file(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        except Exception as problem:  # py4j has no types
            if _CHECKSUM not in str(getattr(problem, "java_exception", "")):
                raise
            raise CorruptStateError(
                f"{self.of(name)} is damaged, its bytes do not fit its checksum; put the file back from a copy"
            ) from problem
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Put `content` into the file `name`, all or nothing, in place of an older one."""
        self.make()
        hidden = self._file(f"_{name}.{uuid4().hex}.tmp")
        stream = self._fs.create(hidden, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        hadoop: Any = self._jvm.org.apache.hadoop.fs
        rename = getattr(hadoop, "Options$Rename")
        how = cast(Any, self._spark.sparkContext)._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        hadoop.FileContext.getFileContext(hidden.toUri(), self._conf).rename(hidden, self._file(name), how)

    def delete(self, name: str) -> None:
        """Remove the file or directory `name` with all it holds; a missing one is no error."""
        self._fs.delete(self._file(name), True)

    def _file(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def literal_path(path: str) -> str:
    """Return `path` so that Spark's readers, which read `*`, `?`, `[` and `{` as patterns, take it as it is.

    >>> literal_path("/data/[new]")
    '/data/\\\\[new\\\\]'
    """
    return re.sub(r"([\\*?{}\[\]])", r"\\\1", path)
