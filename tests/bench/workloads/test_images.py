"""The image classifiers: their sizes, and data read from small files in the format of the real ones."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.support import image_files
from workflow.bench import workloads
from workflow.bench.data import cifar, digits, glyphs, imagenet, images, vision
from workflow.bench.data.batches import tuning_split
from workflow.bench.data.folder import DataDamaged, DataNotFound
from workflow.bench.data.images import ALL
from workflow.bench.support.config import ROOT
from workflow.bench.workloads.base import Workload
from workflow.bench.workloads.image_classifier import ImageClassifier
from workflow.bench.workloads.resnet20 import ResidualBlock


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch) -> Path:
    """An empty data folder for each test."""
    folder = tmp_path / "data"
    monkeypatch.setenv("MKOR_DATA", str(folder))
    return folder


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Sizes


@pytest.mark.parametrize(
    ("name", "given", "model", "data", "millions"),
    [
        ("alexnet", {"dataset": "cifar100", "channels": 64, "hidden": 4096}, "", "CIFAR-100", 20.495),
        ("resnet50", {}, "ResNet-50", "ImageNet", 25.557),
        ("resnet50", {"dataset": "cifar10", "image_size": 32}, "ResNet-50", "CIFAR-10", 23.529),
        ("resnet20", {"dataset": "cifar10", "width": 16, "image_size": 32}, "ResNet-20", "CIFAR-10", 0.2697),
        ("resnet20", {}, "ResNet-20, width 8", "scikit-learn's digits, at 16 x 16", 0.0679),
        ("resnet20", {"dataset": "glyphs"}, "ResNet-20, width 8", "glyphs of matplotlib's fonts, at 16 x 16", 0.07088),
        ("alexnet", {}, ", 16 channels, 128 hidden", "scikit-learn's digits, at 32 x 32", 0.1671),
    ],
)
def test_models_have_their_published_size_and_one_output_for_each_class(name, given, model, data, millions):
    """Truth: the papers' numbers of parameters. No data is needed."""
    with torch.device("meta"):
        network = workloads.architecture(name, **given)
    assert parameters_of(network) / 1e6 == pytest.approx(millions, rel=1e-3)
    assert next(network.parameters()).is_meta
    assert workloads.display_names(name, **given) == ("AlexNet for 32 x 32" * (name == "alexnet") + model, data)
    facts = images.FACTS[workloads.resolve(name, **given)["dataset"]]
    assert network(torch.empty(2, facts.channels, 32, 32, device="meta")).shape == (2, facts.classes)


def test_resnet20_has_nineteen_convolutions_and_halves_twice():
    model = workloads.architecture("resnet20", width=16)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 19
    assert [module.out_channels for module in convolutions if module.stride == (2, 2)] == [32, 64]
    assert model[:-3](torch.randn(1, 1, 32, 32)).shape == (1, 64, 8, 8)


def test_a_shortcut_keeps_its_input_if_the_residual_is_zero():
    """Truth: relu of the input, or of every second pixel of it with channels of zeros added."""
    inputs = torch.randn(2, 4, 6, 6)
    for after in (4, 8):
        block = ResidualBlock(4, after)
        nn.init.zeros_(block.norm2.weight)
        outputs = block(inputs)
        kept = inputs if after == 4 else inputs[:, :, ::2, ::2]
        assert_close(outputs[:, :4], kept.relu())
        assert not outputs[:, 4:].any()


def test_the_signal_of_a_new_alexnet_reaches_its_last_layer():
    """He's initialization keeps the scale; PyTorch's default loses it, and does not train."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 1, 32, 32)
    model = workloads.architecture("alexnet")
    scale = model(inputs).std().item()
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    assert 0.1 < scale < 10
    assert model(inputs).std().item() < 0.05 * scale


# The digits, as classes


def test_digits_are_split_without_overlap_and_with_every_digit():
    """Truth: scikit-learn's images and targets; the images are distinct, so their bytes identify them."""
    from sklearn.datasets import load_digits

    both = load_digits()
    label = {image.tobytes(): target for image, target in zip(both.data, both.target, strict=True)}
    rows = [[(row * 16).astype(float).tobytes() for row in part.reshape(-1, 64)] for part in digits.load()]
    assert [len(part) for part in rows] == [1437, 360]
    assert sorted(rows[0] + rows[1]) == sorted(label)
    for part, labels in zip(rows, digits.labels(), strict=True):
        assert [label[row] for row in part] == labels.tolist()
    assert np.bincount(digits.labels()[1]).min() > 20, "an even stride would contain two digits only"


def test_the_digits_fingerprint_follows_every_pixel_and_the_split():
    data = digits.load()
    assert data.fingerprint == digits.load().fingerprint
    changed = digits.Digits(data.train.copy(), data.validation)
    changed.train[7, 3, 3] += 1 / 16
    moved = digits.Digits(data.train[:-1], np.concatenate([data.train[-1:], data.validation]))
    assert len({data.fingerprint, changed.fingerprint, moved.fingerprint}) == 3


def test_enlarged_digits_are_interpolated_digits():
    workload = workloads.create("resnet20", image_size=16, batch_size=1437)
    batch = next(workload.batches(0))
    assert batch["images"].shape == (1437, 1, 16, 16)
    assert batch["images"].dtype == torch.float32
    enlarged = {
        image.numpy().tobytes(): int(label) for image, label in zip(batch["images"], batch["labels"], strict=True)
    }
    pixels, labels = digits.load().train, digits.labels()[0]
    wide = functional.interpolate(torch.from_numpy(pixels)[:, None], scale_factor=2, mode="bilinear")
    assert enlarged == {image.numpy().tobytes(): label for image, label in zip(wide, labels.tolist(), strict=True)}


@pytest.mark.parametrize(("dataset", "size"), [("digits", 8), ("glyphs", 32)])
def test_inputs_are_standardized(dataset, size):
    workload = workloads.create("resnet20", dataset=dataset, image_size=size, width=1)
    assert isinstance(workload, ImageClassifier)
    inputs = workload._standardize(torch.cat([batch["images"] for batch in workload._images.training(ALL)]))
    assert_close(inputs.mean().item(), 0.0, atol=5e-3, rtol=0)
    assert_close(inputs.std().item(), 1.0, atol=5e-3, rtol=0)


def test_the_loss_spreads_labels_and_evaluation_does_not():
    """Truth: the definition; 0.1 of the label is spread over all ten classes."""
    plain, smooth = (workloads.create("resnet20", label_smoothing=share) for share in (0.0, 0.1))
    model = plain.model(0).eval()
    batch = next(plain.batches(0))
    logs = model((batch["images"] - 0.305) / 0.376).log_softmax(1)
    right = -logs[torch.arange(len(logs)), batch["labels"]].mean()
    assert_close(plain.loss(model, batch), right)
    assert_close(smooth.loss(model, batch), 0.9 * right + 0.1 * -logs.mean())
    assert plain.evaluate(model) == smooth.evaluate(model)


def test_metrics_are_means_over_the_validation_images_and_as_many_training_images():
    """Truth: the definitions, on all images at once."""
    workload = workloads.create("alexnet")
    model = workload.model(0)
    truth = []
    for pixels, labels in zip(digits.load(), digits.labels(), strict=True):
        wide = functional.interpolate(torch.from_numpy(pixels[:360])[:, None], size=32, mode="bilinear")
        with torch.no_grad():
            logits = model.eval()((wide - 0.305) / 0.376)
        chosen = torch.from_numpy(labels[:360])
        accuracy = (logits.argmax(1) == chosen).double().mean().item()
        truth.append({"loss": functional.cross_entropy(logits, chosen).item(), "accuracy": accuracy})
    assert images.EVALUATION_BATCH < 360, "more than one chunk"
    model.train()
    assert workload.evaluate(model) == pytest.approx(truth[1], rel=1e-5)
    assert workload.evaluate_training(model) == {"accuracy": pytest.approx(truth[0]["accuracy"])}
    assert truth[0]["accuracy"] != truth[1]["accuracy"]


# CIFAR


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_from_its_files(name, data_folder, monkeypatch):
    """Truth: the arrays in the files."""
    pixels, labels = image_files.write_cifar(data_folder, name, monkeypatch)
    data = cifar.load(name)
    assert np.array_equal(np.concatenate([data.train, data.validation]), pixels)
    assert np.concatenate([data.train_labels, data.validation_labels]).tolist() == labels
    assert data.train.shape == (60, 3, 32, 32)
    assert data.fingerprint == cifar.load(name).fingerprint
    other = data._replace(validation_labels=data.validation_labels[::-1].copy())
    assert other.fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "CIFAR-100 not found at {}; {} downloads it"),
        (lambda folder: (folder / "test").unlink(), "all of CIFAR-100 not found at {}; a file there"),
        (lambda folder: (folder / "test").write_bytes(b"no pickle"), "all of CIFAR-100 not found at {}; a file there"),
    ],
)
def test_missing_and_damaged_cifar_is_named_with_the_remedy(change, message, data_folder, monkeypatch):
    image_files.write_cifar(data_folder, "cifar100", monkeypatch)
    folder, command = data_folder / "cifar-100-python", "python -m workflow.bench.data.cifar cifar100"
    change(folder)
    with pytest.raises(DataNotFound, match=re.escape(message.format(folder, command))) as error:
        workloads.create("autoencoder", dataset="cifar100")
    assert str(error.value).endswith(f"{command} downloads it")


def test_downloading_cifar_checks_and_unpacks_an_archive_that_is_there(data_folder, monkeypatch, capsys):
    """Such as an archive that was copied to a machine without a network."""
    kind = image_files.KINDS["cifar10"]
    image_files.write_cifar(data_folder, "cifar10", monkeypatch)
    archive = data_folder / kind.filename
    shutil.make_archive(str(archive).removesuffix(".tar.gz"), "gztar", data_folder, kind.base_folder)
    shutil.rmtree(data_folder / kind.base_folder)
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest())
    assert cifar.main(["cifar10"]) == 0
    assert "CIFAR-10 is in" in capsys.readouterr().out
    assert len(cifar.load("cifar10").train) == 60


def test_downloading_cifar_without_a_network_fails_in_one_line(data_folder, monkeypatch, capsys):
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", refuse)
    assert cifar.main(["cifar100"]) == 1
    assert capsys.readouterr().err == "CIFAR-100: no route to host\n"


def test_alexnet_and_the_autoencoder_take_cifar100(data_folder, monkeypatch):
    pixels, _ = image_files.write_cifar(data_folder, "cifar100", monkeypatch)
    alexnet = workloads.create("alexnet", dataset="cifar100", batch_size=10)
    batch = next(alexnet.batches(0))
    assert batch["images"].dtype == torch.uint8
    assert alexnet.loss(alexnet.model(0), batch).item() > 0
    autoencoder = workloads.create("autoencoder", dataset="cifar100", batch_size=60, hidden=[8])
    (batch,) = islice(autoencoder.batches(0), 1)
    rows = {row.numpy().tobytes() for row in batch["images"]}
    assert rows == {row.tobytes() for row in pixels[:60].reshape(60, -1)}
    model = autoencoder.model(0)
    assert parameters_of(model) == (3072 * 8 + 8) + (8 * 3072 + 3072)
    truth = functional.mse_loss(model(batch["images"] / 255), batch["images"] / 255)
    assert_close(autoencoder.loss(model, batch), truth)
    held_out = torch.from_numpy(pixels[60:].reshape(20, -1)) / 255
    assert_close(autoencoder.evaluate(model)["loss"], functional.mse_loss(model(held_out), held_out).item())


def test_shifts_and_mirrors_move_whole_images():
    """Truth: each result is one of the 2 x 81 crops of the padded image and its mirror image."""
    rng = np.random.default_rng(3)
    originals = torch.from_numpy(rng.integers(1, 256, size=(200, 3, 12, 12), dtype=np.uint8))
    moved = images.shifted_and_mirrored(originals, np.random.default_rng(0), len(originals))
    assert moved.shape == originals.shape
    assert moved.dtype == torch.uint8
    seen = set()
    for before, after in zip(originals, moved, strict=True):
        padded = functional.pad(before, [4] * 4)
        crops = {
            (top, left, mirrored): padded[:, top : top + 12, left : left + 12].flip(2 if mirrored else ())
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
        }
        (key,) = (key for key, crop in crops.items() if torch.equal(crop, after))
        seen.add(key)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


# Glyphs


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Return every character in every font, ``[fonts, characters, 32, 32]``."""
    return np.stack([glyphs._drawn(font) for font in glyphs.FONTS])


def test_every_font_has_every_character(drawn):
    """Truth: a font's own list of characters; and no two of them look alike, as those that are missing would."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    assert len(set(glyphs.CHARACTERS)) == 100
    for font, shapes in zip(glyphs.FONTS, drawn, strict=True):
        known = FT2Font(str(Path(get_data_path(), "fonts/ttf", font))).get_charmap()
        assert not {character for character in glyphs.CHARACTERS if ord(character) not in known}
        assert len({image.tobytes() for image in shapes}) == 100
        assert (shapes.max(axis=(1, 2)) > 200).all()


def test_a_quarter_of_each_characters_fonts_is_held_out(drawn):
    """Truth: the images drawn one by one, and which character each shows."""
    data = glyphs.load()
    shown = {image.tobytes(): label for shapes in drawn for label, image in enumerate(shapes)}
    for pixels, labels, fonts in ((data.train, data.train_labels, 12), (data.validation, data.validation_labels, 4)):
        assert [shown[image.tobytes()] for image in pixels] == labels.tolist()
        assert set(Counter(labels.tolist()).values()) == {fonts}
        assert len(set(labels[:100].tolist())) > 50, "the first images show many characters"
    seen = {image.tobytes() for image in [*data.train, *data.validation]}
    assert len(seen) == len(shown), "no image is in both parts"
    assert len(data.train) == glyphs.TRAIN_EXAMPLES


@pytest.mark.parametrize("content", [None, b"", b"no font"])
def test_a_missing_or_damaged_font_is_named(content, tmp_path, monkeypatch):
    font = tmp_path / glyphs.FONTS[0]
    if content is not None:
        font.write_bytes(content)
    monkeypatch.setattr(
        glyphs, "distribution", lambda _: SimpleNamespace(locate_file=lambda name: tmp_path / Path(name).name)
    )
    with pytest.raises(DataDamaged, match=rf"^matplotlib's fonts: {font} is damaged: [^\n]+$"):
        glyphs.load()


def zoomed(image: np.ndarray, angle: float, across: float, down: float, shift: tuple[float, float]) -> np.ndarray:
    """Return the image as SciPy turns, stretches and shifts it, about its middle; ``shift`` is (down, across)."""
    from scipy.ndimage import affine_transform

    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    matrix = np.diag([1 / down, 1 / across]) @ turn
    middle = (np.array(image.shape) - 1) / 2
    return affine_transform(image, matrix, middle - matrix @ middle + np.array(shift), order=1)


def test_glyphs_are_turned_stretched_and_shifted_by_what_is_drawn():
    """Truth: SciPy, with the same draws."""
    originals = functional.interpolate(torch.rand(6, 1, 5, 5), size=24, mode="bilinear")
    changed = images.turned(originals, np.random.default_rng(3), len(originals))
    draws = np.random.default_rng(3).uniform(-1, 1, size=(5, len(originals)))
    assert (abs(draws) > 0.5).any(axis=1).all()
    for before, after, (angle, across, down, right, lower) in zip(originals, changed, draws.T, strict=True):
        shift = (lower * 0.05 * 24, right * 0.05 * 24)
        truth = zoomed(before[0].numpy(), angle * np.radians(8), 1.15**across, 1.15**down, shift)
        # At the border SciPy takes what is outside to be black at once, torch fades to it.
        assert_close(after[0, 4:-4, 4:-4], torch.from_numpy(truth)[4:-4, 4:-4], atol=1e-5, rtol=0)


@given(start=st.integers(0, 40), first=st.integers(0, 7), length=st.integers(1, 8))
@settings(max_examples=20)
def test_a_batch_of_glyphs_depends_on_its_seed_and_number_alone(glyphs_workload, start, first, length):
    """Truth: the stream from the start, and the whole batch."""
    whole = next(islice(glyphs_workload.batches(5), start, None))
    part = next(glyphs_workload.sliced_batches(5, start, slice(first, first + length)))
    assert torch.equal(part["images"], whole["images"][first : first + length])
    assert torch.equal(part["labels"], whole["labels"][first : first + length])
    other = next(glyphs_workload.sliced_batches(6, start, ALL))
    assert not torch.equal(other["images"], whole["images"])


@pytest.fixture(scope="module")
def glyphs_workload() -> Workload:
    return workloads.create("resnet20", dataset="glyphs", batch_size=8, width=1)


def test_an_epoch_of_glyphs_does_not_repeat():
    workload = workloads.create("resnet20", dataset="glyphs", batch_size=1200, width=1)
    epochs = [batch["images"] for batch in islice(workload.batches(0), 2)]
    seen = {image.numpy().tobytes() for epoch in epochs for image in epoch}
    assert len(seen) == 2 * 1200
    assert epochs[0].shape == (1200, 1, 16, 16)


def test_glyphs_are_evaluated_on_two_changed_copies_of_each_image_held_out(glyphs_workload):
    """Truth: the changes by hand, of the validation images, or of the fifth of the training images of the search."""
    data = glyphs.load()
    trial = workloads.create("resnet20", dataset="glyphs", batch_size=8, width=1, for_tuning=True)
    _, judged = tuning_split(1200)
    for workload, held_out, labels in (
        (glyphs_workload, data.validation, data.validation_labels),
        (trial, data.train[judged], data.train_labels[judged]),
    ):
        small = images._scaled(torch.from_numpy(held_out) / 255, 16).repeat_interleave(2, 0)
        truth = images.turned(small, np.random.default_rng(0), len(small))
        batches = list(workload._images.validation())
        assert torch.equal(torch.cat([batch["images"] for batch in batches]), truth)
        assert torch.cat([batch["labels"] for batch in batches]).tolist() == labels.repeat(2).tolist()
        assert workload.validation_examples == len(truth)
    assert (glyphs_workload.train_examples, trial.train_examples) == (1200, 960)


# ImageNet


@pytest.fixture
def few_classes(monkeypatch) -> int:
    """Reduce ImageNet to three classes, and return their number."""
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    return 3


@pytest.fixture
def small_imagenet(data_folder, few_classes) -> Workload:
    """Twelve training and six validation images in ImageNet's folders."""
    image_files.write_imagenet(data_folder, classes=few_classes, train=4, validation=2)
    return workloads.create("resnet50", image_size=32, batch_size=4, label_smoothing=0.1)


def test_imagenet_is_read_from_its_folders(small_imagenet):
    """Truth: an image's red channel, which encodes its class, and the numbers of files."""
    assert (small_imagenet.train_examples, small_imagenet.validation_examples) == (12, 6)
    epoch = list(islice(small_imagenet.batches(0), small_imagenet.steps_per_epoch))
    assert sorted(torch.cat([batch["labels"] for batch in epoch]).tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    for batch in epoch:
        assert batch["images"].shape == (4, 3, 32, 32)
        assert batch["images"].dtype == torch.uint8
        colored = [image.float().std(0).max() > 5 for image in batch["images"]]
        reds = batch["images"][:, 0].float().mean((1, 2))
        for is_colored, red, label in zip(colored, reds.tolist(), batch["labels"].tolist(), strict=True):
            assert not is_colored or red == pytest.approx(20 + 60 * label, abs=12)


def test_imagenet_batches_do_not_depend_on_the_processes_that_read_them(small_imagenet, monkeypatch):
    """Truth: one pass in this process."""
    monkeypatch.setattr(images.os, "sched_getaffinity", lambda _: {0})
    alone = list(islice(small_imagenet.batches(5), 5))
    monkeypatch.setattr(images.os, "sched_getaffinity", lambda _: {0, 1, 2})
    before = torch.get_rng_state()
    by_readers = list(islice(small_imagenet.batches(5, start=2), 3))
    assert torch.equal(torch.get_rng_state(), before)
    for expected, batch in zip(alone[2:], by_readers, strict=True):
        assert torch.equal(batch["images"], expected["images"])
        assert torch.equal(batch["labels"], expected["labels"])
    other_seed = next(small_imagenet.batches(6))
    assert not torch.equal(other_seed["images"], alone[0]["images"])
    part = next(small_imagenet.sliced_batches(5, 1, slice(1, 3)))
    assert torch.equal(part["images"], alone[1]["images"][1:3])


SHARED = """
import os, sys
from workflow.bench import workloads
from workflow.bench.data import imagenet
imagenet.CLASSES = 3
os.sched_getaffinity = lambda _: {0, 1}
print(next(workloads.create("resnet50", image_size=32, batch_size=4).batches(0))["labels"].shape)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide /dev/shm")
@pytest.mark.parametrize(
    ("hide", "printed"),
    [
        ("umount --lazy /dev/shm", "torch.Size([4])"),
        (
            "mount -t tmpfs -o size=4k none /dev/shm",
            "images are read through /dev/shm: No space left on device; give it",
        ),
    ],
)
@pytest.mark.usefixtures("small_imagenet")
def test_images_are_read_without_dev_shm_or_the_error_says_what_is_missing(hide, printed):
    """As in a container, in a mount namespace of its own."""
    line = ["unshare", "--mount", "sh", "-c", f'{hide} && exec "$@"', "sh", sys.executable, "-c", SHARED]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"/dev/shm cannot be hidden here: {done.stderr.strip()}")
    assert printed in (done.stdout + done.stderr).splitlines()[-1]


def test_imagenet_validation_is_the_center_of_each_image(small_imagenet):
    """Truth: torchvision's evaluation transform, step by step, on one file."""
    from PIL import Image
    from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

    assert isinstance(small_imagenet, ImageClassifier)
    batch = next(small_imagenet._images.validation())
    assert batch["labels"].tolist() == [0, 0, 1, 1, 2, 2]
    file = imagenet.load().validation.path(3)
    with Image.open(file) as opened:
        truth = pil_to_tensor(center_crop(resize(opened.convert("RGB"), 37), [32, 32]))
    assert torch.equal(batch["images"][3], truth)
    assert torch.equal(next(small_imagenet._images.training(slice(4)))["labels"], torch.tensor([0, 0, 0, 0]))


@pytest.mark.usefixtures("small_imagenet")
def test_imagenet_is_listed_once_until_a_file_comes_or_goes(data_folder, monkeypatch):
    """Truth: torchvision's ImageFolder, and the fingerprint of the files one by one."""
    root = data_folder / "imagenet"
    real = vision.datasets.ImageFolder
    truth = [real(str(root / split)) for split in ("train", "val")]
    digest = hashlib.sha256()
    for split in truth:
        for path, label in split.samples:
            digest.update(f"{Path(path).relative_to(split.root).as_posix()} {label}\n".encode())
    prepared = data_folder / "prepared"
    assert len(list(prepared.glob("imagenet-*.npz"))) == 1

    monkeypatch.setattr(vision.datasets, "ImageFolder", lambda _: pytest.fail("listed again"))
    data = imagenet.load()
    for ours, theirs in zip(data, truth, strict=True):
        assert [(str(ours.path(index)), ours.labels[index]) for index in range(len(ours))] == theirs.samples
        assert ours.classes == theirs.classes
        assert [ours[0][0].tobytes(), ours[0][1]] == [theirs[0][0].tobytes(), theirs[0][1]]
    assert data.fingerprint == digest.hexdigest()

    monkeypatch.setattr(vision.datasets, "ImageFolder", real)
    data.train.path(5).unlink()
    assert len(imagenet.load().train) == 11
    assert len(list(prepared.glob("imagenet-*.npz"))) == 2


def test_missing_imagenet_and_a_part_of_it_are_refused(data_folder, few_classes, monkeypatch):
    with pytest.raises(DataNotFound, match=rf"^ImageNet not found at {data_folder}/imagenet; get ILSVRC[^\n]*$"):
        workloads.create("resnet50")
    image_files.write_imagenet(data_folder, classes=few_classes, train=1, validation=1)
    validation = data_folder / "imagenet" / "val"
    (validation / "n00000001").rename(validation / "n00000007")
    with pytest.raises(DataNotFound, match="train and val have different classes"):
        imagenet.load()
    monkeypatch.setattr(imagenet, "CLASSES", 1000)
    with pytest.raises(DataNotFound, match="imagenet/train has 3 classes"):
        imagenet.load()
