"""Recorded values from their JSON form: nothing is believed, nothing is imported, no code of the capture is run.

torch is imported when a tensor is made, not before.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from difftest.errors import CaptureError
from difftest.record.lines import INLINE, MAX_DEPTH, aligned, blob_path, read_blob

if TYPE_CHECKING:
    import torch

    from difftest.record.lines import Bytes

MAX_NODES = 2_000_000
"""Values in one call: what refers to shared values again and again could otherwise grow without end."""

_MAX_DIMENSIONS = 32
_MAX_SIZE = 1 << 48

_TORCH_ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
_NUMPY_DTYPE = re.compile(r"\|[bui]1|[<>]([ui][248]|f[248]|c8|c16)|[<>](f16|c32)")
_SYMBOL = re.compile(r"[A-Za-z_][\w.]*:[\w.<>]*")
_DEVICE = re.compile(r"[a-z]{1,20}(:\d{1,4})?")
_SCALARS = frozenset({int, str, bool, float, type(None)})


@dataclass(frozen=True)
class RecordedObject:
    """The state of an instance of the engine's own class.

    Attributes:
        symbol: `module:qualname` of its class, as the engine named it.
        kind: `dataclass`, `namedtuple`, `module` (a torch module: parameters, buffers and submodules are among the
            fields) or `object`.
        fields: attributes by name.
    """

    symbol: str
    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class RecordedGenerator:
    """A torch generator as it was before the call.

    Attributes:
        index: its number among the call's generators.
        device: `cpu`, `cuda:0`.
        seed: its initial seed.
        offset: its Philox offset, None where it has none (CPU).
        state: bytes for `set_state`.
    """

    index: int
    device: str
    seed: int
    offset: int | None
    state: bytes = field(repr=False)

    def make(self, device: str | None = None) -> torch.Generator:
        """A new generator in this state.

        Raises:
            CaptureError: the state is none of that device.
        """
        import torch

        try:
            made = torch.Generator(device=device or self.device)
            made.set_state(torch.frombuffer(bytearray(self.state), dtype=torch.uint8))
        except RuntimeError as error:
            raise CaptureError(
                f"generator {self.index}: its state cannot be restored: {str(error).splitlines()[0]}"
            ) from None
        return made


@dataclass(frozen=True)
class RecordedSymbol:
    """A reference to code or a class: `module:qualname`. Reading does not import it."""

    symbol: str


@dataclass(frozen=True)
class RecordedEnum:
    """A member of the engine's enum class."""

    symbol: str
    name: str


@dataclass(frozen=True)
class RecordedMethod:
    """A bound method: the object it belongs to and its name."""

    owner: Any
    name: str


@dataclass(frozen=True)
class Opaque:
    """Something that the recorder could not record. Replay refuses a call that needs it, by name."""

    symbol: str
    why: str


@dataclass(frozen=True)
class RngStates:
    """The process-wide generators at one moment.

    Attributes:
        torch_cpu: state of torch's default CPU generator, for `torch.set_rng_state`.
        torch_cuda: states of the default CUDA generators by device number.
        numpy_state: for `numpy.random.set_state`.
        random_state: for `random.setstate`.
    """

    torch_cpu: bytes = field(repr=False)
    torch_cuda: Mapping[int, RecordedGenerator]
    numpy_state: tuple[str, Any, int, int, float] = field(repr=False)
    random_state: tuple[int, tuple[int, ...], float | None] = field(repr=False)


class Storages:
    """The memory behind one side of a call, loaded on demand, each storage once.

    Args:
        entries: the record's `storages`.
        states: the record's `states`.
        blobs: the folder of blobs.
        where: file and line, for messages.
        max_bytes: more than this in a storage, a tensor or all storages together is refused.
        values: the manifest's shared values, by number.

    Raises:
        CaptureError: an entry has the wrong form or is too large.
    """

    def __init__(
        self,
        entries: Any,
        states: Any,
        blobs: Path,
        where: str,
        max_bytes: int,
        values: Callable[[int], Any],
    ) -> None:
        self.where = where
        self._values = values
        self.max_bytes = max_bytes
        self._blobs = blobs
        self._entries = self._checked(entries, "storages")
        self._states = self._checked(states, "states")
        self.total: int = sum(entry.get("size", 0) for entry in self._entries)
        if self.total > max_bytes:
            self.fail(f"{self.total} bytes of memory in one call, more than the {max_bytes} allowed")

    def fail(self, fault: str) -> NoReturn:
        # What the capture says may hold anything; the message is one printable line.
        printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in fault)
        raise CaptureError(f"{self.where}: {printable[:400]}")

    def _checked(self, listed: Any, name: str) -> list[dict[str, Any]]:
        if not isinstance(listed, list):
            self.fail(f"`{name}` is not a list")
        entries = [self.value(entry["value"]) if _is_reference(entry) else entry for entry in listed]
        if not all(isinstance(entry, dict) for entry in entries):
            self.fail(f"`{name}` is not a list of objects")
        for number, entry in enumerate(entries):
            label = f"{name}[{number}]"
            size = _natural(entry.get("size"))
            if size is None:
                self.fail(f"{label}: `size` is no number of bytes")
            if size > self.max_bytes:
                self.fail(f"{label}: {size} bytes, more than the {self.max_bytes} allowed")
            if name == "storages":
                start, whole = _natural(entry.get("start")), _natural(entry.get("whole"))
                if start is None or whole is None or start + size > whole:
                    self.fail(f"{label}: bytes {entry.get('start')} to +{size} are not within {entry.get('whole')}")
                if not isinstance(entry.get("device"), str) or not _DEVICE.fullmatch(entry["device"]):
                    self.fail(f"{label}: {str(entry.get('device'))[:40]!r} is no device")
                if entry.get("input") is not None and _natural(entry["input"]) is None:
                    self.fail(f"{label}: `input` is no storage number")
            if [key in entry for key in ("blob", "data", "omitted")].count(True) != 1:
                self.fail(f"{label}: needs one of blob, data, omitted")
            if "data" in entry and size > INLINE:
                self.fail(f"{label}: {size} bytes in the manifest itself, more than {INLINE}")
            if "blob" in entry:
                blob_path(self._blobs, entry["blob"], f"{self.where}: {label}")
        return entries

    def changed(self, after: list[Any], where: str) -> Storages:
        """The same storages with what some of them held after the call.

        Args:
            after: the `inputs` of the call's `end`.
            where: file and line of that, for messages.

        Raises:
            CaptureError: an entry has the wrong form, is of another size, or of no storage.
        """
        entries = list(self._entries)
        for entry in after:
            number = _natural(entry.get("storage")) if isinstance(entry, dict) else None
            if number is None or number >= len(entries) or entry.get("size") != entries[number]["size"]:
                raise CaptureError(f"{where}: an entry of `inputs` is of no storage of the call, or of another size")
            place = {key: entries[number][key] for key in ("start", "whole", "device")}
            entries[number] = {**place, **{key: item for key, item in entry.items() if key != "storage"}}
        return Storages(entries, self._states, self._blobs, where, self.max_bytes, self._values)

    @property
    def inputs(self) -> dict[int, int]:
        """Of an output's storages: those that are memory of an input, and its number."""
        return {i: entry["input"] for i, entry in enumerate(self._entries) if entry.get("input") is not None}

    def value(self, number: Any) -> Any:
        """The node of a shared value.

        Raises:
            CaptureError: there is none of this number, or its line is damaged.
        """
        index = _natural(number)
        if index is None:
            self.fail(f"{number!r:.40} is no number of a shared value")
        return self._values(index)

    def entry(self, number: Any) -> dict[str, Any]:
        """The storage's entry.

        Raises:
            CaptureError: there is none of this number.
        """
        index = _natural(number)
        if index is None or index >= len(self._entries):
            self.fail(f"{number!r:.40} is no number of the {len(self._entries)} storages")
        return self._entries[index]

    def state(self, number: Any) -> bytes:
        """A generator state.

        Raises:
            CaptureError: there is none of this number, or its bytes are damaged.
        """
        index = _natural(number)
        if index is None or index >= len(self._states):
            self.fail(f"{number!r:.40} is no number of the {len(self._states)} generator states")
        return self._load(self._states[index], f"states[{index}]").tobytes()

    def load(self, number: int) -> Bytes:
        """New memory with the storage's bytes, from byte `start` on, uint8 [size], writable.

        Raises:
            CaptureError: its bytes are missing or damaged.
        """
        return self._load(self._entries[number], f"storages[{number}]")

    def _load(self, entry: Mapping[str, Any], label: str) -> Bytes:
        size = entry["size"]
        if "blob" in entry:
            return read_blob(blob_path(self._blobs, entry["blob"], f"{self.where}: {label}"), size)
        try:
            data = base64.b64decode(entry["data"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            self.fail(f"{label}: `data` is not base64")
        if len(data) != size:
            self.fail(f"{label}: {len(data)} bytes of data where {size} are declared")
        memory = aligned(size)
        memory[:] = np.frombuffer(data, np.uint8)
        return memory


class Decoder:
    """Decodes the values of one side of a call; what they share is shared again.

    Args:
        storages: the memory behind them.
        device: where tensors go that were not in CPU memory; None checks everything and makes no tensor.
    """

    def __init__(self, storages: Storages, device: str | None) -> None:
        self._storages = storages
        self._device = device
        self._numbered: list[Any] = []
        self._memory: dict[int, Bytes] = {}
        self._on_device: dict[int, Any] = {}
        self._depth = 0
        self._nodes = 0
        self.opaque: list[tuple[str, Opaque]] = []
        self._path: list[str] = []

    def __call__(self, node: Any, name: str = "") -> Any:
        """The value of a node.

        Raises:
            CaptureError: the node is not of a known form, or says something impossible.
        """
        kind = type(node)
        if kind in _SCALARS:
            return node
        if self._depth >= MAX_DEPTH:
            self._fail("nested too deeply")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._fail(f"more than {MAX_NODES} values")
        self._depth += 1
        self._path.append(name)
        try:
            return self._value(node, kind)
        finally:
            self._path.pop()
            self._depth -= 1

    def _value(self, node: Any, kind: type) -> Any:
        if kind is list:
            found: list[Any] = []
            self._numbered.append(found)
            found.extend(self._items(node))
            return found
        if not node:
            self._fail("an empty object is no value")
        tag = next(iter(node))
        read = _READERS.get(tag)
        if read is None:
            self._fail(f"{tag[:40]!r} is no known form of a value")
        if len(node) != 1 and not (len(node) == 2 and "class" in node and tag in ("dict", "set")):
            self._fail(f"a value has one form, this one has {sorted(node)!r:.80}")
        return read(self, node[tag])

    def _fail(self, fault: str) -> NoReturn:
        path = "".join(self._path)
        self._storages.fail(f"{path}: {fault}" if path else fault)

    def _items(self, nodes: list[Any]) -> Iterator[Any]:
        if set(map(type, nodes)) <= _SCALARS:
            return iter(nodes)
        return (self(item, f"[{i}]") for i, item in enumerate(nodes))

    def _list(self, node: Any, what: str) -> list[Any]:
        if not isinstance(node, list):
            self._fail(f"{what} needs a list")
        return node

    def _object(self, node: Any, what: str, *keys: str) -> dict[str, Any]:
        if not isinstance(node, dict) or set(node) != set(keys):
            self._fail(f"{what} needs exactly {', '.join(keys)}")
        return node

    def _symbol(self, text: Any) -> str:
        if not isinstance(text, str) or len(text) > 500 or not _SYMBOL.fullmatch(text):
            self._fail(f"{str(text)[:80]!r} is no `module:qualname`")
        return text

    def _integers(self, node: Any, what: str) -> tuple[int, ...]:
        if not isinstance(node, list) or any(type(n) is not int for n in node):
            self._fail(f"{what} is not a list of integers")
        return tuple(node)

    # One reader a form.

    def _float(self, node: Any) -> float:
        try:
            (value,) = struct.unpack(">d", bytes.fromhex(node))
        except (TypeError, ValueError, struct.error):
            self._fail("a float needs 16 hexadecimal digits")
        return float(value)

    def _tuple(self, node: Any) -> Any:
        return tuple(self._items(self._list(node, "a tuple")))

    def _dict(self, node: Any) -> Any:
        made: dict[Any, Any] = {}
        self._numbered.append(made)
        for pair in self._list(node, "a dict"):
            if not isinstance(pair, list) or len(pair) != 2:
                self._fail("a dict needs pairs of key and value")
            key = self(pair[0], "[key]")
            try:
                if key in made:
                    self._fail(f"the key {key!r:.40} is there twice")
            except TypeError:
                self._fail(f"a {type(key).__name__} cannot be a key")
            made[key] = self(pair[1], f"[{key!r:.40}]")
        return made

    def _set(self, node: Any) -> Any:
        made: set[Any] = set()
        self._numbered.append(made)
        try:
            made.update(self._items(self._list(node, "a set")))
        except TypeError:
            self._fail("an item cannot be in a set")
        return made

    def _shared(self, node: Any) -> Any:
        return self(self._storages.value(node))

    def _again(self, node: Any) -> Any:
        number = _natural(node)
        if number is None or number >= len(self._numbered):
            self._fail(f"{node!r:.40} is no earlier value")
        return self._numbered[number]

    def _fields(self, node: Any) -> RecordedObject:
        parts = self._object(node, "an object", "class", "kind", "fields")
        if parts["kind"] not in ("dataclass", "namedtuple", "module", "object"):
            self._fail(f"{str(parts['kind'])[:40]!r} is no kind of object")
        if not isinstance(parts["fields"], dict):
            self._fail("`fields` is not an object")
        made = RecordedObject(self._symbol(parts["class"]), parts["kind"], {})
        self._numbered.append(made)
        for name, item in parts["fields"].items():
            made.fields[name] = self(item, f".{name[:60]}")
        return made

    def _enum(self, node: Any) -> RecordedEnum:
        parts = self._object(node, "an enum", "class", "name")
        if not isinstance(parts["name"], str):
            self._fail("an enum member's name is not a string")
        return RecordedEnum(self._symbol(parts["class"]), parts["name"])

    def _method(self, node: Any) -> RecordedMethod:
        parts = self._object(node, "a method", "self", "name")
        if not isinstance(parts["name"], str):
            self._fail("a method's name is not a string")
        return RecordedMethod(self(parts["self"]), parts["name"])

    def _opaque(self, node: Any) -> Opaque:
        parts = self._object(node, "an opaque value", "class", "why")
        if not isinstance(parts["why"], str) or not isinstance(parts["class"], str):
            self._fail("an opaque value needs strings")
        return self._refused(Opaque(parts["class"][:500], parts["why"][:500]))

    def _refused(self, value: Opaque) -> Opaque:
        self.opaque.append(("".join(self._path), value))
        return value

    def _code(self, node: Any) -> RecordedSymbol:
        return RecordedSymbol(self._symbol(node))

    def _bytes(self, node: Any) -> bytes:
        try:
            return bytes.fromhex(node)
        except (TypeError, ValueError):
            self._fail("bytes need hexadecimal digits")

    def _complex(self, node: Any) -> complex:
        if not isinstance(node, list) or len(node) != 2:
            self._fail("a complex number needs two floats")
        real, imaginary = self(node[0]), self(node[1])
        if type(real) is not float or type(imaginary) is not float:
            self._fail("a complex number needs two floats")
        return complex(real, imaginary)

    def _three(self, make: type) -> Any:
        def read(node: Any) -> Any:
            parts = self._list(node, make.__name__)
            if len(parts) != 3 or any(type(n) not in (int, type(None)) for n in parts):
                self._fail(f"a {make.__name__} needs three integers")
            try:
                return make(*parts)
            except (TypeError, ValueError) as error:
                self._fail(f"no {make.__name__}: {error}")

        return read

    def _size(self, node: Any) -> Any:
        sizes = self._integers(node, "a size")
        if self._device is None:
            return sizes
        import torch

        if any(not -_MAX_SIZE <= n <= _MAX_SIZE for n in sizes):
            self._fail("a size is out of range")
        return torch.Size(sizes)

    def _torch_dtype(self, node: Any) -> Any:
        if not isinstance(node, str) or node not in _TORCH_ITEMSIZE:
            self._fail(f"{str(node)[:40]!r} is no known torch dtype")
        if self._device is None:
            return node
        import torch

        found = getattr(torch, node, None)
        if found is None:
            self._fail(f"this torch ({torch.__version__}) has no dtype {node}")
        return found

    def _numpy_dtype(self, node: Any) -> np.dtype[Any]:
        if not isinstance(node, str) or not _NUMPY_DTYPE.fullmatch(node):
            self._fail(f"{str(node)[:40]!r} is no known numpy dtype")
        try:
            return np.dtype(node)
        except TypeError:
            self._fail(f"this numpy has no dtype {node}")

    def _torch_device(self, node: Any) -> Any:
        if not isinstance(node, str) or not _DEVICE.fullmatch(node):
            self._fail(f"{str(node)[:40]!r} is no device")
        if self._device is None:
            return node
        import torch

        try:
            return torch.device("cpu" if node == "cpu" else self._device)
        except RuntimeError:
            self._fail(f"{self._device!r} is no device of this torch")

    def _scalar(self, node: Any) -> Any:
        parts = self._object(node, "a numpy scalar", "dtype", "bytes")
        dtype, data = self._numpy_dtype(parts["dtype"]), self._bytes(parts["bytes"])
        if len(data) != dtype.itemsize:
            self._fail(f"{len(data)} bytes for a numpy scalar of {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0]

    def _generator(self, node: Any) -> RecordedGenerator:
        made = generator(self._storages, node)
        self._numbered.append(made)
        return made

    def _extent(
        self, node: Any, what: str, itemsize: int, unit: int
    ) -> tuple[int, dict[str, Any], int, tuple[int, ...], tuple[int, ...]]:
        """(storage number, its entry, byte offset in the loaded memory, shape, strides), all checked."""
        entry = self._storages.entry(node["storage"])
        shape, strides = self._integers(node["shape"], "`shape`"), self._integers(node["strides"], "`strides`")
        offset = _natural(node["offset"])
        if len(shape) != len(strides) or len(shape) > _MAX_DIMENSIONS:
            self._fail(f"{what} of {len(shape)} axes with {len(strides)} strides")
        if offset is None or offset > _MAX_SIZE or any(not 0 <= n <= _MAX_SIZE for n in shape):
            self._fail(f"shape {shape!r:.80}, offset {node['offset']!r:.40} is out of range")
        if any(abs(stride) > _MAX_SIZE for stride in strides) or (unit != 1 and any(s < 0 for s in strides)):
            self._fail(f"strides {strides!r:.80} are out of range")
        if math.prod(shape) * itemsize > self._storages.max_bytes:
            self._fail(f"shape {shape!r:.80} is more than the {self._storages.max_bytes} bytes allowed")
        start = offset * unit - entry["start"]
        if 0 in shape:
            return node["storage"], entry, max(start, 0), shape, strides
        steps = [(n - 1) * stride * unit for n, stride in zip(shape, strides, strict=True)]
        first = start + sum(step for step in steps if step < 0)
        last = start + sum(step for step in steps if step > 0) + itemsize
        if first < 0 or last > entry["size"]:
            self._fail(f"{what} of shape {shape!r:.80} reaches outside its storage of {entry['size']} bytes")
        return node["storage"], entry, start, shape, strides

    def _loaded(self, number: int) -> Bytes:
        if number not in self._memory:
            self._memory[number] = self._storages.load(number)
        return self._memory[number]

    def _tensor(self, node: Any) -> Any:
        parts = self._object(node, "a tensor", "storage", "dtype", "offset", "shape", "strides")
        if not isinstance(parts["dtype"], str) or parts["dtype"] not in _TORCH_ITEMSIZE:
            self._fail(f"{str(parts['dtype'])[:40]!r} is no known torch dtype")
        itemsize = _TORCH_ITEMSIZE[parts["dtype"]]
        number, entry, start, shape, strides = self._extent(parts, "a tensor", itemsize, itemsize)
        if start % itemsize:
            self._fail("a tensor does not start at an element")
        if "omitted" in entry:
            return self._refused(Opaque("torch:Tensor", f"{entry['size']} bytes were left out"))
        if self._device is None:
            return None
        import torch

        dtype = self._torch_dtype(parts["dtype"])
        try:
            if number not in self._on_device:
                memory = torch.from_numpy(self._loaded(number))
                device = "cpu" if entry["device"] == "cpu" else self._device
                self._on_device[number] = memory.to(device).untyped_storage()
            storage = self._on_device[number]
            empty = torch.empty(0, dtype=dtype, device=storage.device)
            return empty.set_(storage, start // itemsize if 0 not in shape else 0, shape, strides)
        except RuntimeError as error:
            self._fail(f"a tensor that torch refuses: {str(error).splitlines()[0][:200]}")

    def _array(self, node: Any) -> Any:
        parts = self._object(node, "an array", "storage", "dtype", "offset", "shape", "strides")
        dtype = self._numpy_dtype(parts["dtype"])
        number, entry, start, shape, strides = self._extent(parts, "an array", dtype.itemsize, 1)
        if "omitted" in entry:
            return self._refused(Opaque("numpy:ndarray", f"{entry['size']} bytes were left out"))
        if self._device is None:
            return None
        try:
            return np.ndarray(shape, dtype, self._loaded(number).data, start if 0 not in shape else 0, strides)
        except (ValueError, TypeError) as error:
            self._fail(f"an array that numpy refuses: {error}")


def generator(storages: Storages, node: Any) -> RecordedGenerator:
    """A generator's node.

    Raises:
        CaptureError: it is not one.
    """
    if not isinstance(node, dict) or set(node) != {"index", "device", "seed", "offset", "state"}:
        storages.fail("a generator needs exactly index, device, seed, offset, state")
    if not isinstance(node["device"], str) or not _DEVICE.fullmatch(node["device"]):
        storages.fail(f"{str(node['device'])[:40]!r} is no device")
    if type(node["seed"]) is not int or _natural(node["index"]) is None:
        storages.fail("a generator's seed and index are integers")
    if node["offset"] is not None and _natural(node["offset"]) is None:
        storages.fail("a generator's offset is an integer")
    return RecordedGenerator(node["index"], node["device"], node["seed"], node["offset"], storages.state(node["state"]))


def rng_states(storages: Storages, node: Any) -> RngStates:
    """The process-wide generators of a record's `rng`.

    Raises:
        CaptureError: it does not have that form.
    """
    if not isinstance(node, dict) or set(node) != {"torch", "cuda", "numpy", "random"}:
        storages.fail("`rng` needs exactly torch, cuda, numpy, random")
    if not isinstance(node["cuda"], list):
        storages.fail("`rng.cuda` is not a list")
    cuda = {}
    for item in node["cuda"]:
        made = generator(storages, item)
        cuda[made.index] = made
    words = []
    for name in ("numpy", "random"):
        part = node[name]
        if not isinstance(part, dict) or set(part) != {"state", "position", "gauss"}:
            storages.fail(f"`rng.{name}` needs exactly state, position, gauss")
        state = storages.state(part["state"])
        position, gauss = _natural(part["position"]), part["gauss"]
        if len(state) != 4 * 624 or position is None or position > 624:
            storages.fail(f"`rng.{name}` is no state of a Mersenne Twister")
        if gauss is not None and type(gauss) is not float:
            storages.fail(f"`rng.{name}.gauss` is no float")
        words.append((np.frombuffer(state, "<u4").copy(), position, gauss))
    (numpy_words, numpy_position, numpy_gauss), (random_words, random_position, random_gauss) = words
    return RngStates(
        storages.state(node["torch"]),
        cuda,
        ("MT19937", numpy_words, numpy_position, int(numpy_gauss is not None), numpy_gauss or 0.0),
        (3, (*random_words.tolist(), random_position), random_gauss),
    )


def _is_reference(node: Any) -> bool:
    return isinstance(node, dict) and set(node) == {"value"}


def _natural(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_SIZE else None


_READERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "float": Decoder._float,
    "tuple": Decoder._tuple,
    "dict": Decoder._dict,
    "set": Decoder._set,
    "again": Decoder._again,
    "value": Decoder._shared,
    "object": Decoder._fields,
    "enum": Decoder._enum,
    "method": Decoder._method,
    "opaque": Decoder._opaque,
    "symbol": Decoder._code,
    "bytes": Decoder._bytes,
    "complex": Decoder._complex,
    "range": lambda decoder, node: decoder._three(range)(node),
    "slice": lambda decoder, node: decoder._three(slice)(node),
    "size": Decoder._size,
    "dtype": Decoder._torch_dtype,
    "numpy dtype": Decoder._numpy_dtype,
    "device": Decoder._torch_device,
    "scalar": Decoder._scalar,
    "generator": Decoder._generator,
    "tensor": Decoder._tensor,
    "ndarray": Decoder._array,
}
