"""Bit fields of cells: listing, moving and picking set bits."""

from collections.abc import Iterator


def cells_of(field: int) -> Iterator[int]:
    """Yield the cells of a bit field in ascending order."""
    while field:
        low = field & -field
        yield low.bit_length() - 1
        field ^= low


def field_of(cells: list[int]) -> int:
    """Return the bit field of distinct cells."""
    return sum(1 << cell for cell in cells)


def shifted(field: int, offset: int) -> int:
    """Move every cell of a bit field by an offset; cells below 0 drop out."""
    return field << offset if offset > 0 else field >> -offset


def nth_cell(field: int, rank: int) -> int:
    """Return the cell of a bit field that has ``rank`` cells before it.

    Raises:
        IndexError: If the field has no such cell.
    """
    if not 0 <= rank < field.bit_count():
        raise IndexError(f"rank {rank} in a field of {field.bit_count()} cells")
    start, size = 0, field.bit_length()
    while size > 1:
        half = size // 2
        low = field & (1 << half) - 1
        before = low.bit_count()
        if rank < before:
            field, size = low, half
        else:
            field, rank, start, size = field >> half, rank - before, start + half, size - half
    return start
