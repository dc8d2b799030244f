"""Reads an image file the one way that training, evaluation and prediction share. Pillow and NumPy only."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# What `read_image` does, in words for whoever serves an exported file without this project.
READING = (
    "a JPEG decoded at a half, a quarter or an eighth where both sides stay at least twice the size wanted; EXIF "
    "orientation applied; 16-bit grey divided by 257; transparency laid on white; RGB, or grey for one channel; the "
    "centre square cut out and resized by Pillow's bilinear filter; uint8, channels first"
)


def read_image(path: str | Path, image_size: int, channels: int) -> np.ndarray:
    """Read a file as uint8 (channels, image_size, image_size).

    EXIF orientation is applied, the centre square is cut out and resized, transparency lies on white.

    Raises:
        OSError: the file cannot be read as an image; the message names it.
    """
    try:
        with Image.open(path) as image:
            # A large JPEG is decoded at a half, a quarter or an eighth, several times as fast.
            image.draft(None, (2 * image_size, 2 * image_size))
            upright = ImageOps.exif_transpose(image)
        picture = _to_mode(upright, "L" if channels == 1 else "RGB")
        # The filter of most pretrained weights' recipes.
        square = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    except Exception as error:
        # Pillow's readers raise whatever a damaged file makes them stumble over.
        raise OSError(f"{path} cannot be read as an image: {error}") from error
    pixels = np.asarray(square)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def unreadable_message(reason: str) -> str:
    return f"{reason}. Replace or remove the file, or try data.on_error=skip."


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range nobody knows")
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "I;16N"):
        # Pillow would clip 16-bit values at 255, which turns almost every pixel white.
        image = Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return image.convert(mode)
