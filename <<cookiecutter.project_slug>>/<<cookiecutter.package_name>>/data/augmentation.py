"""Random changes of training images, drawn for each image and done for the whole batch where it lies (data.augment).

torchvision's transforms draw once for a batch. These draw for each image, on its device.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTHS = ("none", "light", "strong")
# Of the ten operations of `strong`, each image undergoes so many, as in RandAugment (Cubuk et al., 2020).
OPERATIONS = 2
# A CPU is several times as fast on pieces that stay in its caches.
CPU_PIECE = 2**20


def augment(images: Tensor, size: int, strength: str, flip: bool) -> Tensor:
    """Give squares of `size` cut from larger or equal ones, uint8 (N, C, H, W).

    Args:
        strength: `none` cuts out the centre; `light` cuts anywhere and varies brightness and contrast; `strong` also
            turns, shears, scales, recolours and covers parts.
        flip: mirror half of the images.
    """
    if strength == "none":
        margin = (images.shape[-1] - size) // 2
        return images[..., margin : margin + size, margin : margin + size]
    change = strong if strength == "strong" else light
    piece = max(1, CPU_PIECE // images[0].numel()) if images.device.type == "cpu" else len(images)
    return torch.cat([change(images[start : start + piece], size, flip) for start in range(0, len(images), piece)])


def light(images: Tensor, size: int, flip: bool) -> Tensor:
    pixels = cut(images, size, flip).float()
    brightness, contrast = (1 + 0.2 * _between(-1, 1, pixels, 2)).unbind(1)
    return _to_bytes(recolour(pixels, brightness, contrast))


def strong(images: Tensor, size: int, flip: bool) -> Tensor:
    pixels = cut(images, size, flip).float()
    amounts = _between(-1, 1, pixels, 10)
    # 0 leaves an image as it is.
    amounts = amounts * (torch.rand_like(amounts).argsort(1).argsort(1) < OPERATIONS)
    turn, shear_x, shear_y, scale, brightness, contrast, saturation, posterize, solarize, cover = amounts.unbind(1)
    pixels = warp(pixels, turn * math.pi / 6, 0.3 * shear_x, 0.3 * shear_y, 1 + 0.3 * scale)
    pixels = recolour(pixels, 1 + 0.5 * brightness, 1 + 0.5 * contrast, 1 + 0.8 * saturation)
    step = _over_pixels(2 ** (4 * posterize.abs()).round())
    pixels = (pixels / step).floor() * step
    pixels = torch.where(pixels >= _over_pixels(256 - 128 * solarize.abs()), 255 - pixels, pixels)
    return _to_bytes(cover_squares(pixels, 0.5 * cover.abs()))


def cut(images: Tensor, size: int, flip: bool) -> Tensor:
    """Cut a square out of each image at random; out of squares of `size`, after they were reflected by an eighth."""
    if images.shape[-1] == size:
        images = F.pad(images, (-(-size // 8),) * 4, mode="reflect" if size > 1 else "replicate")
    count, places, device = len(images), images.shape[-1] - size + 1, images.device
    top, left = torch.randint(places, (2, count), device=device)
    mirrored = torch.randint(2, (count,), device=device) if flip else torch.zeros_like(top)
    both = torch.stack([images, images.flip(3)]) if flip else images[None]
    windows = both.unfold(3, size, 1).unfold(4, size, 1)
    return windows[mirrored, torch.arange(count, device=device), :, top, left]


def recolour(pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor | None = None) -> Tensor:
    """Scale values, their distance from the image's mean, and from their grey; factors (N,), 1 for no change."""
    mean = pixels.mean((1, 2, 3))
    gain, offset = contrast * brightness, mean * (1 - contrast) * brightness
    pixels = pixels.mul(_over_pixels(gain)).add_(_over_pixels(offset))
    if saturation is not None and pixels.shape[1] == 3:
        pixels = torch.lerp(pixels.mean(1, keepdim=True), pixels, _over_pixels(saturation))
    return pixels.clamp_(0, 255)


def warp(pixels: Tensor, turn: Tensor, shear_x: Tensor, shear_y: Tensor, scale: Tensor) -> Tensor:
    """Turn by radians, shear and scale each image about its centre; what lies beyond an edge is reflected."""
    cos, sin = turn.cos(), turn.sin()
    along_x = torch.stack([cos + shear_x * sin, shear_x * cos - sin], 1) / scale[:, None]
    along_y = torch.stack([sin + shear_y * cos, cos - shear_y * sin], 1) / scale[:, None]
    places = _places(pixels) * 2 - 1
    across, down = places.view(1, 1, -1), places.view(1, -1, 1)
    # What F.affine_grid does, several times as fast.
    grid = torch.stack([m[:, 0, None, None] * across + m[:, 1, None, None] * down for m in (along_x, along_y)], 3)
    return F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)


def cover_squares(pixels: Tensor, shares: Tensor) -> Tensor:
    """Cover a square of each image, of such a share of its side, with grey (DeVries and Taylor, 2017)."""
    places = _places(pixels)
    centres = _between(0, 1, pixels, 2)
    rows, columns = ((places - centres[:, axis, None]).abs() < shares[:, None] / 2 for axis in (0, 1))
    return pixels.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 127.0)


def _between(low: float, high: float, images: Tensor, count: int) -> Tensor:
    """Draw (N, count) numbers for N images."""
    return low + (high - low) * torch.rand(len(images), count, device=images.device)


def _places(pixels: Tensor) -> Tensor:
    """Give the centres of the pixels along a side, from 0 to 1."""
    size = pixels.shape[-1]
    return (torch.arange(size, device=pixels.device) + 0.5) / size


def _over_pixels(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _to_bytes(pixels: Tensor) -> Tensor:
    return pixels.add_(0.5).to(torch.uint8)
