"""The other files of a finished run: a network and a portfolio, for the commands that use a run."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from tests.fuzz.mutations import mutated, mutated_text
from tests.fuzz.reader import Reader, draw_no_report
from tests.fuzz.tokens import JSON_TOKENS
from tests.fuzz.yaml_options import finished_runs, odd_tree
from tests.fuzz.zip_archive import mutated_archive

ARCHIVES, RECORDS, TEXTS = (".npz", ".pt"), (".json", ".jsonl"), (".json", ".jsonl", ".csv")
JSON_KEYS = ("", "x", "name", "step")


class RunFiles(Reader):
    name = "run files"
    commands = (
        *(("eval", "run"), ("train", "--resume", "run"), ("report", "run", "--out", "report.html")),
        *(("eval", "portfolio"), ("train", "--resume", "portfolio"), ("predict", "portfolio", "data.csv")),
    )
    first_commands = commands

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        finished_runs(originals)

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        command = list(rng.choice(self.commands))
        shutil.copy(self.originals / "data.csv", folder)
        run = folder / ("portfolio" if "portfolio" in command else "run")
        shutil.copytree(self.originals / run.name, run, ignore=shutil.ignore_patterns("report.html", "*.yaml", ".lock"))
        files = sorted(path for path in run.rglob("*") if path.is_file())
        for file in self.originals.glob(f"{run.name}/*.yaml"):
            (run / file.name).write_text(file.read_text().replace(str(self.originals), str(folder)))
        file = rng.choice(files)
        if rng.random() < 0.1:
            file.unlink()
        elif file.suffix in ARCHIVES and rng.random() < 0.7:
            file.write_bytes(mutated_archive(file.read_bytes(), rng))
        elif file.suffix in RECORDS and rng.random() < 0.6:
            *before, last = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            file.write_text("\n".join([*before, json.dumps(odd_tree(json.loads(last), rng, JSON_KEYS))]) + "\n")
        elif file.suffix in TEXTS:
            file.write_bytes(mutated_text(file.read_text(), rng, ' :,[]{}"', JSON_TOKENS))
        else:
            file.write_bytes(mutated(file.read_bytes(), rng, [token.encode() for token in JSON_TOKENS]))
        return command

    def stop_early(self) -> None:
        draw_no_report()
