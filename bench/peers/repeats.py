"""How the scripts here sum up repeated measurements: the median and the quartiles, as tessera/core/quantile.h."""

import statistics


def quartiles(values):
    """The first one, the median, the third one."""
    if len(values) == 1:
        return list(values) * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def show(values, digits=2):
    """1.25 (1.20-1.31): the median, and in brackets the quartiles."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"
