"""Features of the user's data, computed with a network."""

from __future__ import annotations

import errno
import json
import os
import socket
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from mnar.datasets.user_files import read_data
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.sample_blocks import open_samples
from mnar.trained.embed import write_features
from mnar.trained.embed.network import make_network, without_downloads
from mnar.trained.embed.outputs import features_function, rows_of
from mnar.trained.embed.record import record_path
from mnar.trained.embed.scaling import IMAGENET, channels_of, choose_scaling
from tests.datasets.user_files.test_huggingface import PIXELS, StandIn, images
from tests.datasets.user_files.test_huggingface import Image as HuggingFaceImage
from tests.support.own_data_files import write_images, write_table

NETWORK = """
import torch
from torch import nn
import beside


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, beside.NUM_FEATURES))


def colour():
    return nn.Conv2d(3, 2, 1)


def broken():
    raise RuntimeError("no such thing")


def online():
    import urllib.request

    urllib.request.urlopen("http://example.org/weights.pt")


class Infinite(nn.Module):
    def forward(self, x):
        return x.mean((1, 2, 3))[:, None].log() * float("inf")


class Stops(nn.Module):
    def forward(self, x):
        raise SystemExit("bye")


def leaves():
    raise SystemExit(3)


class Empty(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :0]


columns = nn.Identity()
not_a_network = 5
"""


@pytest.fixture
def network_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my_network.py").write_text(NETWORK)
    (folder / "beside.py").write_text("NUM_FEATURES = 3\n")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return str(folder / "my_network.py")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos")


def expected_features(network: nn.Module, x: Any, mean: Tensor, std: Tensor) -> Any:
    """The oracle: one sample after another, in plain torch."""
    with torch.no_grad():
        rows = [network(((torch.from_numpy(image) / 255 - mean) / std)[None])[0] for image in x]
    return torch.stack(rows).numpy()


def test_the_features_equal_a_plain_loop_over_the_samples_in_the_order_of_the_data(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    (photos / "020.png").write_bytes(b"damaged")
    out = tmp_path / "features.npy"
    done: list[int] = []
    result = write_features(
        photos, out, model=f"{network_file}:make", batch=7, on_rows=lambda rows, total: done.append(rows)
    )
    data = read_data(photos)
    assert (result.num_rows, result.num_features, done[-1]) == (len(data.y), 3, 35), "one image cannot be read"
    x = np.array(data.x)
    mean, std = (x / 255).mean(), (x / 255).std()
    network = make_network(f"{network_file}:make")
    expected = expected_features(network, x, torch.tensor(mean), torch.tensor(std))
    assert np.load(out) == pytest.approx(expected, abs=1e-5)
    assert read_data(photos, features=out).x == pytest.approx(expected, abs=1e-5)
    assert not list(tmp_path.glob("*.part"))


def test_grey_images_are_repeated_for_a_network_of_colours_and_scaled_as_for_imagenet(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "features.npy"
    result = write_features(photos, out, model=f"{network_file}:colour", weights=_weights(tmp_path))
    x = torch.from_numpy(np.array(read_data(photos).x)) / 255
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in IMAGENET)
    scaled = ((x.expand(-1, 3, -1, -1) - mean) / std).mean((2, 3))
    assert np.load(out) == pytest.approx((scaled @ torch.tensor([[1.0, 0, 2], [0, 1, 0]]).T).numpy(), abs=1e-5)
    assert "ImageNet" in result.scaling.reason


def _weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    weight = torch.tensor([[1.0, 0, 2], [0, 1, 0]])[:, :, None, None].contiguous()
    save_file({"weight": weight, "bias": torch.zeros(2)}, path)
    return path


def test_a_table_gives_its_encoded_columns_to_the_network(network_file: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    out = tmp_path / "features.npy"
    write_features(table, out, model=f"{network_file}:columns", reading={"label": "kind"})
    features = np.load(out)
    assert features.shape[0] == 150
    assert features.mean(0) == pytest.approx(0, abs=1e-5), "standardised"
    weight = np.loadtxt(table, delimiter=",", skiprows=1, usecols=0)
    correlation = np.corrcoef(features[:, 0], weight)[0, 1]
    assert correlation == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("my_network.py", "give MODULE:FACTORY"),
        ("nowhere.py:make", "which does not exist"),
        ("no_such_module:make", r"cannot be imported \(ModuleNotFoundError"),
        ("{}:absent", "has no absent; name a function"),
        ("{}:broken", r"broken\(\) failed with RuntimeError: no such thing"),
        ("{}:online", "mnar features downloads nothing, and the network asked for example.org"),
        ("{}:not_a_network", "makes int; return an nn.Module"),
        ("{}:Infinite", r"values for 000.png that are not finite"),
        ("{}:leaves", r"leaves\(\) failed with SystemExit: 3"),
        ("{}:Stops", r"cannot take samples of shape .*SystemExit: bye"),
        ("{}:Empty", "has no features"),
        ("torch.nn:Flatten.forward", "failed with TypeError"),
    ],
)
def test_a_model_that_cannot_be_used_is_an_error_with_a_remedy_and_no_file(
    network_file: str, photos: Path, tmp_path: Path, model: str, message: str
) -> None:
    out = tmp_path / "features.npy"
    with pytest.raises((ValueError, OSError), match=message):
        write_features(photos, out, model=model.format(network_file))
    assert not list(tmp_path.glob("features.npy*"))


def test_images_that_do_not_fit_the_network_are_an_error(network_file: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot take samples of shape \(1, 12, 12\).*--size"):
        write_features(photos, tmp_path / "f.npy", model=f"{network_file}:make", reading={"size": 12})
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(photos / "000.png")
    with pytest.raises(ValueError, match="takes images with 1 channels, but the data have 3"):
        write_features(photos, tmp_path / "f.npy", model=f"{network_file}:make")


def test_weights_are_loaded_from_a_state_dict_and_never_unpickled(tmp_path: Path, network_file: str) -> None:
    network = make_network(f"{network_file}:make")
    changed = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    torch.save({"state_dict": changed, "epoch": 3}, tmp_path / "w.pt")
    loaded = make_network(f"{network_file}:make", tmp_path / "w.pt").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in changed.items())
    torch.save(_Evil(tmp_path / "was_run"), tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="Files with other Python objects are refused"):
        make_network(f"{network_file}:make", tmp_path / "evil.pt")
    assert not (tmp_path / "was_run").exists()


class _Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_weights_that_do_not_fit_or_are_damaged_are_an_error(tmp_path: Path, network_file: str) -> None:
    save_file({"0.weight": torch.zeros(4, 3, 3, 3), "other": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"do not fit the network: 0.bias is missing, .* and \d more"):
        make_network(f"{network_file}:make", tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"no complete \.safetensors file"):
        make_network(f"{network_file}:make", tmp_path / "w.safetensors")
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(ValueError, match="holds no state_dict"):
        make_network(f"{network_file}:make", tmp_path / "w.pt")
    with pytest.raises(FileNotFoundError, match="no weights at"):
        make_network(f"{network_file}:make", tmp_path / "none.pt")


def test_a_file_that_is_no_state_dict_gets_our_remedy_and_not_the_advice_of_torch(
    tmp_path: Path, network_file: str
) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    for path in (Path(network_file), tmp_path / "whole.pt"):
        with pytest.raises(ValueError, match=r"is no state_dict of tensors; save the weights as safetensors") as caught:
            make_network(f"{network_file}:make", path)
        assert "weights_only" not in str(caught.value)


def test_the_internet_is_out_of_reach_only_within_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    before = socket.getaddrinfo
    with without_downloads():
        assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
        with pytest.raises(OSError, match="downloads nothing"):
            socket.create_connection(("example.org", 80))
    assert socket.getaddrinfo is before
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert "TRANSFORMERS_OFFLINE" not in os.environ


MAPS = torch.arange(48.0).view(2, 3, 2, 4)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (MAPS, MAPS.mean((2, 3))),
        (MAPS[:, :, 0], MAPS[:, :, 0].mean(1)),
        (MAPS[:, :, 0, 0], MAPS[:, :, 0, 0]),
        ((MAPS[:, :, 0, 0], "attention"), MAPS[:, :, 0, 0]),
        ({"last_hidden_state": MAPS[:, :, 0], "pooler_output": MAPS[:, 0, 0]}, MAPS[:, 0, 0]),
        (SimpleNamespace(last_hidden_state=MAPS[:, :, 0], pooler_output=None), MAPS[:, :, 0].mean(1)),
        ({"out": MAPS[:, :, 0, 0]}, MAPS[:, :, 0, 0]),
        (MAPS[:, :, 0, 0].half(), MAPS[:, :, 0, 0]),
    ],
)
def test_outputs_of_many_kinds_become_rows(output: Any, expected: Tensor) -> None:
    rows = rows_of(output, 2)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, expected)


@pytest.mark.parametrize("output", [torch.zeros(2), torch.zeros(3, 4), "text", None, {}])
def test_outputs_without_a_row_per_sample_are_an_error(output: Any) -> None:
    with pytest.raises(ValueError, match="the network returns"):
        rows_of(output, 2)


def test_the_part_called_features_is_used_if_there_is_one() -> None:
    network = nn.Sequential()
    network.add_module("features", nn.Flatten())
    assert features_function(network) is network.features
    assert features_function(nn.Flatten()).__class__ is nn.Flatten


def test_the_scaling_of_a_model_file_of_mnar_is_used(finished_run: Path) -> None:
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    stored = choose_scaling("auto", x, 1, weights=finished_run / "model.safetensors")
    assert "model.safetensors" in stored.reason
    assert stored.mean != (0.0,)
    assert choose_scaling("none", x, 1).apply(x + 255, 1).max() == 1
    assert choose_scaling("auto", x, 1, mean=[0.5], std=[2.0]).apply(x, 1).min() == -0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5]}, "--mean and --std belong together"),
        ({"mean": [0.5, 0.5], "std": [1.0, 1.0]}, "2 numbers for the mean, but 1 channels"),
        ({"mean": [0.5], "std": [0.0]}, "give positive numbers"),
        ({"scale": "imagenet"}, "--scale imagenet is for networks that take images with three channels"),
    ],
)
def test_a_scaling_that_does_not_fit_is_an_error(options: dict[str, Any], message: str) -> None:
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        choose_scaling(options.pop("scale", "auto"), x, channels_of(nn.Flatten(), x), **options)


def test_a_full_disk_leaves_no_file_and_the_call_can_be_repeated(
    network_file: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, straight, model = tmp_path / "features.npy", tmp_path / "straight.npy", f"{network_file}:make"
    write_features(photos, straight, model=model)
    flush = os.fsync

    def full_after_some_rows(descriptor: int) -> None:
        is_part_file = Path(f"/proc/self/fd/{descriptor}").readlink().name == "features.npy.part"
        if is_part_file and os.fstat(descriptor).st_size > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", full_after_some_rows)
        with pytest.raises(OSError, match="No space left") as caught:
            write_features(photos, out, model=model)
    assert str(out) in str(caught.value.filename)
    assert not out.exists()
    write_features(photos, out, model=model)
    assert out.read_bytes() == straight.read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_samples_that_changed_at_any_place_or_became_more_start_anew(
    network_file: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples count, although the checksum by which `mnar train` knows its data reads a part of many samples."""
    monkeypatch.setattr(import_module("mnar.datasets.own_data"), "MAX_HASHED_BYTES", 64)
    x = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    file, out, straight = tmp_path / "images.npz", tmp_path / "features.npy", tmp_path / "straight.npy"
    changed = x.copy()
    changed[150] += 1
    for others in (changed, np.concatenate([x, x[:1]]), x[:-1]):
        np.savez(file, x=x)
        write_until(64, file, out, f"{network_file}:make")
        np.savez(file, x=others)
        write_features(file, out, model=f"{network_file}:make", batch=8)
        write_features(file, straight, model=f"{network_file}:make", batch=8, overwrite=True)
        assert out.read_bytes() == straight.read_bytes()
        out.unlink()


class Stopped(Exception):
    """Stands for whatever ends the process."""


def write_until(num_rows: int, photos: Path, out: Path, model: str, **options: Any) -> None:
    """Compute features in batches of eight, and stop when `num_rows` of the 36 rows are complete."""

    def stop(done: int, total: int) -> None:
        if done >= num_rows:
            raise Stopped

    with pytest.raises(Stopped):
        write_features(photos, out, model=model, batch=8, on_rows=stop, **options)


def test_a_stopped_command_continues_to_the_same_bytes_and_computes_no_row_twice(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    out, straight, model = tmp_path / "features.npy", tmp_path / "straight.npy", f"{network_file}:make"
    write_features(photos, straight, model=model, batch=8)
    write_until(24, photos, out, model)
    assert not out.exists()
    computed = list[int]()
    embedded = write_features(photos, out, model=model, batch=8, on_rows=lambda done, total: computed.append(done))
    assert computed == [24, 32, 36]  # the batch whose progress was being reported was not written yet
    assert (embedded.num_rows, embedded.num_features) == (36, 3)
    assert out.read_bytes() == straight.read_bytes()
    assert record_path(out).read_bytes() == record_path(straight).read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_rows_of_another_network_or_of_other_data_are_not_continued(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    out, straight, model = tmp_path / "features.npy", tmp_path / "straight.npy", f"{network_file}:make"
    write_until(24, photos, out, model)
    Path(network_file).write_text(NETWORK + "# another pooling\n")
    with pytest.raises(FileExistsError, match=r"other settings \(code\); .*--overwrite"):
        write_features(photos, out, model=model)
    Path(network_file).write_text(NETWORK)
    Image.new("L", (8, 8), 77).save(photos / "000.png")
    write_features(photos, out, model=model, batch=8)
    write_features(photos, straight, model=model, batch=8)
    assert out.read_bytes() == straight.read_bytes()


def unlabeled_sources(photos: Path, tmp_path: Path) -> dict[str, Path]:
    """The same images as in `photos`, without labels, in each form that new images may have."""
    plain, in_folder, listed = (tmp_path / name for name in ("plain", "in_folder", "listed"))
    for folder in (plain, in_folder / "unlabeled", listed):
        folder.mkdir(parents=True)
        for image in photos.glob("*.png"):
            (folder / image.name).write_bytes(image.read_bytes())
    names = sorted(image.name for image in photos.glob("*.png"))
    (listed / "new.csv").write_text("\n".join(["path", *reversed(names)]) + "\n")
    return {"plain": plain, "in_folder": in_folder, "listed": listed, "csv": listed / "new.csv"}


def test_images_without_labels_have_the_features_of_the_same_images_with_labels(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    (photos / "020.png").write_bytes(b"damaged")
    write_features(photos, tmp_path / "labeled.npy", model=f"{network_file}:make")
    expected = np.load(tmp_path / "labeled.npy")
    for name, source in unlabeled_sources(photos, tmp_path).items():
        out = tmp_path / f"{name}.npy"
        result = write_features(source, out, model=f"{network_file}:make")
        np.testing.assert_array_equal(np.load(out), expected, err_msg=name)
        assert any("020.png" in note for note in result.notes), "the image that is left out is named"
        opened = open_samples(source, ModelInputs((3,), ("a", "b")), features=out)
        (block,) = opened.blocks()
        prefix = "unlabeled/" if name == "in_folder" else ""
        kept = [f"{number:03}.png" for number in range(36) if number != 20]
        assert list(block.names) == [prefix + image for image in kept]
        np.testing.assert_array_equal(block.x, expected)


def test_new_images_take_the_scaling_and_the_size_of_earlier_ones(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    """The oracle is the file of all images: an image has the same features alone, also if it is plain and enlarged."""
    model, old = f"{network_file}:make", tmp_path / "old.npy"
    Image.fromarray(np.full((8, 8), 30, np.uint8)).save(photos / "000.png")
    write_features(photos, old, model=model)
    new = tmp_path / "new"
    new.mkdir()
    Image.fromarray(np.full((16, 16), 30, np.uint8)).save(new / "large.png")
    result = write_features(new, tmp_path / "new.npy", model=model, like=old)
    assert list(result.scaling.mean) == json.loads((tmp_path / "old.npy.json").read_text())["mean"]
    assert np.load(tmp_path / "new.npy")[0] == pytest.approx(np.load(old)[0], abs=1e-5)
    write_features(photos / "001.png", tmp_path / "one.npy", model=model, like=old)
    assert np.load(tmp_path / "one.npy")[0] == pytest.approx(np.load(old)[1], abs=1e-5)
    write_features(photos / "001.png", tmp_path / "unlike.npy", model=model)
    assert np.load(tmp_path / "unlike.npy")[0] != pytest.approx(np.load(old)[1], abs=0.1), "scaled with its own numbers"


def test_new_rows_of_a_table_take_the_encoding_and_scaling_of_earlier_ones(network_file: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    old, model = tmp_path / "old.npy", f"{network_file}:columns"
    write_features(table, old, model=model, reading={"label": "kind"})
    lines = table.read_text().splitlines()
    new = tmp_path / "new.csv"
    new.write_text("\n".join(line.rpartition(",")[0] for line in [lines[0], *lines[20:31]]) + "\n")
    write_features(new, tmp_path / "new.npy", model=model, like=old)
    np.testing.assert_allclose(np.load(tmp_path / "new.npy"), np.load(old)[19:30], atol=1e-6)
    opened = open_samples(new, ModelInputs((4,), ("a", "b")), features=tmp_path / "new.npy")
    assert list(next(iter(opened.blocks())).names) == [f"line {number}" for number in range(2, 13)]
    with pytest.raises(ValueError, match=r"--label.*--like"):
        write_features(new, tmp_path / "other.npy", model=model)
    with pytest.raises(ValueError, match=r"has 150 rows, but .*new\.csv has 11 samples"):
        open_samples(new, ModelInputs((4,), ("a", "b")), features=old)


@pytest.mark.parametrize("arrays", [{}, {"y": np.full(5, -1)}])
def test_arrays_need_no_labels(network_file: str, tmp_path: Path, arrays: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x, **arrays)
    np.save(tmp_path / "x.npy", x)
    for source in (tmp_path / "new.npz", tmp_path / "x.npy"):
        write_features(source, tmp_path / "f.npy", model=f"{network_file}:columns", scale="none", overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), x)


def test_like_refuses_another_network_other_options_and_a_lost_record(
    network_file: str, photos: Path, tmp_path: Path
) -> None:
    old, out = tmp_path / "old.npy", tmp_path / "new.npy"
    write_features(photos, old, model=f"{network_file}:make")
    for options, message in (
        ({"model": f"{network_file}:colour"}, "other weights than the network of"),
        ({"reading": {"size": 16}}, "leave out --size, --scale"),
        ({"scale": "data"}, "leave out --size, --scale"),
        ({"like": tmp_path / "none.npy"}, "there is no .*none.npy.json"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            write_features(photos, out, **{"model": f"{network_file}:make", "like": old, **options})
    (tmp_path / "old.npy.json").write_text("{}")
    with pytest.raises(ValueError, match="was not written by this version"):
        write_features(photos, out, model=f"{network_file}:make", like=old)
    assert not out.exists()


def test_hugging_face_data_sets_need_no_labels(
    network_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is optional, so a stand-in takes its place."""
    folder, model = tmp_path / "saved", f"{network_file}:columns"
    folder.mkdir()
    (folder / "dataset_info.json").touch()
    sets: list[Any] = [
        StandIn({"image": images().columns["image"]}, image=HuggingFaceImage()),
        StandIn({"a": [1.0, 2, 3, 6], "label": ["x", "y", "x", None]}),
        StandIn({"a": [6.0, 2]}),
    ]
    monkeypatch.setattr("mnar.datasets.user_files.huggingface._from_disk", lambda _: sets[0])
    write_features(folder, tmp_path / "images.npy", model=model, scale="none")
    assert np.load(tmp_path / "images.npy") == pytest.approx(PIXELS.mean((1, 2)) / 255, abs=1e-5)
    sets.pop(0)
    write_features(folder, tmp_path / "old.npy", model=model)
    sets.pop(0)
    write_features(folder, tmp_path / "new.npy", model=model, like=tmp_path / "old.npy")
    assert np.load(tmp_path / "new.npy") == pytest.approx(np.load(tmp_path / "old.npy")[[3, 1]])
