"""Ranks that leave collectives together, compared with one of them each instead of all with all.

Clocks that agree with a third one agree with each other. So one rank of each *star* is compared with the
others, as long as the groups that they name lack members: ranks of a complete group are no strangers'. Stars
that disagree are told by how many ranks are in them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracelib.align.evidence import Check
from tracelib.align.in_order import TOGETHER_NS

Pair = tuple[int, int]
#: Of each source: how many ranks each group has that its collectives name, None if it is not recorded.
Groups = Sequence[Mapping[str, int | None]]
Compare = Callable[[int, int], Check | None]
#: Of sources that disagree with others: with whom, and by how much.
Apart = defaultdict[int, dict[int, Check]]


@dataclass
class Star:
    """Sources whose clocks agree, and those that lack a member of each group: group -> who has it."""

    members: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    hubs: dict[str, int] = field(default_factory=dict)

    def add(self, source: int, groups: Mapping[str, int | None]) -> None:
        """Take a source in; a group of which all ranks are here is compared with nobody else's."""
        self.members.append(source)
        self.counts.update(groups.keys())
        for name, size in groups.items():
            if size is not None and self.counts[name] >= size:
                self.hubs.pop(name, None)
            elif self.counts[name] == 1:
                self.hubs[name] = source

    def hub(self, groups: Mapping[str, int | None]) -> int | None:
        """Return who is to be compared with a source of those groups, None if nobody is."""
        return min((self.hubs[name] for name in groups if name in self.hubs), default=None)


@dataclass
class Stars:
    """How ranks agree: a check per rank, and how many ranks each one agrees and disagrees with."""

    checks: dict[Pair, Check] = field(default_factory=dict)
    agree: Counter[int] = field(default_factory=Counter)
    disagree: Counter[int] = field(default_factory=Counter)
    #: Of each rank the number of its star, and which stars disagree.
    of: dict[int, int] = field(default_factory=dict)
    linked: set[Pair] = field(default_factory=set)

    def related(self, one: int, other: int) -> bool:
        """Say whether two ranks' clocks can be compared: they are in one star, or in two that disagree."""
        pair = self.of.get(one, -1), self.of.get(other, -2)
        return pair[0] == pair[1] or pair in self.linked


def stars(ranks: Sequence[int], groups: Groups, compare: Compare) -> Stars:
    """Return how `ranks` agree; `compare` says of two of them how far their clocks are off, None = nothing.

    The first of each star is the first that is in no other, so whoever stands first is compared most.
    """
    made: list[Star] = []
    out = Stars()
    apart: Apart = defaultdict(dict)
    left = list(ranks)
    while left:
        made.append(_star(left, groups, compare, out.checks, apart))
        inside = set(made[-1].members)
        left = [source for source in left if source not in inside]
    out.of = {source: number for number, star in enumerate(made) for source in star.members}
    for (one, other), check in _disagreeing(made, groups, apart):
        out.checks[min(one, other), max(one, other)] = check
        pair = out.of[one], out.of[other]
        out.linked |= {pair, pair[::-1]}
    for number, star in enumerate(made):
        against = sum(len(made[other].members) for one, other in out.linked if one == number)
        for source in star.members:
            out.agree[source], out.disagree[source] = len(star.members) - 1, against
    return out


def _disagreeing(made: Sequence[Star], groups: Groups, apart: Apart) -> Iterator[tuple[Pair, Check]]:
    """Yield who is off whom; in groups that are complete in a star, the others are another replica's."""
    of = {source: star for star in made for source in star.members}
    for other, found in apart.items():
        for hub, check in found.items():
            shared = groups[hub].keys() & groups[other].keys()
            if any(name in of[hub].hubs and name in of[other].hubs for name in shared):
                yield (hub, other), check


def _star(
    left: Sequence[int], groups: Groups, compare: Compare, checks: dict[Pair, Check], apart: Apart
) -> Star:
    """Return the first of `left` with those that agree; note how those compared agree, and disagree."""
    star = Star()
    star.add(left[0], groups[left[0]])
    waiting = list(left[1:])
    while True:
        reached = [other for other in waiting if _open(star, other, groups, apart) is not None]
        if not reached:
            return star
        for other in reached:
            hub = _open(star, other, groups, apart)  # none, if its groups are complete by now
            check = None if hub is None else compare(hub, other)
            if hub is None or check is None:
                continue
            if check.shift_ns:
                apart[other][hub] = check
            else:
                checks[min(hub, other), max(hub, other)] = check
                star.add(other, groups[other])
        done = set(reached)
        waiting = [other for other in waiting if other not in done]


def _open(star: Star, other: int, groups: Groups, apart: Apart) -> int | None:
    """Return whom to compare a source with, None if nobody, or if a third one tells that they disagree."""
    hub = star.hub(groups[other])
    if hub is None:
        return None
    for third, check in apart[other].items():
        ours = apart[hub].get(third)
        if ours is None:
            continue
        near = max(check.p50_ns or 0, ours.p50_ns or 0) <= TOGETHER_NS
        if near and abs(check.shift_ns - ours.shift_ns) > 2 * TOGETHER_NS:
            return None
    return hub
