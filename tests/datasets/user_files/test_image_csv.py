from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.datasets.user_files.image_csv import read_image_csv
from mnar.datasets.user_files.partly_labeled import PartlyLabeled

RNG = np.random.default_rng(0)
NAMES = ["a.png", "b.png", "sub/c.jpg", "sub/deep/d.PNG", "z.png"]
PIXELS = {name: RNG.integers(0, 256, (4, 5, 3), np.uint8) for name in NAMES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pixels in PIXELS.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, "PNG")
    return tmp_path / "data"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def labels(data: PartlyLabeled) -> dict[str, str | None]:
    return {
        name: None if c < 0 else data.class_names[c] for name, c in zip(data.row_names, data.y.tolist(), strict=True)
    }


def test_labels_and_pixels_meet_and_images_not_in_the_csv_are_unlabelled(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "z.png,emu", "sub/c.jpg,cat", "a.png,")
    data = read_image_csv(folder)
    assert data.kind == "images"
    assert data.class_names == ("cat", "emu")
    assert labels(data) == {"a.png": None, "b.png": None, "sub/c.jpg": "cat", "sub/deep/d.PNG": None, "z.png": "emu"}
    for name, x in zip(data.row_names, data.x, strict=True):
        assert np.array_equal(x.transpose(1, 2, 0), PIXELS[name])


@pytest.mark.parametrize("missing", ["", "  ", "NaN", "nan", "?", "-1"])
def test_every_way_to_write_no_label(folder: Path, missing: str) -> None:
    write(folder / "labels.csv", "path,label", "a.png,1", "b.png,2", f"z.png,{missing}")
    assert labels(read_image_csv(folder))["z.png"] is None


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("Image,Class", ["a.png,cat", "b.png,dog"]),
        ("file,target", ["a.png,cat", "b.png,dog"]),
        ("FileName;LABEL", ["a.png;cat", "b.png;dog"]),
        ("label\tid\tpath", ["cat\t1\ta.png", "dog\t2\tb.png"]),
        ("path,y", ["a.png,cat", "b.png,dog"]),
    ],
)
def test_usual_column_names_are_recognised(folder: Path, header: str, rows: list[str]) -> None:
    write(folder / "labels.csv", header, *rows)
    data = read_image_csv(folder)
    assert (labels(data)["a.png"], labels(data)["b.png"]) == ("cat", "dog")


def test_the_user_can_name_the_label_column_and_texts_that_mean_no_label(folder: Path) -> None:
    rows = ["a.png,cat,1", "b.png,dog,1", "z.png,todo,1", "sub/c.jpg,todo,1", "sub/c.jpg,cat,1"]
    write(folder / "labels.csv", "path,species,label", *rows)
    data = read_image_csv(folder, label="species", unlabeled=["todo"])
    assert data.class_names == ("cat", "dog")
    assert (labels(data)["z.png"], labels(data)["sub/c.jpg"]) == (None, "cat")


def test_the_csv_is_labels_csv_or_the_only_csv_or_the_given_file(folder: Path) -> None:
    write(folder / "one.csv", "path,label", "a.png,one", "b.png,x")
    assert labels(read_image_csv(folder))["a.png"] == "one"
    assert labels(read_image_csv(folder / "one.csv"))["a.png"] == "one"
    write(folder / "labels.csv", "path,label", "a.png,two", "b.png,x")
    assert labels(read_image_csv(folder))["a.png"] == "two"
    assert labels(read_image_csv(folder / "one.csv"))["a.png"] == "one"


def test_classes_txt_fixes_the_order_and_may_name_classes_without_a_label(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,dog", "b.png,cat", "z.png,none")
    write(folder / "classes.txt", "emu", "dog", "", "cat ", "none")
    data = read_image_csv(folder)
    assert data.class_names == ("emu", "dog", "cat", "none")
    assert data.y.tolist() == [1, 2, -1, -1, 3]


def test_paths_from_windows_with_dots_or_absolute_within_the_folder_work(folder: Path) -> None:
    rows = [
        "sub\\c.jpg,cat",
        ".\\sub\\deep\\d.PNG,dog",
        "./a.png,cat",
        f"{folder}/b.png,dog",
        f"{folder.resolve()}/z.png,?",
    ]
    write(folder / "labels.csv", "path,label", *rows)
    expected = {"a.png": "cat", "b.png": "dog", "sub/c.jpg": "cat", "sub/deep/d.PNG": "dog", "z.png": None}
    assert labels(read_image_csv(folder)) == expected


def test_a_listed_image_may_have_any_suffix(folder: Path) -> None:
    (folder / "a.png").rename(folder / "a.data")
    write(folder / "labels.csv", "path,label", "a.data,cat", "b.png,dog")
    assert labels(read_image_csv(folder))["a.data"] == "cat"


def test_the_same_label_twice_and_a_missing_label_beside_a_label_are_fine(folder: Path) -> None:
    rows = ["a.png,cat", "a.png, cat ", "a.png,?", "b.png,", "b.png,dog", "./b.png,dog"]
    write(folder / "labels.csv", "path,label", *rows)
    data = read_image_csv(folder)
    assert (labels(data)["a.png"], labels(data)["b.png"]) == ("cat", "dog")
    assert len(data.y) == 5


def test_unreadable_images_are_left_out_with_a_note(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog", "z.png,emu")
    (folder / "b.png").write_text("not an image")
    data = read_image_csv(folder)
    assert labels(data) == {"a.png": "cat", "sub/c.jpg": None, "sub/deep/d.PNG": None, "z.png": "emu"}
    assert data.x.shape == (4, 3, 4, 5)
    assert isinstance(data.x, np.memmap)
    assert any("1 files cannot be read and are left out: b.png" in note for note in data.notes)


@pytest.mark.parametrize("name", ["absent.png", "A.png", "sub", ""])
def test_an_image_that_does_not_exist_is_left_out_with_a_note_that_names_its_line(folder: Path, name: str) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", f"{name},emu", "b.png,dog")
    data = read_image_csv(folder)
    assert data.class_names == ("cat", "dog")
    assert sorted(data.row_names) == sorted(NAMES)
    assert any(
        f"1 images do not exist and are left out: {name!r} in line 3; write paths" in note for note in data.notes
    )


def test_labels_that_are_lost_with_missing_images_are_an_error_that_names_the_images(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "absent.png,dog")
    with pytest.raises(ValueError, match=r"every label is 'cat'.*1 images do not exist .*'absent\.png' in line 3"):
        read_image_csv(folder)


def test_an_image_knows_its_row_and_its_id(folder: Path) -> None:
    write(folder / "labels.csv", "id,path,label", "7,b.png,cat", ",,", "8,absent.png,cat", "9,a.png,dog", "7,z.png,")
    data = read_image_csv(folder, id="id")
    rows = dict(zip(data.row_names, data.row_numbers, strict=True))
    assert rows == {"a.png": 4, "b.png": 1, "z.png": 5, "sub/c.jpg": 0, "sub/deep/d.PNG": 0}
    assert data.id_name == "id"
    assert data.ids is not None
    ids = dict(zip(data.row_names, data.ids, strict=True))
    assert ids == {"a.png": "9", "b.png": "7", "z.png": "7", "sub/c.jpg": "", "sub/deep/d.PNG": ""}
    assert any("2 rows share their id with another row, e.g. '7' in 2 rows" in note for note in data.notes)
    assert any("2 rows have no id" in note for note in data.notes)


def test_notes_on_labels_and_file_are_kept(folder: Path) -> None:
    (folder / "labels.csv").write_bytes("path,label\na.png,Kätzchen\nb.png,kätzchen\nz.png,dog\n".encode("cp1252"))
    notes = " ".join(read_image_csv(folder).notes)
    assert "Windows-1252" in notes
    assert "differ only in case" in notes


def test_size_and_progress_are_passed_on(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog")
    calls: list[int] = []
    data = read_image_csv(folder, size=(6, 7), progress=lambda done, total: calls.append(done))
    assert data.x.shape == (5, 3, 6, 7)
    assert calls[-1] == 10


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        (["a.png,cat", "b.png,dog", "a.png,dog"], 4, "a.png is 'dog' here and 'cat' in line 2; keep one"),
        (["a.png,cat", ".\\a.png,dog"], 3, "a.png is 'dog' here and 'cat' in line 2"),
        (["../data/a.png,cat"], 2, "'../data/a.png' may lead out of .* relative to that folder, without .."),
        (["sub/../a.png,cat"], 2, "may lead out"),
        (["sub\\..\\..\\a.png,cat"], 2, "may lead out"),
        (["/etc/passwd,cat"], 2, "'/etc/passwd' may lead out"),
        (["C:\\data\\a.png,cat"], 2, "may lead out"),
        (["a.png,cat", "b.png,dog,more"], 3, "3 cells"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(folder: Path, rows: list[str], line: int, message: str) -> None:
    write(folder / "labels.csv", "path,label", *rows)
    with pytest.raises((ValueError, FileNotFoundError), match=rf"labels\.csv, line {line}: .*{message}"):
        read_image_csv(folder)
    assert not (folder / ".mnar-cache").exists()  # the error comes before any image is decoded


def test_a_label_that_is_not_in_classes_txt_is_named_by_file_and_line(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "z.png,dog", "b.png,emu")
    write(folder / "classes.txt", "cat", "dog")
    with pytest.raises(ValueError, match=r"labels\.csv, line 4: label 'emu' is not one of cat, dog"):
        read_image_csv(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n \n", "names no class"), (b"cat\ncat\n", "'cat' is named 2 times"), (b"\xff\xfe\xff", "is not UTF-8")],
)
def test_a_bad_classes_txt_is_refused(folder: Path, content: bytes, message: str) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog")
    (folder / "classes.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_image_csv(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("photo,label", r"the paths\? Call exactly one column path or image or file or filename: photo, label"),
        ("path,label,file", r"the paths\? Call exactly one column .*: path, file"),
        ("path,species", r"the label\? Name it with --label: path, species"),
        ("path,label,class", r"the label\? Name it with --label: label, class"),
    ],
)
def test_a_column_that_cannot_be_guessed_is_an_error_that_lists_the_columns(
    folder: Path, header: str, message: str
) -> None:
    write(folder / "labels.csv", header, ",".join("x" for _ in header.split(",")))
    with pytest.raises(ValueError, match=rf"labels\.csv.*: which column (is|holds) {message}$"):
        read_image_csv(folder)


def test_a_missing_label_column_is_an_error(folder: Path) -> None:
    write(folder / "labels.csv", "path,label,class", "a.png,cat,1")
    with pytest.raises(ValueError, match="has no column 'species', only path, label, class"):
        read_image_csv(folder, label="species")


def test_no_csv_or_several_is_an_error_that_names_them(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no CSV file; give the path of the CSV file"):
        read_image_csv(folder)
    for name in ("one.csv", "two.csv"):
        write(folder / name, "path,label", "a.png,cat")
    with pytest.raises(FileNotFoundError, match=r"the CSV files one\.csv, two\.csv and no labels\.csv"):
        read_image_csv(folder)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        read_image_csv(tmp_path / "absent")


def test_a_folder_without_images_is_an_error_with_the_line_that_names_an_image(tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", "path,label", "a.png,cat")
    with pytest.raises(FileNotFoundError, match=r"such as 'a\.png' in line 2; .* which holds 0 images"):
        read_image_csv(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"), [(["a.png,", "b.png,?"], "no row has a label"), (["a.png,cat"], "every label is 'cat'")]
)
def test_too_few_labels_are_an_error(folder: Path, rows: list[str], message: str) -> None:
    write(folder / "labels.csv", "path,label", *rows)
    with pytest.raises(ValueError, match=message):
        read_image_csv(folder)


def test_a_note_says_that_data_without_an_unlabelled_image_are_plain_supervised(folder: Path) -> None:
    write(folder / "labels.csv", "path,label", *(f"{name},{i % 2}" for i, name in enumerate(NAMES)))
    assert any("plain supervised" in note for note in read_image_csv(folder).notes)


@pytest.mark.parametrize("link", ["out.png", "sub/out.png", "outside"])
def test_a_link_out_of_the_folder_is_refused_wherever_it_is_met(folder: Path, tmp_path: Path, link: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    Image.fromarray(PIXELS["a.png"]).save(secret / "x.png")
    (folder / link).symlink_to(secret / "x.png" if link.endswith(".png") else secret)
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog")
    with pytest.raises(ValueError, match=rf"data/{link} is a link that leads out of .*secret"):
        read_image_csv(folder)


@pytest.mark.parametrize("path", ["out.data", ".hidden/x.png"])
def test_a_listed_link_out_of_the_folder_is_refused_by_line(folder: Path, tmp_path: Path, path: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    Image.fromarray(PIXELS["a.png"]).save(secret / "x.png")
    (folder / "out.data").symlink_to(secret / "x.png")
    (folder / ".hidden").symlink_to(secret)
    write(folder / "labels.csv", "path,label", "a.png,cat", f"{path},dog")
    with pytest.raises(ValueError, match=rf"labels\.csv, line 3: .*{path} is a link that leads out of"):
        read_image_csv(folder)


def test_links_within_the_folder_are_images_and_circular_links_are_not_followed(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder / "a.png")
    (folder / "sub" / "circle").symlink_to(folder)
    write(folder / "labels.csv", "path,label", "link.png,cat", "b.png,dog")
    data = read_image_csv(folder)
    assert sorted(data.row_names) == sorted([*NAMES, "link.png"])
    assert labels(data)["link.png"] == "cat"


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog")
    (tmp_path / "alias").symlink_to(folder)
    assert labels(read_image_csv(tmp_path / "alias")) == labels(read_image_csv(folder))


def test_names_that_begin_with_a_dot_are_left_out(folder: Path) -> None:
    for name in ("._a.png", ".trash/x.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        os.link(folder / "a.png", folder / name)
    write(folder / "labels.csv", "path,label", "a.png,cat", "b.png,dog")
    assert list(read_image_csv(folder).row_names) == NAMES
