"""Classifying files with an exported model: how soon it starts, and how fast beside only reading the same files."""

import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
from measuring import PACKAGE, PROJECT, Row, in_turn, run
from PIL import Image

ROUNDS, THREADS = 5, None
NUMBER, OUTPUT = 2000, PROJECT.parent / "predictions.csv"
ONLY_READING = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
from pathlib import Path
images = import_module(f"{sys.argv[2]}.data.images")
for path in sorted(Path(sys.argv[3]).iterdir()):
    images.read_image(path, image_size=8, channels=1)
"""


def rows() -> list[Row]:
    run_dir = PROJECT / "logs" / "bench-inference"
    run([sys.executable, PROJECT / "train.py", "trainer.max_epochs=1", "logger=csv", f"hydra.run.dir={run_dir}"])
    model, pictures = run_dir / "export" / "model.onnx", write_pictures(PROJECT.parent / "bench-pictures")
    reading = [sys.executable, "-c", ONLY_READING, PROJECT, PACKAGE, pictures]
    imports = [sys.executable, "-c", "import onnxruntime, PIL"]
    first, importing, classified, read = in_turn(
        ROUNDS,
        partial(seconds, classify(model, min(pictures.iterdir()))),
        partial(seconds, imports),
        lambda: NUMBER / seconds(classify(model, pictures)),
        lambda: NUMBER / seconds(reading),
    )
    return [
        Row("predict.py, first answer", first, "importing onnxruntime and PIL", importing, "s", at_most=3),
        Row(f"predict.py, {NUMBER} JPEGs", classified, "one process only reads them", read, "images/s", at_least=0.8),
    ]


def seconds(command: list[str | Path]) -> float:
    return run(command)[1]


def classify(model: Path, given: Path) -> list[str | Path]:
    return [sys.executable, PROJECT / "predict.py", model, given, "--output", OUTPUT]


def write_pictures(folder: Path) -> Path:
    """Write JPEGs of 500 by 375 pixels whose coarse and fine structure makes them about as large as photographs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(NUMBER):
        coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375))
        noise = random.normal(0, 8, (375, 500, 1))
        pixels = (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.jpg", quality=85)
    return folder


if __name__ == "__main__":
    sys.exit("Run python benchmarks/bench.py inference.")
