"""What was recorded is what is read: every kind of value, with its strides, offsets and aliases."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from recorded_calls import Metadata, Mode, Pair, Slotted, TinySampler, tiny_capture

from difftest.call.freeze import Freezer
from difftest.errors import CaptureError, UsageError
from difftest.record.capture import Recorder
from difftest.record.format import (
    Opaque,
    RecordedCall,
    RecordedEnum,
    RecordedMethod,
    RecordedObject,
    RecordedSymbol,
    open_capture,
)


def recorded(path: Path, *args: Any, **kwargs: Any) -> RecordedCall:
    """The reading of a call with these arguments, which returns its positional ones."""
    recorder = Recorder(path)
    recorder.wrap(lambda *a, **_: a, "recorded_calls:function")(*args, **kwargs)
    recorder.close()
    (call,) = open_capture(path).calls(0)
    return call


PLAIN = [
    None,
    True,
    -3,
    2**200,
    -0.0,
    1e-310,
    math.inf,
    "tokens \u00e9 \udc80 \n",
    b"\x00\xff",
    complex(1.5, -0.0),
    [],
    [1, 2, 3],
    [1, True, None, 2.5, "x", [[]]],
    (1, (2, [3])),
    {},
    {1: "a", "1": [2], (3, 4): {"x": None}},
    {1, 2},
    range(1, 9, 2),
    slice(None, 3, None),
    torch.float8_e4m3fn,
    torch.Size([2, 3]),
    torch.device("cpu"),
    np.dtype("<f4"),
    np.int32(-7),
    np.float64(-0.0),
]


def test_plain_values_come_back_equal_by_type_and_bits(tmp_path: Path) -> None:
    read = recorded(tmp_path, *PLAIN).args
    for value, found in zip(PLAIN, read, strict=True):
        assert type(found) is type(value)
        assert repr(found) == repr(value)


def test_nan_payloads_survive(tmp_path: Path) -> None:
    value = np.array([0x7FF8DEADBEEF0001], np.uint64).view(np.float64)[0].item()
    assert Freezer()(recorded(tmp_path, value).args[0]) == Freezer()(value)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 7, 5000])
def test_tensors_of_every_dtype(tmp_path: Path, size: int) -> None:
    raw = torch.arange(size * 16, dtype=torch.int32).to(torch.uint8)
    tensors = [(raw & 1).bool()[:size] if dtype is torch.bool else raw.view(dtype)[:size].clone() for dtype in DTYPES]
    for value, found in zip(tensors, recorded(tmp_path, *tensors).args, strict=True):
        assert Freezer()(found) == Freezer()(value)


def layouts() -> list[torch.Tensor]:
    base = torch.arange(4000, dtype=torch.float32)
    return [
        base[100:200],
        base.view(40, 100)[3:9, 5:90:7],
        base.view(40, 100).t(),
        base[7].expand(5, 6),
        base.view(4, 10, 100).permute(2, 0, 1),
        base.as_strided((3, 3), (1, 1), 11),
        base[5:5].view(0, 1),
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.randn(3, 4, dtype=torch.complex64).conj(),
    ]


def test_strides_offsets_and_values_of_views(tmp_path: Path) -> None:
    values = layouts()
    for value, found in zip(values, recorded(tmp_path, *values).args, strict=True):
        assert found.shape == value.shape
        assert found.stride() == value.stride()
        assert Freezer()(found) == Freezer()(value.resolve_conj())  # values are recorded, not how they come to be


def test_views_share_memory_again_across_arguments_and_keywords(tmp_path: Path) -> None:
    base = torch.zeros(1000, dtype=torch.int32)
    array = base.numpy()[10:20]
    call = recorded(tmp_path, base[:500], [base[400:]], array, same=base[450:460].view(torch.int8))
    inputs = call.inputs()
    inputs.args[0][450] = 0x01020304
    assert inputs.args[1][0][50] == 0x01020304
    assert inputs.kwargs["same"][:4].tolist() == [4, 3, 2, 1]
    inputs.args[0][12] = 9
    assert inputs.args[2].tolist() == [0, 0, 9, 0, 0, 0, 0, 0, 0, 0]
    assert call.inputs().args[0][450] == 0, "each reading has its own memory"


def test_memory_that_is_not_shared_stays_apart(tmp_path: Path) -> None:
    first, second = recorded(tmp_path, torch.zeros(2000), torch.zeros(2000)).inputs().args
    first.fill_(1)
    assert second.sum() == 0


def test_only_the_reached_part_of_a_storage_is_kept(tmp_path: Path) -> None:
    value = torch.arange(1_000_000)[500_003:500_103]
    call = recorded(tmp_path, value)
    assert torch.equal(call.args[0], value)
    assert call.size < 2000


@pytest.mark.parametrize("dtype", ["|b1", "|u1", "<i4", ">i4", "<f2", "<f8", "<c16"])
def test_arrays_with_their_byte_strides(tmp_path: Path, dtype: str) -> None:
    base = np.arange(600).astype(dtype).reshape(20, 30)
    values = [base, base.T, base[::-1, ::3], base[4:4], base[2], np.array(5).astype(dtype)]
    for value, found in zip(values, recorded(tmp_path, *values).args, strict=True):
        assert found.dtype == value.dtype and found.shape == value.shape
        assert not value.size or found.strides == value.strides
        assert found.tobytes() == value.tobytes()


def test_the_same_object_is_the_same_object_again(tmp_path: Path) -> None:
    row = [1, 2]
    table: dict[str, Any] = {"a": row, "b": row}
    table["self"] = table
    read, other = recorded(tmp_path, table, row).args
    assert read["a"] is read["b"] is other
    assert read["self"] is read


def test_an_object_that_cannot_be_recorded_does_not_shift_the_count_of_others(tmp_path: Path) -> None:
    row = [1]
    holder = Slotted([[2], [3], object()])
    call = recorded(tmp_path, iter([]), holder, row, row)
    assert call.args[2] == [1] and call.args[2] is not None
    inputs = call.inputs()
    assert inputs.args[2] is inputs.args[3]


def test_objects_are_class_and_fields(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    state = generator.get_state()
    metadata = Metadata(torch.ones(2), {1: generator}, [[1], []])
    call = recorded(tmp_path, metadata, Pair(1, [2]), Mode.RAW, TinySampler(), len, Metadata, generator.seed)
    first, pair, mode, module, function, kind, method = call.args
    assert (first.symbol, first.kind) == ("recorded_calls:Metadata", "dataclass")
    assert first.fields["output_token_ids"] == [[1], []]
    assert first.fields["longest"] == 1, "what __post_init__ set is state too"
    assert first.fields["mode"] == RecordedEnum("recorded_calls:Mode", "RAW") == mode
    found = first.fields["generators"][1]
    assert (found.device, found.seed, found.offset) == ("cpu", 5, None)
    assert torch.equal(found.make().get_state(), state)
    assert pair == RecordedObject("recorded_calls:Pair", "namedtuple", {"ids": 1, "ranks": [2]})
    assert module.kind == "module" and module.symbol == "recorded_calls:TinySampler"
    assert module.fields["scale"].tolist() == [2.0]
    assert module.fields["inner"].symbol == "torch.nn.modules.linear:Identity"
    assert isinstance(module.fields["select"], RecordedMethod)
    assert module.fields["select"].owner is module and module.fields["select"].name == "greedy"
    assert module.fields["states"].fields["seeds"].tolist() == [0, 1, 2]
    assert "_forward_hooks" not in module.fields
    assert function == RecordedSymbol("builtins:len")
    assert kind == RecordedSymbol("recorded_calls:Metadata")
    assert method.name == "seed"
    assert call.opaque == ()


def test_what_cannot_be_recorded_is_named(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    values = [
        iter([1]),
        np.array([{}], object),
        torch.ones(2, 2).to_sparse(),
        torch.empty(3, device="meta"),
        Path("x"),
        {"deep": deep},
        OrderedDict(a=1),
    ]
    call = recorded(tmp_path, *values)
    assert [isinstance(value, Opaque) for value in call.args] == [True, True, True, True, True, False, False]
    assert call.args[6] == {"a": 1}
    places = [place for place, _ in call.opaque]
    assert places[:5] == ["args[0]", "args[1]", "args[2]", "args[3]", "args[4]"]
    assert places[5].startswith("args[5]['deep'][0][0]")


def test_outputs_name_the_inputs_they_share_memory_with(tmp_path: Path) -> None:
    value = torch.zeros(3000)
    call = recorded(tmp_path, torch.ones(2000), value)
    assert call.shared_with_inputs == {0: 0, 1: 1}


def test_states_of_every_generator_before_and_after(tmp_path: Path) -> None:
    forward, inner = open_capture(tiny_capture(tmp_path, steps=1)).calls("rank-0")
    before, after = forward.rng_before, forward.rng_after
    assert after is not None and after.torch_cpu != before.torch_cpu
    np.random.seed(2)
    start = np.random.get_state()
    np.random.set_state(before.numpy_state)
    assert repr(np.random.get_state()) == repr(start)
    np.random.random()
    assert np.random.get_state()[1].tobytes() == after.numpy_state[1].tobytes()
    assert after.numpy_state[2] == np.random.get_state()[2]
    assert inner.rng_before.random_state == before.random_state
    states = forward.generators_after
    assert states is not None and set(states) == {0, 1}
    generators = forward.inputs().args[2].fields["generators"]
    for generator in generators.values():
        made = generator.make()
        torch.rand(40, generator=made)
        assert made.get_state().numpy().tobytes() == states[generator.index].state


def test_large_parts_that_stay_the_same_are_written_once(tmp_path: Path) -> None:
    state = {"fixed": [Metadata(i, {}, [[i]]) for i in range(20)], "moves": 0}
    recorder = Recorder(tmp_path)
    function = recorder.wrap(lambda x: None, "recorded_calls:function")
    for step in range(10):
        state["moves"] = step
        function(state)
    recorder.close()
    sizes = [len(line) for line in (tmp_path / "rank-0/manifest.jsonl").read_bytes().splitlines()]
    assert sum(sizes) < 12 * max(sizes)
    for step, call in enumerate(open_capture(tmp_path).calls(0)):
        (read,) = call.args
        assert read["moves"] == step
        assert [item.fields["output_token_ids"] for item in read["fixed"]] == [[[i]] for i in range(20)]


def test_identical_content_is_one_blob(tmp_path: Path) -> None:
    value = torch.arange(5000)
    recorded(tmp_path, value, value.clone(), [value.clone()])
    large = [path for path in (tmp_path / "blobs").iterdir() if path.stat().st_size > 20_000]
    assert len(large) == 1


def test_a_blob_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    value = torch.arange(5000)
    recorded(tmp_path, value)
    contents = [load_file(path) for path in (tmp_path / "blobs").iterdir()]
    assert all(set(content) == {"data"} and content["data"].dtype == np.uint8 for content in contents)
    assert value.numpy().tobytes() in [content["data"].tobytes() for content in contents]


def test_every_line_follows_the_published_schema(tmp_path: Path) -> None:
    tiny_capture(tmp_path / "tiny", max_calls=2)
    values = [*PLAIN, *layouts(), Metadata(1, {}, []), TinySampler(), iter([]), math.nan, np.zeros(3)]
    recorded(tmp_path / "values", *values)
    schema = json.loads((Path(__file__).parents[2] / "difftest/schema/capture.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    kinds = set()
    for manifest in tmp_path.rglob("manifest.jsonl"):
        for line in manifest.read_text().splitlines():
            record = json.loads(line)
            kinds.add(record["record"])
            assert [error.message for error in validator.iter_errors(record)] == []
    assert kinds == {"open", "value", "begin", "end", "note", "close"}


def test_reading_up_to_the_tensors_needs_no_torch(tmp_path: Path) -> None:
    tiny_capture(tmp_path)
    code = (
        "import sys; from difftest.record.format import open_capture; from difftest.record.command import show\n"
        f"calls = list(open_capture({str(tmp_path)!r}).calls(0))\n"
        f"assert len(show({str(tmp_path)!r}).calls) == 4 and calls[0].opaque == ()\n"
        "assert calls[1].rng_after is not None\n"
        "assert 'torch' not in sys.modules\n"
        "calls[0].args; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_call_says_where_it_was_made(tmp_path: Path) -> None:
    capture = open_capture(tiny_capture(tmp_path))
    calls = list(capture.calls(0))
    assert [(call.number, call.parent, call.step) for call in calls] == [
        (0, None, 0),
        (1, 0, 0),
        (2, None, 1),
        (3, 2, 1),
    ]
    assert calls[0].site == "recorded_calls:Sampler.forward"
    assert calls[0].request_ids == ("request 0", "request 1", "request 2")
    assert calls[0].environment["versions"]["torch"] == torch.__version__
    assert calls[0].kwargs == {"top": 0}
    assert capture.ranks[0].incomplete == ""
    with pytest.raises(UsageError, match="no rank 7"):
        list(capture.calls(7))


def test_a_recording_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    manifest = tiny_capture(tmp_path) / "rank-0/manifest.jsonl"
    whole = manifest.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(whole) if b'"record":"end"' in line)
    manifest.write_bytes(b"".join(whole[: end + 1]) + whole[end + 1][:100])
    (rank,) = open_capture(tmp_path).ranks
    assert (rank.calls, rank.complete, rank.closed) == (2, 1, None)
    assert rank.incomplete == "the last line is torn; the recording was cut off; 1 of 2 calls did not end"
    outer, inner = open_capture(tmp_path).calls(0)
    assert (outer.complete, inner.complete) == (False, True)
    assert outer.inputs().args[1].shape == (3, 40)
    assert outer.rng_after is None and outer.generators_after is None
    with pytest.raises(CaptureError, match=r"manifest\.jsonl: line \d+: the call did not end"):
        outer.output()


def test_no_capture_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no capture"):
        open_capture(tmp_path)
    with pytest.raises(CaptureError, match="cannot be read"):
        open_capture(tmp_path / "missing")
