"""How often to save, and what failures cost, in closed form: failures come independently, at a constant rate."""

import math


def best_interval(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between two saves that lose least: Daly's higher-order estimate, whose first term is Young's
    sqrt(2 C M); the mean time between failures itself where a save takes twice that or more.

    save_seconds: for which the work stands still. Source: Young 1974, Comm. ACM 17(9), and Daly 2006, Future Generation
    Computer Systems 22(3), equation 37. Raises ValueError unless both are more than zero.
    """
    if not (save_seconds > 0 and mtbf_seconds > 0):
        raise ValueError(f"save_seconds = {save_seconds}, mtbf_seconds = {mtbf_seconds}: both must be more than zero")
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    x = save_seconds / (2 * mtbf_seconds)
    return math.sqrt(2 * save_seconds * mtbf_seconds) * (1 + math.sqrt(x) / 3 + x / 9) - save_seconds


def expected_overhead(interval: float, save_seconds: float, restart_seconds: float, mtbf_seconds: float) -> float:
    """Wall time beyond the work, over the work: M/t exp(R/M) (exp((t + C)/M) - 1) - 1, for t seconds of work between
    saves that stop it for C, restarts of R and a mean time between failures of M; failures come at any time, also while
    it saves and restarts. Source: Daly 2006, equation 20. Raises ValueError unless interval and M are more than zero.
    """
    if not (interval > 0 and mtbf_seconds > 0):
        raise ValueError(f"interval = {interval}, mtbf_seconds = {mtbf_seconds}: both must be more than zero")
    try:
        again = math.exp(restart_seconds / mtbf_seconds) * math.expm1((interval + save_seconds) / mtbf_seconds)
    except OverflowError:
        return math.inf
    return mtbf_seconds / interval * again - 1
