"""What programs read of /etc to work at all, in one folder that a sandbox binds as a whole.

Invariant: nothing is in it but what is listed here, because in /etc itself machines keep secrets; and a folder, once it has
its name, never changes. The name follows from what it holds: hosts share it, and what changed on the machine is another
folder from the next start of a host on.

Binding the names one by one takes bubblewrap longer than all the rest that it does.
"""

import hashlib
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_NAMES = (
    "alternatives", "ca-certificates", "fonts", "gai.conf", "group", "host.conf", "hosts", "java-11-openjdk",
    "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime",
    "magic", "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki/ca-trust", "pki/java",
    "pki/tls/cert.pem", "pki/tls/certs", "profile", "protocols", "python3", "python3.11", "resolv.conf", "services",
    "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf",
)  # fmt: skip
_DIGEST_CHARS = 16


def copied(folder: Path, etc: Path = Path("/etc")) -> Path:
    """The folder below `folder` that holds what there is of the names now. Blocking; raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as unfinished:
        made = Path(unfinished) / "etc"
        made.mkdir()
        for name in _NAMES:
            # What this user may not read is not for the commands either.
            with suppress(shutil.Error, shutil.SpecialFileError, FileNotFoundError, PermissionError):
                _copy(etc / name, made / name)
        target = folder / _digest(made)
        try:
            made.rename(target)
        except OSError:
            # A folder is not renamed onto one that holds something: it was there before, and is the same.
            if not target.is_dir():
                raise
    return target


def _copy(source: Path, target: Path) -> None:
    """What a link in /etc leads to may lie where no command looks; links in its folders stay what they are."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _digest(folder: Path) -> str:
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        seen.update(f"{path.relative_to(folder)!s}\0{mode}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            seen.update(bytes(path.readlink()))
        elif stat.S_ISREG(mode):
            seen.update(hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()[:_DIGEST_CHARS]
