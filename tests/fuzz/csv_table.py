"""Tables as CSV files."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fuzz.mutations import mutated_text
from tests.fuzz.reader import Reader, stop_before_estimating
from tests.fuzz.tokens import CSV_TOKENS
from tests.support.own_data_files import write_table

OPTIONS = (
    *(("--label", "kind"),) * 12,
    (),
    ("--label", "colour"),
    ("--label", "weight"),
    ("--label", "kind", "--id", "weight"),
    ("--label", "kind", "--ignore", "colour"),
    ("--label", "kind", "--unlabeled", "ant"),
)
COUNTS = ((8, 6, 3), (5, 5, 8))  # with a label and without


class CsvTable(Reader):
    name = "CSV table"
    first_commands = (("inspect", "data.csv", "--label", "kind"),)

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        self.text = write_table(originals / "data.csv", COUNTS).read_text()

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        text = self.text.replace(",", rng.choice("\t;|")) if rng.random() < 0.2 else self.text
        (folder / "data.csv").write_bytes(mutated_text(text, rng, ",;\t|", CSV_TOKENS))
        return ["inspect", "data.csv", *rng.choice(OPTIONS)]

    def stop_early(self) -> None:
        stop_before_estimating()
