"""Reading dim_param strings: a recursive descent that never evaluates Python and never raises."""

import math
import re
from collections.abc import Callable

from sod2.symbolic.division import ceildiv, floordiv
from sod2.symbolic.form import MAX_DEGREE, NAME, Dim, DimTooLargeError, constant, symbol
from sod2.symbolic.values import REBUILD

_TOKEN = re.compile(rf"\s*(?:(?P<number>\d+)|(?P<name>{NAME.pattern})|`(?P<quoted>[^`]*)`|(?P<op>\*\*|//|[-+*/%(),]))")
_LONGEST = 400  # characters; longer texts and deeper nesting are names
_DEEPEST = 40
Fraction = tuple[Dim, Dim]  # numerator and denominator: exporters write floor(H/2 - 1/2)


class _NotAnExpression(Exception):
    """The text isn't an arithmetic expression."""


def parse(text: str, low: int = 0) -> Dim:
    """The Dim that a dim_param such as `T`, `32*h`, `(s0 - 1)//2 + 1` or `floor(H/2)` means.

    Understands + - * / // % ** ( ), min, max, bcast, mod, floor, ceil, floordiv, ceildiv (in any case) and names in
    backticks. `/` is exact division. Symbols get the lower bound `low`. A text that isn't an expression is one symbol
    of that name. Never raises.
    """
    try:
        return _Parser(text, low).parse()
    except (_NotAnExpression, ZeroDivisionError, DimTooLargeError):
        return symbol(text, low)


class _Parser:
    """Recursive descent over fractions of Dims."""

    def __init__(self, text: str, low: int) -> None:
        self.low = low
        self.depth = 0
        self.tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end <= _LONGEST:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise _NotAnExpression
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self.tokens.append(("end", ""))

    def parse(self) -> Dim:
        value = self.sum()
        self.expect("end", "")
        return _whole(value)

    def take(self, *ops: str) -> str:
        """The next token's text if it is one of these operators, else ''."""
        kind, text = self.tokens[0]
        if kind == "op" and text in ops:
            self.tokens.pop(0)
            return text
        return ""

    def expect(self, kind: str, text: str) -> None:
        if self.tokens.pop(0) != (kind, text):
            raise _NotAnExpression

    def sum(self) -> Fraction:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NotAnExpression
        negative = self.take("-") == "-"
        n, d = self.product()
        n = -n if negative else n
        while op := self.take("+", "-"):
            m, e = self.product()
            n, d = n * e + (m if op == "+" else -m) * d, d * e
        self.depth -= 1
        return n, d

    def product(self) -> Fraction:
        n, d = self.power()
        while op := self.take("*", "//", "/", "%"):
            m, e = self.power()
            if op == "*":
                n, d = n * m, d * e
            elif op == "/":
                n, d = n * e, d * m
            elif op == "//":
                n, d = (n * e) // (d * m), constant(1)
            else:
                n, d = _whole((n, d)) % _whole((m, e)), constant(1)
        return n, d

    def power(self) -> Fraction:
        n, d = self.atom()
        if self.take("**"):
            kind, text = self.tokens.pop(0)
            if kind != "number" or int(text) > MAX_DEGREE:
                raise _NotAnExpression
            return math.prod([n] * int(text), start=constant(1)), math.prod([d] * int(text), start=constant(1))
        return n, d

    def atom(self) -> Fraction:
        kind, text = self.tokens.pop(0)
        if kind == "number":
            return constant(int(text)), constant(1)
        if kind == "name" and self.take("("):
            return self.call(text.lower())
        if kind in ("name", "quoted"):
            return symbol(text, self.low), constant(1)
        if (kind, text) != ("op", "("):
            raise _NotAnExpression
        value = self.sum()
        self.expect("op", ")")
        return value

    def call(self, name: str) -> Fraction:
        args = [self.sum()]
        while self.take(","):
            args.append(self.sum())
        self.expect("op", ")")
        if name in ("floor", "ceil", "ceiling") and len(args) == 1:
            value = args[0][0] // args[0][1] if name == "floor" else ceildiv(*args[0])
        elif name in ("min", "max", "bcast"):
            value = REBUILD[name](*map(_whole, args))
        elif name in _BINARY and len(args) == 2:
            value = _BINARY[name](*map(_whole, args))
        else:
            raise _NotAnExpression
        return value, constant(1)


_BINARY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "ceildiv": ceildiv,
    "floordiv": floordiv,
    "mod": lambda a, b: a % b,
}


def _whole(value: Fraction) -> Dim:
    """The integer that a fraction is known to be."""
    return value[0] // value[1]
