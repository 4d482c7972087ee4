"""Tensors that share bytes, while sharing.py decides which do."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sod2.storage import Place
from sod2.symbolic import Dim, constant

_ZERO = constant(0)


@dataclass(eq=False)
class TensorClass:
    """Tensors sharing bytes, and the positions at which they are read."""

    members: set[str]
    first: int
    uses: list[tuple[int, str, str]]  # (position, root read, reader: "" or the Combine's node name)
    home: Place | None = None
    is_value: bool = False  # written when its symbols are known, not by a step of the order
    whole: "TensorClass | None" = None  # the tensors that these are part of, from byte `offset` on
    offset: Dim = _ZERO
    pieces: list["TensorClass"] = field(default_factory=list)
    until: int = -1  # the end of the loop that carries these from trip to trip
    row_of: tuple["TensorClass", str, Dim] | None = None  # stacked output these are a row of, iteration, stride

    @property
    def last(self) -> int:
        return max([self.first, self.until, *(p for p, _, _ in self.uses)])

    @property
    def is_plain(self) -> bool:
        """Whether these may still be put anywhere."""
        return self.home is None and self.whole is None and not (self.is_value or self.pieces or self.row_of)

    @property
    def top(self) -> "TensorClass":
        """The class that holds the whole family's bytes."""
        return self if self.whole is None else self.whole.top

    @property
    def start(self) -> Dim:
        """Bytes of the family before these."""
        return self.offset if self.whole is None else self.whole.start + self.offset

    def below(self) -> Iterator["TensorClass"]:
        """This class and its parts."""
        yield self
        for piece in self.pieces:
            yield from piece.below()

    def family_uses(self) -> list[tuple[int, str, str]]:
        """The reads of all tensors that share bytes with one another here."""
        return [use for member in self.top.below() for use in member.uses]

    def put_into(self, whole: "TensorClass", offset: Dim) -> None:
        self.whole, self.offset = whole, offset
        whole.pieces.append(self)
