"""Whatever becomes of the files of a cache: right results, and nothing in them is executed that we did not compile."""

from __future__ import annotations

import pytest

from tests.chaos.helpers import THOROUGH, may_mount, nursery

pytestmark = pytest.mark.in_tree_kernels

EVERY_FILE = """
import json, pickle, shutil
from pathlib import Path

root = Path(sys.argv[1])
marker = root / "executed"
intact, cache = root / "intact", root / "cache"
os.environ["TILEOPS_CACHE_DIR"] = str(intact)
first = call()

class Bomb:
    def __reduce__(self):
        return os.mkdir, (str(marker),)

def truncate(part):
    def spoil(path):
        size = path.stat().st_size
        os.truncate(path, min(size, part if part >= 1 else max(0, size + part) if part < 0 else int(size * part)))
    return spoil

def flip(part):
    def spoil(path):
        data = bytearray(path.read_bytes())
        if data:
            data[int((len(data) - 1) * part)] ^= 0x41
        path.write_bytes(data)
    return spoil

def directory(path):
    path.unlink()
    path.mkdir()

def pickled(path):
    path.write_bytes(pickle.dumps(Bomb()))

def forbidden(path):
    path.chmod(0)

everything = sys.argv[2] == "True"
spoilers = {f"cut to {part}": truncate(part) for part in ((0, 10, 0.5, -1) if everything else (0, 0.5))}
parts = (0, 0.1, 0.3, 0.5, 0.7, 0.95, 1) if everything else (0, 0.7, 1)
spoilers |= {f"flipped at {part}": flip(part) for part in parts}
spoilers |= {"a directory": directory, "a pickle": pickled, "chmod 000": forbidden}

files = sorted(str(path.relative_to(intact)) for path in intact.rglob("*") if path.is_file())
os.environ["TILEOPS_CACHE_DIR"] = str(cache)
said = {}
for name in files:
    for what, spoil in spoilers.items():
        shutil.rmtree(cache, ignore_errors=True)
        shutil.copytree(intact, cache)
        (cache / name).parent.chmod(0o700)
        spoil(cache / name)
        said[f"{name} {what}"] = call()
print(json.dumps({"first": first, "said": said, "files": files, "executed": marker.exists()}))
"""


def test_every_file_damaged_in_every_way(tmp_path):
    found = nursery(EVERY_FILE, tmp_path, THOROUGH)
    assert found["first"] == "right=True compiled=2 warnings=0 []"
    assert not found["executed"]
    assert any(name.endswith("cache.db") for name in found["files"])
    for what, said in found["said"].items():
        assert said.startswith("right=True"), (what, said)
        assert int(said.split("warnings=")[1].split()[0]) <= 1, (what, said)
        if "lock" in what:
            assert "compiled=0" in said, (what, said)


PLACES = """
import json, errno, fcntl, resource, shutil, subprocess
from pathlib import Path
from tileops.autotune.record import RecordStore
from tileops.autotune.shipping import export_cache
from tileops.jit.store import Store

root = Path(sys.argv[1])
cache = root / "cache"
said = {}

def at(path):
    os.environ["TILEOPS_CACHE_DIR"] = str(path)

def fresh():
    shutil.rmtree(cache, ignore_errors=True)
    at(cache)

fresh()
call()
shutil.copytree(cache, root / "filled")

# A limit on the size of files stands for a full disk where no file system may be mounted.
for limit in (0, 30_000, 60_000):
    fresh()
    said[f"no file above {limit} bytes"] = call(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

fresh()
cache.mkdir(mode=0o700)
cache.chmod(0o777)
said["world-writable"] = call()
at("/dev/null")
said["at a device"] = call()
os.environ.update(TILEOPS_CACHE_DIR="", XDG_CACHE_HOME="", HOME="/proc/nowhere")
said["no HOME"] = call()
fresh()
cache.mkdir(mode=0o700)
try:
    os.chown(cache, 12345, -1)
except OSError:
    pass  # not root, or only root of a namespace; the tests of the store look at this as well
else:
    said["foreign owner"] = call()

def broken(code):
    def before():
        def fail(*arguments, **options):
            raise OSError(code, os.strerror(code))
        os.replace = os.unlink = os.rename = fcntl.flock = fcntl.lockf = fail
    return before

for code in (errno.EBUSY, errno.ENOLCK, errno.ESTALE):
    fresh()
    said[errno.errorcode[code]] = call(broken(code))
    said[f"{errno.errorcode[code]} again"] = call(broken(code))

if sys.argv[2] == "mounts":
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    at(cache)
    for size in ("8k", "64k", "100k"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", cache], check=True)
        said[f"a disk of {size}"] = call()
        said[f"a full disk of {size}"] = call()
        subprocess.run(["umount", cache], check=True)
    subprocess.run(["mount", "--bind", root / "filled", cache], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
    said["served from a read-only mount"] = call()
    subprocess.run(["umount", cache], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "none", cache], check=True)
    said["an empty read-only mount"] = call()
    subprocess.run(["umount", cache], check=True)
    image = root / "image"
    image.mkdir()
    filled = Store(root / "filled")
    export_cache(image / "all.tobundle", store=filled, records=RecordStore(root / "filled"))
    subprocess.run(["mount", "--bind", image, image], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", image], check=True)
    os.environ.update(TILEOPS_CACHE_DIR="/proc/nowhere", TILEOPS_CACHE_PATH=str(image), TILEOPS_JIT="forbid")
    said["served from a bundle on a read-only mount"] = call()
print(json.dumps(said))
"""


def test_places_where_nothing_can_be_kept(tmp_path):
    mounts = may_mount(tmp_path / "probe")
    found = nursery(PLACES, tmp_path, "mounts" if mounts else "none", namespace=mounts)
    for what, said in found.items():
        assert said.startswith("right=True"), (what, said)
        warnings = int(said.split("warnings=")[1].split()[0])
        assert warnings <= 1, (what, said)
        kept = "again" in what or "served" in what or what == "a disk of 100k"
        if not kept and "full disk" not in what and "60000" not in what:
            assert warnings == 1, (what, said)
            assert "compiled=2" in said, (what, said)
    if mounts:
        for what in ("served from a read-only mount", "served from a bundle on a read-only mount"):
            assert "compiled=0 warnings=0" in found[what], (what, found[what])
    for code in ("EBUSY", "ENOLCK", "ESTALE"):
        assert "compiled=0" in found[f"{code} again"], "kept, without locks"
