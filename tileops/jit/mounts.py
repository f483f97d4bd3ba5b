"""Which kind of file system a directory lies on."""

from __future__ import annotations

import os
from pathlib import Path

#: File systems whose locks or renames are not those of a local disk.
NETWORK = frozenset(
    {
        "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "smb3", "smbfs",
        "wekafs",
    }
)  # fmt: skip


def filesystem_of(path: Path) -> str | None:
    """Type of the file system that holds `path` or its nearest existing parent; None where that is not
    known.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None  # not Linux
    place = os.path.realpath(path)
    found, longest = None, -1
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # a later mount over the same point hides the earlier
            found, longest = rest.split()[0], len(point)
    return found
