"""Student's t. Pure.

scipy is imported when it is first asked: it takes 0.2 s, and most commands compare nothing.
"""

from __future__ import annotations


def p_value(freedom: float, t: float) -> float:
    """How often |T| is larger than that."""
    from scipy import special  # noqa: PLC0415

    return float(2 * special.stdtr(freedom, -abs(t)))


def quantile(freedom: float, share: float) -> float:
    """The t that T stays below with that probability."""
    from scipy import special  # noqa: PLC0415

    return float(special.stdtrit(freedom, share))
