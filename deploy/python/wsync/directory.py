"""Published weights as directories on a shared file system, written and followed without a sidecar.

    FOLDER/weight_v000012/model.safetensors     or shards with model.safetensors.index.json; config.json and the tokenizer, if given
    FOLDER/latest                               a text file: "weight_v000012"

    writer = wsync.directory.Writer("/nfs/run7", model_files="/models/base")     # the trainer
    writer.publish(model.state_dict(), step=120)

    for weights in wsync.directory.follow("/nfs/run7"):                          # anybody else
        engine.load(weights.tensors)

`wsync trainer --publish-directory` writes the same form, and `wsync sidecar --follow-directory` follows it.

What other programs do, read in their sources (slime 624b824a, miles 31f1ca96, the /pull_weights patch of SGLang in slime's
tree), and what follows from it:

* slime (`--update-weight-transport disk --update-weight-mode full`) writes the whole model to `weight_v%06d` below
  `--update-weight-disk-dir`, where the number counts the updates from 1 on. It writes in place (an older directory of that name is
  removed first), and after the engines have loaded it removes the directory, unless `--update-weight-disk-keep-files` is given.
* The delta mode of slime and the disk-delta mode of miles write directories of the same name, whose files have compressed changes
  to the version before. Their index says so in metadata.delta_encoding. These are refused here: they are no weights.
* Neither writes a `latest`. The trainer sends each engine the path or the number, after every file was written. SGLang's reader
  takes `weight_v%06d` below a given folder, needs the directory to exist, and regards it as whole weights if the index has no
  delta_encoding. So directories that are written here can be given to it.
* A text file `latest` with "weight_v000012" in it, without a line end, is what the bulletin board of the project stitch reads
  beside slime's directories. Megatron's `latest_checkpointed_iteration.txt` is about training checkpoints, not about these.

A folder without `latest` is therefore followed by its highest number, and a directory in it counts as complete when each file that
the index names is there with the size that its header states. Its bytes are "not proven", because slime and miles write no digest
of whole models. Directories that are written here have the version and the digest of all bytes in the metadata of each file, and
are proven each time they are read.

Tested: both directions with the C++ writer and follower, SIGKILL at each step of a write, full file systems, and loading by the
packages safetensors and transformers. Not run: slime, miles and SGLang themselves, and NFS between two hosts.
"""
from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from ._errors import DigestMismatch, Error, InvalidInput, NotFound
from ._native import core
from ._tensors import Array, Shard, as_dtype, describe, pairs, storage_dtype
from ._values import Version, step_of

__all__ = ["Directory", "Weights", "Writer", "follow", "read"]
_log = logging.getLogger("wsync.directory")
Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Directory:
    """A directory that was written."""

    path: str
    version: Version  # epoch.step
    digest: str  # of all bytes: 32 hexadecimal digits, as `wsync status` prints them


@dataclass(frozen=True)
class Weights:
    """The weights of a directory, in memory of their own."""

    path: str
    tensors: dict[str, Array]  # row-major, writable; BF16 and F8 are unsigned integers with `dtype_name`
    version: Optional[Version]  # None: written by another program
    digest: str  # of the bytes that were read
    proven: bool  # the digest is the one that the writer has stated; False: written by another program


class Writer:
    """Writes versions into a folder. One writer at a time, also over NFS: a second one gets `Busy`.

    Every function may block as long as the file system does. Not to be used by two threads at once; the GIL is released. What a
    killed writer has left is removed when the next one starts.

    Args:
        folder: created, if its parent exists.
        keep: the newest directories of this form that are kept, 1 or more. One more is on the disc while a directory is written.
            The one that `latest` names is always kept, and those of other programs are never removed. A reader that has files of a
            removed one open goes on reading them, on a local file system and on the NFS client that removes them; on another NFS
            client its reads may fail (ESTALE), and `read` and `follow` then take the newest.
        shard_bytes: bytes of a file; a tensor is never split.
        model_files: a directory whose small files (config.json, tokenizer) are copied into each, so that
            `AutoModel.from_pretrained` loads it.

    Raises:
        Busy: another writer has the folder.
        InvalidInput: the folder has a version of the highest epoch, 4294967295.
        Error: the folder or the model's files cannot be used.
    """

    def __init__(self, folder: Path, *, keep: int = 2, shard_bytes: int = 5_000_000_000, model_files: Optional[Path] = None):
        self.folder = os.path.abspath(os.fspath(folder))
        self._raw = core.WeightWriter(self.folder, keep, shard_bytes, os.fspath(model_files or ""))
        # The versions of one writer are an epoch of their own, so that a version never names two different byte strings.
        try:
            self._epoch, self._step = core.next_weight_epoch(self.folder), 0
        except Error:
            self._raw.close()
            raise

    def publish(self, tensors: Any, step: Optional[int] = None) -> Directory:
        """Writes a version, and lets `latest` name it. It is on the disc when this returns.

        Args:
            tensors: a mapping of names to arrays of NumPy or tensors of torch in the memory of the host (`model.state_dict()`), or
                an iterable of such pairs. Of several names for one memory (tied weights) the first is written, as in checkpoints.
            step: the number of the training step, greater than those before. None: the next one. It is the number of the
                directory, unless the folder has that number or a higher one: then the next after the highest.

        Raises:
            InvalidInput: a tensor or the step cannot be published.
            ResourceExhausted: the file system is full. The sentence has the directory, the bytes needed and those free.
            Error: the directory cannot be written. After any error `latest` and the directories are as before.
        """
        step = step_of(self._step + 1 if step is None else step)
        if step <= self._step:
            raise InvalidInput(f"step is {step}, expected more than {self._step}, the step of the version before")
        given: dict[Any, tuple] = {}
        alive = []
        for name, tensor in pairs(tensors):
            if isinstance(tensor, Shard):
                raise InvalidInput(f"tensor {name} is a Shard; a directory has whole tensors", tensor=name)
            one = describe(name, tensor)
            address, owner = one.dense()
            alive.append(owner)
            given.setdefault(one.memory() or name, (one.name, one.dtype, list(one.shape), address))
        name, digest = self._raw.write(list(given.values()), self._epoch, step)
        self._step = step
        return Directory(os.path.join(self.folder, name), Version(self._epoch, step), digest)

    def roll_back(self, version: Version) -> str:
        """Lets `latest` name an older directory again. Returns its path.

        Raises:
            NotFound: the folder has no directory of that version any more.
        """
        return os.path.join(self.folder, self._raw.point_to(version.epoch, version.step))

    def close(self) -> None:
        """Gives the folder to other writers."""
        self._raw.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _load(raw: "core.WeightReader") -> Weights:
    path = raw.path()
    tensors = {name: as_dtype(np.empty(shape, storage_dtype(dtype)), dtype) for name, dtype, shape in raw.tensors()}
    digest = raw.read([array.ctypes.data if math.prod(array.shape) else 0 for array in tensors.values()])
    proof = raw.proof()
    if proof is not None and proof[2] != digest:
        raise DigestMismatch(f"{path}: its bytes have the digest {digest}, but its writer states {proof[2]} of version "
                             f"{proof[0]}.{proof[1]}: a file was changed or damaged; write it again")
    return Weights(path, tensors, Version(*proof[:2]) if proof else None, digest, proof is not None)


def read(folder: Path) -> Weights:
    """Reads the directory that `latest` names (without `latest`: the one with the highest number).

    Raises:
        NotFound: the folder has no directory yet, or `latest` names one that is gone.
        DigestMismatch: its bytes are not those that its writer has stated.
        InvalidInput: it is not complete, or no checkpoint.
    """
    folder = os.path.abspath(os.fspath(folder))
    raw = core.WeightReader(folder)
    while True:
        try:
            return _load(raw)
        except Error:
            before, raw = raw.path(), core.WeightReader(folder)
            if raw.path() == before:
                raise


def follow(folder: Path, *, poll: float = 1.0, timeout: Optional[float] = None) -> Iterator[Weights]:
    """Yields the weights each time that `latest` names other ones, an older directory included: `latest` decides.

    A follower that is behind gets the newest, not each in turn. A directory that cannot be read, is not complete or vanishes is
    tried again; one whose bytes are not those of its writer is refused, with one warning (logger "wsync.directory"), until
    `latest` or its files change. The same bytes under another name are not yielded again.

    Args:
        folder: may have nothing yet.
        poll: seconds between two looks. A look reads `latest`, and asks for the sizes and times of the files; it opens them only if
            these have changed.
        timeout: seconds without other weights after which the iterator ends. None: never.
    """
    path = os.path.abspath(os.fspath(folder))
    held, files, said = "", "", ""  # the digest that was yielded, the files that were read, the last warning
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            found = _other(path, held, files)
        except Error as failure:
            found = None
            if isinstance(failure, _Refused):
                files = failure.files
            if not isinstance(failure, NotFound) and str(failure) != said:
                said = str(failure)
                _log.warning("%s", said)
        if found is not None:
            weights, files = found
            said = ""
        else:
            weights = None
        if weights is not None and weights.digest != held:
            held = weights.digest
            yield weights
            end = None if timeout is None else time.monotonic() + timeout
        elif end is not None and time.monotonic() >= end:
            return
        else:
            time.sleep(poll)


class _Refused(DigestMismatch):
    """With what the files were like that have other bytes than they should."""

    files = ""


def _other(folder: str, held: str, files: str) -> Optional[tuple[Optional[Weights], str]]:
    """What `latest` names (None: bytes that are held already), and what its files are like; None if these were read before."""
    now = "".join(core.look_at_latest_weights(folder))
    if now == files:
        return None
    raw = core.WeightReader(folder)
    proof = raw.proof()
    if proof is not None and proof[2] == held:
        return None, now
    try:
        return _load(raw), now
    except DigestMismatch as failure:
        refused = _Refused(str(failure))
        refused.files = now
        raise refused from failure
