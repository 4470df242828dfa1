"""Fits the polynomial coefficients of `bolide/inductor/codegen/math32.py` and `bolide/inductor/codegen/functions`.

Run it to print them anew: ``python tools/minimax.py``. Each fit in float32 minimises the largest *weighted* error
(Lawson's iteratively reweighted least squares on Chebyshev nodes, in float64, against mpmath), then rounds the
coefficients to float32 one by one, lowest order first, refitting the rest after each. Those in float64 interpolate at
Chebyshev nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np

mpmath.mp.prec = 120
Function = Callable[[mpmath.mpf], mpmath.mpf]


def _lawson(powers: np.ndarray, target: np.ndarray, weight: np.ndarray, rounds: int = 60) -> np.ndarray:
    """Coefficients c minimising max |weight * (powers @ c - target)|."""
    emphasis = np.full(len(target), 1.0 / len(target))
    best, best_error = np.zeros(powers.shape[1]), np.inf
    for _ in range(rounds):
        scale = np.sqrt(emphasis) * weight
        solution = np.linalg.lstsq(powers * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(weight * (powers @ solution - target))
        if error.max() < best_error:
            best, best_error = solution, error.max()
        emphasis = emphasis * (error + 1e-300)
        emphasis /= emphasis.sum()
    return best


def fit(target: Function, weight: Function, low: float, high: float, degree: int) -> tuple[list[float], float]:
    """Float32 coefficients c0…c`degree` of a polynomial near `target` on [low, high], and the largest weighted
    error.
    """
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    values = np.array([float(target(mpmath.mpf(x))) for x in nodes])
    weights = np.array([float(weight(mpmath.mpf(x))) for x in nodes])
    powers = nodes[:, None] ** np.arange(degree + 1)[None, :]
    fixed: list[float] = []
    for count in range(degree + 1):
        rest = values - powers[:, :count] @ np.array(fixed)
        free = _lawson(powers[:, count:], rest, weights)
        fixed.append(float(np.float32(free[0])))
    return fixed, float(np.abs(weights * (powers @ np.array(fixed) - values)).max())


def fit_quotient(
    target: Function, weight: Function, low: float, high: float, over: int, under: int, rounds: int = 80
) -> tuple[list[float], list[float], float]:
    """Float32 coefficients of polynomials of degrees `over` and `under`, the second one 1 at 0, whose quotient is near
    `target`, and the largest weighted error: least squares of target · under - over, weighted with the last quotient's
    denominator and by Lawson's rule."""
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(600) + 0.5) / 600)
    values = np.array([float(target(mpmath.mpf(x))) for x in nodes])
    weights = np.array([float(weight(mpmath.mpf(x))) for x in nodes])
    upper, lower = nodes[:, None] ** np.arange(over + 1), nodes[:, None] ** np.arange(1, under + 1)
    terms = np.hstack([upper, -values[:, None] * lower])
    size = np.abs(terms).max(0)
    emphasis, denominator = np.full(len(nodes), 1.0 / len(nodes)), np.ones(len(nodes))
    best, best_error = np.zeros(terms.shape[1]), np.inf
    for _ in range(rounds):
        scale = np.sqrt(emphasis) * weights / np.abs(denominator)
        solution = np.linalg.lstsq(terms / size * scale[:, None], values * scale, rcond=None)[0] / size
        denominator = 1 + lower @ solution[over + 1 :]
        error = np.abs(weights * (upper @ solution[: over + 1] / denominator - values))
        if error.max() < best_error:
            best, best_error = solution, float(error.max())
        emphasis = emphasis * (error + 1e-300)
        emphasis /= emphasis.sum()
    rounded = [float(np.float32(value)) for value in best]
    return rounded[: over + 1], [1.0, *rounded[over + 1 :]], best_error


def main() -> None:
    ln2 = float(mpmath.log(2))
    one = mpmath.mpf(1)
    fits: dict[str, tuple[Function, Function, float, float, int]] = {
        # e^r = 1 + r + r^2 P(r)
        "EXP": (lambda r: (mpmath.expm1(r) - r) / r**2, lambda r: r**2, -0.51 * ln2, 0.51 * ln2, 4),
        # log(1 + f) = f - f^2/2 + f^3 P(f); weight: error relative to log(1 + f)
        "LOG": (
            lambda f: (mpmath.log1p(f) - f + f**2 / 2) / f**3,
            lambda f: abs(f**3 / mpmath.log1p(f)),
            2**-0.5 - 1.001,
            2**0.5 - 0.999,
            8,
        ),
        # erf(x) = x + x P(x^2) for |x| < 0.93
        "ERF_SMALL": (
            lambda s: mpmath.erf(mpmath.sqrt(s)) / mpmath.sqrt(s) - 1,
            lambda s: mpmath.sqrt(s) / mpmath.erf(mpmath.sqrt(s)),
            1e-9,
            0.93**2,
            6,
        ),
        # erf(x) = 1 - exp(x P(x)) for 0.92 < x < 4; weight: what an error of the exponent does to erf
        "ERF_LARGE": (
            lambda x: mpmath.log(mpmath.erfc(x)) / x,
            lambda x: x * mpmath.erfc(x) / mpmath.erf(x),
            0.92,
            4.0,
            7,
        ),
        # erfc(x) = 2^(x P(x)) for 0 < x < 4.3, and less than 2^-29 beyond; weight: what an error of P does to erfc
        "LOG2_ERFC": (
            lambda x: mpmath.log(mpmath.erfc(x), 2) / x,
            lambda x: x * mpmath.erfc(x) * ln2,
            1e-9,
            4.3,
            7,
        ),
        # tanh(x) = x + x^3 P(x^2) for |x| < 0.56
        "TANH_SMALL": (
            lambda s: (mpmath.tanh(mpmath.sqrt(s)) / mpmath.sqrt(s) - 1) / s,
            lambda s: s**1.5 / mpmath.tanh(mpmath.sqrt(s)),
            1e-6,
            0.56**2,
            4,
        ),
        # sin(r) = r + r^3 P(r^2), cos(r) = 1 - r^2/2 + r^4 P(r^2) for |r| < 1.01 pi/4
        "SIN": (lambda z: (mpmath.sin(mpmath.sqrt(z)) / mpmath.sqrt(z) - 1) / z, lambda z: z, 1e-6, 0.63, 3),
        "COS": (lambda z: (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2, 1e-6, 0.63, 2),
    }
    for name, (target, weight, low, high, degree) in fits.items():
        coefficients, error = fit(target, weight, low, high, degree)
        print(f"{name} = (  # largest relative error 2^{float(mpmath.log(error * one, 2)):.1f}")
        for value in coefficients:
            print(f"    {value!r},")
        print(")")
    # erf(x) = x P(x^2) / Q(x^2) for |x| < 3.92
    ratio = (
        lambda s: mpmath.erf(mpmath.sqrt(s)) / mpmath.sqrt(s),
        lambda s: mpmath.sqrt(s) / mpmath.erf(mpmath.sqrt(s)),
    )
    over, below, error = fit_quotient(*ratio, 1e-9, 3.92**2, 4, 6)
    print(f"# largest relative error 2^{float(mpmath.log(error * one, 2)):.1f}\nERF_OVER = {over}\nERF_UNDER = {below}")
    print_float64()


def print_float64() -> None:
    """Coefficients in float64, which interpolate at Chebyshev nodes; what they are of stands where they are kept."""

    def root(function: Callable[[mpmath.mpf, mpmath.mpf], mpmath.mpf]) -> Function:
        return lambda z: function(mpmath.sqrt(z), z)

    def tail(u: mpmath.mpf) -> mpmath.mpf:
        x = 4 * (1 + u) / (1 - u)
        return (1 + 2 * x) * mpmath.exp(x**2) * mpmath.erfc(x)

    mpmath.mp.prec = 300
    tiny = mpmath.mpf(10) ** -20
    fits: dict[str, tuple[Function, float, float, int]] = {
        "EXP": (lambda r: (mpmath.expm1(r) - r) / r**2, -0.3501, 0.35, 10),
        "ATANH": (root(lambda s, z: (2 * mpmath.atanh(s) / s - 2) / z), tiny, 0.0296, 7),
        "ATANH_REST": (root(lambda s, z: ((2 * mpmath.atanh(s) / s - 2) / z - mpmath.mpf(2) / 3) / z), tiny, 0.0296, 8),
        "SIN": (root(lambda r, z: (mpmath.sin(r) / r - 1) / z), tiny, 0.62, 6),
        "COS": (root(lambda r, z: (mpmath.cos(r) - 1 + z / 2) / z**2), tiny, 0.62, 6),
        "ATAN": (root(lambda t, z: (mpmath.atan(t) / t - 1) / z), tiny, 1, 20),
        "ASIN": (root(lambda t, z: (mpmath.asin(t) / t - 1) / z), tiny, 0.2505, 12),
        "ERF": (root(lambda x, z: mpmath.erf(x) / x - 1), tiny, 0.85, 12),
        "ERFC": (tail, -0.82, 0.752, 24),
    }
    for name, (target, low, high, degree) in fits.items():
        numbers, error = mpmath.chebyfit(target, [mpmath.mpf(low), mpmath.mpf(high)], degree + 1, error=True)
        print(f"{name} = (  # largest error 2^{float(mpmath.log(error, 2)):.1f}")
        for number in reversed(numbers):
            print(f"    {float(number)!r},")
        print(")")


if __name__ == "__main__":
    main()
