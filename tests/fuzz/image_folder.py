"""Folders of images: with a CSV file of labels, and with one folder per class."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fuzz.mutations import mutated, mutated_text
from tests.fuzz.reader import Reader, stop_before_estimating
from tests.fuzz.tokens import CSV_TOKENS, IMAGE_TOKENS

KINDS = (  # endings and Pillow's modes
    *(("png", "L"), ("png", "RGBA"), ("png", "P"), ("jpg", "RGB"), ("gif", "P"), ("bmp", "RGB")),
    *(("tif", "RGB"), ("tif", "I;16"), ("webp", "RGB"), ("ppm", "RGB"), ("pgm", "L")),
)
OPTIONS = ((), (), (), ("--size", "8"), ("--unlabeled", "ant"), ("--label", "label"))
SIDE = 8
CLASSES = ("ant", "ant", "bee", "bee", "")  # of the images, in turn
ODD_NAMES = ("\n.png", "a\tb.png", "[red].png", "\x1b[31m.png", "é.png", "x" * 240 + ".png", " .png", "-.png", "%s.PNG")
CSV, CLASS_FOLDERS = "labels", "classes"


class ImageFolder(Reader):
    name = "image folder"
    first_commands = (("inspect", CSV), ("inspect", CLASS_FOLDERS))

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        pixels = np.random.default_rng(0)
        for number in range(2 * len(KINDS)):
            kind, mode = KINDS[number % len(KINDS)]
            values = pixels.integers(0, 256, (SIDE, SIDE, 4), np.uint8)
            image = Image.fromarray(values)
            image = image.convert("L").convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
            label = CLASSES[number % len(CLASSES)]
            for place in (originals / CSV, originals / CLASS_FOLDERS / (label or "unlabeled")):
                place.mkdir(parents=True, exist_ok=True)
                image.save(place / f"{number:02}.{kind}")
        names = sorted(path.name for path in (originals / CSV).iterdir())
        rows = [f"{name},{CLASSES[number % len(CLASSES)]}" for number, name in enumerate(names)]
        (originals / CSV / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        source = rng.choice((CSV, CLASS_FOLDERS))
        data = Path(shutil.copytree(self.originals / source, folder / source, ignore=shutil.ignore_patterns(".*")))
        images = sorted(path for path in data.rglob("*.*") if path.suffix != ".csv")
        for path in rng.choices(images, k=rng.randint(0, 4)):
            path.write_bytes(mutated(path.read_bytes(), rng, IMAGE_TOKENS))
        if source == CSV and rng.random() < 0.4:
            labels = data / "labels.csv"
            labels.write_bytes(mutated_text(labels.read_text(), rng, ",;", CSV_TOKENS))
        if rng.random() < 0.3:
            self._add_an_odd_entry(data, rng.choice(images), rng)
        return ["inspect", source, *rng.choice(OPTIONS)]

    def _add_an_odd_entry(self, data: Path, image: Path, rng: random.Random) -> None:
        kind = rng.choice(["name", "folder", "empty folder", "link", "link out", "loop", "classes", "empty", "format"])
        if kind == "name":
            image.rename(image.with_name(rng.choice(ODD_NAMES)))
        elif kind == "folder":
            (data / "photo.png").mkdir()
        elif kind == "empty folder":
            (data / "wasp").mkdir()
        elif kind == "link":
            (data / "link.png").symlink_to(image.relative_to(data))
        elif kind == "link out":
            (data / "link.png").symlink_to("/etc/hostname")
        elif kind == "loop":
            (data / "loop.png").symlink_to("loop.png")
        elif kind == "classes":
            (data / "classes.txt").write_bytes(mutated_text("ant\nbee\n", rng, " ", CSV_TOKENS))
        elif kind == "empty":
            image.write_bytes(b"")
        else:
            image.rename(image.with_suffix(rng.choice([".jpg", ".png", ".tif", ".heic", ".webp", ".gif"])))

    def stop_early(self) -> None:
        stop_before_estimating()
