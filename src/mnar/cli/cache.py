"""`mnar cache`: decode the images of the user's data before they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import LauncherOptions, LocalOrRay, Size
from mnar.terminal.console import reading_bar, say


def cache(
    source: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder of images, with a CSV file or class folders, or the CSV file."),
    ],
    size: Size = None,
    launcher: Annotated[
        LocalOrRay, typer.Option("--launcher", help="Decode the images on this machine, or on a Ray cluster.")
    ] = LocalOrRay.local,
    launcher_options: LauncherOptions = None,
) -> None:
    """Decode the images of your data, so that other commands find them in the cache and start at once.

    Example: `mnar cache photos/`

    Other commands decode the images themselves if they are not in the cache. Give the same `--size` to this command
    and to the others. The labels are not read.

    On a Ray cluster: `mnar cache /shared/photos --launcher ray --launcher-option address=HOST:6379`
    """
    from mnar.own_data.fill_cache import fill_cache

    with reading_bar() as on_stage:
        filled = fill_cache(
            source,
            size=size,
            launcher=launcher,
            launcher_options=launcher_options or (),
            progress=lambda done, total: on_stage("decoding", done, total),
        )
    for note in filled.notes:
        say(note)
    num_channels, height, width = filled.shape
    images = f"{filled.num_images:,} {'grey' if num_channels == 1 else 'RGB'} images of {height}×{width} pixels"
    say(f"{images}, {filled.num_bytes / 1e6:,.1f} MB: {filled.file}")
