"""Chooses the convolutions for an image. The networks build them, an export describes them. Pure."""

NATURE_PIXELS = 36  # the least height and width that the Nature CNN can read

Convolution = tuple[int, int, int, int]  # output channels, kernel, stride, padding
_NATURE: tuple[Convolution, ...] = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
_SMALL: tuple[Convolution, ...] = ((16, 3, 1, 1), (32, 3, 2, 1))


def encoder_plan(height: int, width: int) -> tuple[tuple[Convolution, ...], int]:
    """The convolutions for an image, and the width of the linear layer after them.

    Images that are large enough get the Nature CNN (Mnih et al. 2015), small grids two layers of 3 x 3.
    """
    return (_NATURE, 512) if min(height, width) >= NATURE_PIXELS else (_SMALL, 128)
