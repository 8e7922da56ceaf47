"""Keeps code under test away from the network, other processes and files it was not given. No torch. Linux.

Applied in a child after it is forked and before it loads any code of an arm. Two mechanisms of the kernel, neither of
which needs privileges: Landlock for files, a seccomp filter for sockets, new processes and other processes' memory.
Where the kernel lacks one of them, a hook on the interpreter's own operations does what it can, and the report says so:
it stops Python code, not machine code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH = 1, 1

_EXECUTE, _READ_FILE, _READ_DIR, _IOCTL = 1 << 0, 1 << 2, 1 << 3, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | 1 << 1 | _READ_FILE | 1 << 14 | _IOCTL
"""What can be granted on something that is not a folder: execute, write, read, truncate, ioctl."""


@dataclass(frozen=True)
class Confinement:
    """What a child is kept from, and how.

    Attributes:
        network: no sockets can be made. `kernel`, `interpreter` (a hook that machine code can go round) or `no`.
        processes: no process can be started, signalled or read; on a CUDA run programs may be started.
        files: nothing is read but the Python installation and the system's libraries, nothing is written but the
            run's scratch folder.
    """

    network: str
    processes: str
    files: str

    def __str__(self) -> str:
        """In words, for the report."""
        parts = []
        for level, text in (("kernel", "{}"), ("interpreter", "{} (by an interpreter hook only)")):
            names = [n for n in ("network", "processes", "files") if getattr(self, n) == level]
            if names:
                parts.append(text.format(", ".join(names)))
        return "; ".join(parts) if parts else "environment only"


def confine(readable: Iterable[Path], writable: Iterable[Path], device: str) -> Confinement:
    """Confine this process and all that it will start. Cannot be undone.

    Args:
        readable, writable: what the run itself needs, besides the Python installation and the system's libraries.
        device: `cpu`, or `cuda`, where the driver's device files are usable and compilers may be started.
    """
    reads = [*python_paths(), *_system_paths(device), *readable]
    writes = list(writable)
    programs = device == "cuda"
    calls = files = False
    if sys.platform == "linux" and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        files = _landlock(reads, writes, _device_files(device))
        calls = _seccomp(programs)
    if not (calls and files):
        _hook(not calls, None if files else [*reads, *_device_files(device)], writes, programs)
    how = "kernel" if calls else "interpreter"
    return Confinement(how, how, "kernel" if files else "interpreter")


# -- which files ------------------------------------------------------------------------------------------------------


def python_paths() -> list[Path]:
    """The Python installation, its packages, and packages imported from elsewhere (an editable install)."""
    roots = {Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    roots |= {Path(p) for p in sys.path if p.endswith((".zip", "site-packages", "dist-packages"))}
    roots |= {Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    roots |= {Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p}
    known = tuple(f"{root}{os.sep}" for root in roots)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or file.startswith(known) or not file.startswith(os.sep):
            continue
        folder = file.rpartition(os.sep)[0]
        roots.add(Path(folder) if folder in getattr(module, "__path__", ()) else Path(file))
        known = (*known, f"{folder}{os.sep}") if Path(folder) in roots else known
    return sorted(roots)


def _system_paths(device: str) -> list[Path]:
    names = [
        "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/gnu/store",
        "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/passwd",
        "/etc/group", "/etc/nsswitch.conf", "/etc/os-release", "/etc/mime.types", "/etc/alternatives",
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
        f"/proc/{os.getpid()}", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/version",
        "/proc/loadavg", "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup",
        "/sys/kernel/mm/transparent_hugepage",
    ]  # fmt: skip
    if device == "cuda":
        names += ["/proc/driver", "/proc/devices", "/proc/modules", "/proc/sys", "/sys", "/opt", "/run/nvidia"]
        names += [os.environ[n] for n in ("CUDA_HOME", "CUDA_PATH") if n in os.environ]
    return [Path(name) for name in names]


def _device_files(device: str) -> list[Path]:
    """Device files that are written to and controlled."""
    found = [Path("/dev/null"), Path("/dev/zero"), Path("/dev/full")]
    if device == "cuda":
        # The driver names its threads through the process's own folder.
        found += [*Path("/dev").glob("nvidia*"), Path("/dev/shm"), Path("/dev/dri"), Path(f"/proc/{os.getpid()}")]
    return found


# -- Landlock: files --------------------------------------------------------------------------------------------------


def _landlock(readable: Sequence[Path], writable: Sequence[Path], devices: Sequence[Path]) -> bool:
    """Restrict which files are reached; False where the kernel cannot."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return False
    handled = (1 << 13) - 1  # the rights of version 1
    for since, bit in ((2, 1 << 13), (3, 1 << 14), (5, _IOCTL)):
        handled |= bit if version >= since else 0
    attributes = [handled]
    if version >= 4:
        attributes.append(0b11)  # binding and connecting of TCP
    if version >= 6:
        attributes.append(0b11)  # abstract sockets of others, signals to others
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    rules = _libc.syscall(_LANDLOCK_CREATE, packed, ctypes.c_size_t(len(packed)), 0)
    if rules < 0:
        return False
    try:
        for paths, rights in ((readable, _READ), (writable, handled & ~_EXECUTE), (devices, handled & ~_EXECUTE)):
            for path in paths:
                if not _allow(rules, path, rights & handled):
                    return False
        return bool(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> bool:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True  # it is not there
    try:
        if not path.is_dir():
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, handle)
        return bool(_libc.syscall(_LANDLOCK_ADD, rules, _LANDLOCK_PATH, rule, 0) == 0)
    finally:
        os.close(handle)


# -- seccomp: sockets and processes -----------------------------------------------------------------------------------

_ARCHITECTURES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "connect": 42, "bind": 49, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
            "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "fork": 57,
            "vfork": 58, "clone": 56, "execve": 59, "execveat": 322, "unshare": 272, "setns": 308, "mount": 165,
            "bpf": 321, "add_key": 248, "request_key": 249, "keyctl": 250, "perf_event_open": 298, "userfaultfd": 323,
            "shmget": 29, "prlimit64": 302,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "connect": 203, "bind": 200, "ptrace": 117, "process_vm_readv": 270,
            "process_vm_writev": 271, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
            "rt_tgsigqueueinfo": 240, "clone": 220, "execve": 221, "execveat": 281, "unshare": 97, "setns": 268,
            "mount": 40, "bpf": 280, "add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241,
            "userfaultfd": 282, "shmget": 194, "prlimit64": 261,
        },
    ),
}  # fmt: skip
_COMMON = {"io_uring_setup": 425, "pidfd_send_signal": 424, "pidfd_open": 434, "pidfd_getfd": 438, "clone3": 435}
_STARTS_PROGRAMS = ("fork", "vfork", "execve", "execveat")
_OWN_TARGET = ("kill", "tgkill", "prlimit64")  # allowed towards this process itself
_CLONE_THREAD, _AF_UNIX = 0x10000, 1

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # classic BPF: ld, jeq, jset, jge, ret
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _DENY, _UNKNOWN, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000


def seccomp_program(machine: str, pid: int, programs: bool) -> bytes | None:
    """The filter as classic BPF instructions; None for a machine whose system calls are not known here.

    Args:
        pid: the process that may signal itself.
        programs: a CUDA run: processes may be started, and local sockets made, as the driver does; none is connected.
    """
    if machine not in _ARCHITECTURES:
        return None
    audit, numbers = _ARCHITECTURES[machine]
    numbers = {**numbers, **_COMMON}
    if programs:
        for name in (*_STARTS_PROGRAMS, "clone", "clone3", "bind"):
            numbers.pop(name, None)

    def code(operation: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", operation, yes, no, value)

    program = [
        code(_LOAD, _ARCHITECTURE),
        code(_EQUAL, audit, yes=1),
        code(_RETURN, _KILL),
        code(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [code(_AT_LEAST, 0x40000000, no=1), code(_RETURN, _DENY)]  # the x32 numbering
    for name, number in numbers.items():
        if name == "clone":
            checks = [code(_LOAD, _ARGUMENT), code(_ANY_BIT, _CLONE_THREAD, yes=1), code(_RETURN, _DENY)]
        elif name == "socket" and programs:
            checks = [code(_LOAD, _ARGUMENT), code(_EQUAL, _AF_UNIX, yes=1), code(_RETURN, _DENY)]
        elif name == "prlimit64":
            checks = [code(_LOAD, _ARGUMENT), code(_EQUAL, 0, yes=2), code(_EQUAL, pid, yes=1), code(_RETURN, _DENY)]
        elif name in _OWN_TARGET:
            checks = [code(_LOAD, _ARGUMENT), code(_EQUAL, pid, yes=1), code(_RETURN, _DENY)]
        else:
            # A library that finds clone3 unknown asks clone, whose flags a filter can read.
            checks = [code(_RETURN, _UNKNOWN if name == "clone3" else _DENY)]
        if len(checks) > 1:
            checks.append(code(_RETURN, _ALLOW))
        program += [code(_EQUAL, number, no=len(checks)), *checks]
    program.append(code(_RETURN, _ALLOW))
    return b"".join(program)


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]


def _seccomp(programs: bool) -> bool:
    program = seccomp_program(platform.machine(), os.getpid(), programs)
    if program is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    described = _Filter(len(program) // 8, program)
    return bool(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) == 0)


# -- second best: the interpreter's audit events ----------------------------------------------------------------------

_NETWORK_EVENTS = ("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto")
_PROGRAM_EVENTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
_OTHERS_EVENTS = ("os.kill", "os.killpg", "signal.pthread_kill")
_WRITE_EVENTS = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
                 "os.chown", "shutil.rmtree")  # fmt: skip
_READ_EVENTS = ("os.listdir", "os.scandir", "glob.glob")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(calls: bool, readable: Sequence[Path] | None, writable: Sequence[Path], programs: bool) -> None:
    """Refuse the interpreter's own operations. `readable` None leaves files to the kernel."""
    stopped = set(_NETWORK_EVENTS + _OTHERS_EVENTS) if calls else set()
    if calls and not programs:
        stopped |= set(_PROGRAM_EVENTS)
    writes = tuple(_prefixes(writable))
    reads = (*_prefixes(readable or ()), *writes)

    def inside(path: Any, prefixes: tuple[str, ...]) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # a descriptor that is open already
        real = os.path.realpath(os.fsdecode(path))
        return real.startswith(prefixes) or f"{real}{os.sep}" in prefixes

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event in stopped:
            raise PermissionError(1, f"{event} is not permitted to code under test")
        if readable is None:
            return
        if event == "open":
            path, _, flags = args
            allowed = writes if isinstance(flags, int) and flags & _WRITE_FLAGS else reads
            if not inside(path, allowed) and os.fsdecode(path) != os.devnull:
                raise PermissionError(13, "Permission denied", os.fsdecode(path))
        elif event in _READ_EVENTS or event in _WRITE_EVENTS:
            path = args[0] if args and args[0] is not None else "."
            if not inside(path, writes if event in _WRITE_EVENTS else reads):
                raise PermissionError(13, "Permission denied", os.fsdecode(path))

    sys.addaudithook(check)


def _prefixes(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with contextlib.suppress(OSError):
            real = os.path.realpath(path)
            yield real + os.sep if os.path.isdir(real) else real  # noqa: PTH112
