"""CSV files that the commands read after training: new samples, another pool, labels of annotators and a class mix."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.fuzz.mutations import mutated_text
from tests.fuzz.reader import Reader, draw_no_report
from tests.fuzz.tokens import CSV_TOKENS
from tests.fuzz.yaml_options import finished_portfolio

ANNOTATIONS = "row,sample,label\n2,line 3,bee\n35,line 36,cat\n33,line 34,cat\n"
SHARES = "class,share\nant,0.5\nbee,0.3\ncat,0.2\n"


class UsedTable(Reader):
    name = "used table"
    commands = (
        ("predict", "portfolio", "data.csv"),
        ("predict", "portfolio", "data.csv", "--prior", "shares.csv"),
        ("relabel", "portfolio"),
        ("relabel", "portfolio", "--pool", "data.csv"),
        ("next", "portfolio", "--budget", "3"),
        ("merge", "data.csv", "annotations.csv", "--label", "kind"),
    )
    first_commands = commands

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        finished_portfolio(originals)
        (originals / "annotations.csv").write_text(ANNOTATIONS)
        (originals / "shares.csv").write_text(SHARES)

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        shutil.copytree(self.originals, folder, dirs_exist_ok=True)
        for file in folder.glob("portfolio/*.yaml"):
            file.write_text(file.read_text().replace(str(self.originals), str(folder)))
        command = list(rng.choice(self.commands))
        table = folder / rng.choice([part for part in command if part.endswith(".csv")] or ["data.csv"])
        text = table.read_text()
        table.write_bytes(
            with_an_odd_cell(text, rng) if rng.random() < 0.5 else mutated_text(text, rng, ",;\t|", CSV_TOKENS)
        )
        return command

    def stop_early(self) -> None:
        draw_no_report()


def with_an_odd_cell(text: str, rng: random.Random) -> bytes:
    """Most changed tables are refused when their lines are read. This one is not, if the token contains no comma."""
    lines = [line.split(",") for line in text.splitlines()]
    line = rng.choice(lines[1:])
    line[rng.randrange(len(line))] = rng.choice(CSV_TOKENS)
    return "\n".join([*map(",".join, lines), ""]).encode(errors="replace")
