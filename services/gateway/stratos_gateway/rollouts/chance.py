"""Bounds of what chance explains, for shares and for p99s; they may be asked again after each request.

Roll-outs are looked at every few seconds, so a bound for one look would be broken sooner or later by a revision that is
as good as it must be.  These hold for all looks of a step together:

    errors  an e-value: the likelihood of a higher share over that of the allowed one.  Under the allowed share it ever
            reaches 1 / a with a probability of at most a (Ville), however often it is looked at.
    times   how many of the new times are above the r-th largest old one (precedence test).  Both alike, each order of
            them is as likely as any other, whatever their distribution: that is a hypergeometric tail.  A part of the
            level is spent for each doubling of the times, and ten looks are paid for within one: simulated, that is
            ample, since neighbouring looks see nearly the same times.

Both take requests for independent of each other.
"""

from __future__ import annotations

import math

FALSE_BREAK = 0.0003
"""Most probable share of steps at which one gate breaks although the revision keeps its bound; with three gates less
than one step in a thousand goes back by chance."""
WORSE = 0.01
"""Level of a single comparison that only holds a roll-out, or keeps it from going back."""
_LOOKS = 10
"""Within a doubling of the times, all looks together break so much more often than one, at levels of 1e-4 to 1e-6."""
_MAX_ALTERNATIVES = 64


def exceeds_share(num: int, total: int, allowed: float) -> bool:
    """Whether more than an allowed share fails, beyond chance.

    Args:
        num: requests that failed, of ``total``.
        allowed: share of 0 to 1; with 0 a single one is beyond it.
    """
    if allowed <= 0 or num <= allowed * total:
        return allowed <= 0 < num
    found, odds = -math.inf, allowed / (1 - allowed)
    for number in range(1, _MAX_ALTERNATIVES + 1):
        higher = odds * 2 ** (number / 2)
        log_ratio = num * math.log(higher / odds) - total * math.log((1 + higher) / (1 + odds))
        found = max(found, log_ratio - math.log(number * (number + 1)))  # weights whose sum is below 1
    return found >= -math.log(FALSE_BREAK)


def exceeds_p99(num_over: int, num_new: int, num_old_over: int, num_old: int) -> bool:
    """Whether new times are above an old p99 more often than chance explains.

    Args:
        num_over: new times above the old p99, or what is allowed above that, of ``num_new``.
        num_old_over: old times that may be above it, of ``num_old``.
    """
    doublings = max(0, int(math.log2(max(1, (num_new + num_old) // 400))))
    level = FALSE_BREAK / (_LOOKS * (doublings + 1) * (doublings + 2))
    return tail_of_draw(num_over, num_over + num_old_over, num_new, num_new + num_old) <= level


def is_worse(num_new: int, total_new: int, num_old: int, total_old: int) -> bool:
    """Whether the new share is above the old one, at the level of a single look."""
    return tail_of_draw(num_new, num_new + num_old, total_new, total_new + total_old) <= WORSE


def tail_of_draw(least: int, drawn: int, marked: int, total: int) -> float:
    """Probability that ``drawn`` of ``total`` have at least ``least`` of the ``marked`` ones."""
    most = min(drawn, marked)
    if least <= max(0, drawn - (total - marked)):
        return 1.0
    if least > most:
        return 0.0
    term = math.exp(_log_ways(marked, least) + _log_ways(total - marked, drawn - least) - _log_ways(total, drawn))
    found = term
    for num in range(least, most):
        term *= (marked - num) * (drawn - num) / ((num + 1) * (total - marked - drawn + num + 1))
        found += term
        if term < 1e-12 * found:
            break
    return min(1.0, found)


def _log_ways(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
