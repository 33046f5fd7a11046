"""Denoise pictures on several machines by mapping `lmd.imaging.solve_file` over a Dask cluster.

Cuts small pictures out of a photograph, adds noise, and denoises them in two processes on this machine. The example
kills one of the processes during the work, and Dask repeats its pictures in another process. Then the main process
denoises all pictures again, alone. Prints the number of answers and whether the bytes of both answers are the same.

To use several machines with a shared folder, start `dask scheduler` on one and `dask worker ADDRESS` on all of them,
and call `denoise_all(Client(ADDRESS), ...)`. Needs `pip install 'lmd[pictures,cluster]'`.
"""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster, as_completed
from skimage.data import chelsea

from lmd.imaging import PictureSolver, solve_file, solve_many
from lmd.imaging.files import FileResult, Job
from lmd.imaging.image_files import Picture, write_picture

SIDE, RETRIES = 48, 3


def denoise_all(client: Client, jobs: list[Job]) -> Iterator[FileResult]:
    """Yield each result when it is done. If a worker dies, its files are written again, with the same bytes."""
    denoise = partial(solve_file, "denoise", overwrite=True)
    images, outs = zip(*jobs, strict=True)
    for future in as_completed(client.map(denoise, images, outs, pure=False, retries=RETRIES)):
        yield future.result()


def write_pictures(folder: Path, count: int) -> list[Path]:
    """Write small noisy pictures cut from one photograph and return their files."""
    generator, photograph = np.random.default_rng(0), chelsea()
    corners = generator.integers(0, np.array(photograph.shape[:2]) - SIDE, (count, 2))
    folder.mkdir(parents=True)
    files = [folder / f"{place:03d}.png" for place in range(count)]
    for file, (row, column) in zip(files, corners, strict=True):
        clean = np.moveaxis(photograph[row : row + SIDE, column : column + SIDE], -1, 0)
        noisy = (clean + generator.normal(0, 15, clean.shape)).clip(0, 255).round()
        write_picture(file, Picture(noisy.astype(np.uint8)))
    return files


def main(folder: Path, count: int) -> None:
    files = write_pictures(folder / "in", count)
    jobs = {name: [Job(file, folder / name / file.name) for file in files] for name in ("many", "one")}
    for name in jobs:
        (folder / name).mkdir()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        answers = []
        for done in denoise_all(client, jobs["many"]):
            answers.append(done.job.out)
            if len(answers) == count // 4:
                os.kill(cluster.workers[0].pid, signal.SIGKILL)
    alone = list(solve_many(PictureSolver("denoise"), jobs["one"], workers=1))
    same = sum(
        Path(folder, "many", file.name).read_bytes() == Path(folder, "one", file.name).read_bytes() for file in files
    )
    print(f"{len(set(answers))} answers of two processes, one of which was killed; {len(alone)} of one process")
    print(f"{same} of {count} are equal to the byte")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "many_machines"), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
