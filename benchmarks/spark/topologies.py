"""Two public benchmarks as topologies of bolts over tuples and of columnar bolts, each with its result in plain Python.

Yahoo    ads -> view? -> campaign of the ad (a table in memory) -> count per campaign in 10 s
Q5       bids -> bids per auction, sliding 10 s/5 s -> the auctions with most bids of each end
Q7       bids -> the highest bid of each 10 s
Q8       people, auctions -> who registered and opened an auction within the same 10 s

The descriptions of NEXMark have different window lengths; these are Beam's (10 s, sliding by 5). Times are milliseconds, windows
are `(end - length, end]`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windowing import InputSpout, Topology, TopologyBuilder, bolt, seconds, sliding, tumbling
from windowing import aggregate as agg

ADS, CAMPAIGNS = 1_000, 100
ADS_DDL = "user long, ad long, kind string, at long"
BIDS_DDL = "auction long, bidder long, price long, at long"
PEOPLE_DDL = "id long, name string, at long"
AUCTIONS_DDL = "id long, seller long, at long"

Rows = Iterable[tuple[Any, ...]]
Found = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Query:
    """A topology over spouts with these columns, and the same with columnar bolts; `sink` is the component with the result."""

    name: str
    about: str
    spouts: Mapping[str, str]
    topology: Callable[[], Topology]
    columnar: Callable[[], Topology]
    sink: str
    plain: Callable[[Mapping[str, Rows]], Found]


def campaign_of(ad: int) -> int:
    """Return the campaign of an ad, from the table of the join."""
    return ad * 7919 % CAMPAIGNS


def end_of(at: int, slide_ms: int) -> int:
    """Return the end of the first window that contains a timestamp."""
    return -(-at // slide_ms) * slide_ms


# -- Yahoo ------------------------------------------------------------------------------------------------------------


@bolt(output="ad long, at long")
def views(tuple):  # type: ignore[no-untyped-def]
    """Keep the views, and project their columns."""
    return (tuple["ad"], tuple["at"]) if tuple["kind"] == "view" else None


@bolt(output="campaign long, at long")
class Campaigns:
    """Joins an ad with its campaign."""

    def prepare(self, context):  # type: ignore[no-untyped-def]
        self.table = {ad: campaign_of(ad) for ad in range(ADS)}

    def execute(self, tuple):  # type: ignore[no-untyped-def]
        return self.table[tuple["ad"]], tuple["at"]


@tumbling(
    seconds(10), timestamp="at", key="campaign", aggregate={"n": agg.count()}, output="ends long, campaign long, n long"
)
def of_campaign(window):  # type: ignore[no-untyped-def]
    return window.end_timestamp, window.key, window.aggregate["n"]


@bolt(output="ad long, at long", columnar="arrow")
def views_in_columns(batch):  # type: ignore[no-untyped-def]
    return batch.filter(pc.equal(batch["kind"], "view")).select(["ad", "at"])


@bolt(output="campaign long, at long", columnar="arrow")
class CampaignsInColumns:
    def prepare(self, context):  # type: ignore[no-untyped-def]
        self.table = pa.array([campaign_of(ad) for ad in range(ADS)])

    def execute(self, batch):  # type: ignore[no-untyped-def]
        return pa.table({"campaign": self.table.take(batch["ad"]), "at": batch["at"]})


@tumbling(
    seconds(10), timestamp="at", key="campaign", aggregate={"n": agg.count()}, columnar="arrow",
    output="ends long, campaign long, n long",
)  # fmt: skip
def of_campaigns(window):  # type: ignore[no-untyped-def]
    found = window.aggregate
    return found.append_column("ends", pa.repeat(window.end_timestamp, len(found)))


def yahoo(views: Any = views, campaigns: Any = Campaigns, count: Any = of_campaign) -> Topology:
    """Return filter, join and windows."""
    builder = TopologyBuilder("yahoo")
    builder.set_spout("ads", InputSpout(ADS_DDL))
    builder.set_bolt("views", views, 2).shuffle_grouping("ads")
    builder.set_bolt("campaigns", campaigns, 2).local_or_shuffle_grouping("views")
    builder.set_bolt("count", count, 2).fields_grouping("campaigns", "campaign")
    return builder.build()


def yahoo_by_hand(rows: Mapping[str, Rows]) -> Found:
    """Count views by end and campaign."""
    counts = Counter((end_of(at, 10_000), campaign_of(ad)) for _, ad, kind, at in rows["ads"] if kind == "view")
    return sorted((*key, n) for key, n in counts.items())


# -- NEXMark ----------------------------------------------------------------------------------------------------------


@sliding(
    seconds(10), seconds(5), timestamp="at", key="auction", aggregate={"n": agg.count()}, output="ends long, auction long, n long"
)  # fmt: skip
def of_auction(window):  # type: ignore[no-untyped-def]
    return window.end_timestamp, window.key, window.aggregate["n"]


@tumbling(seconds(5), timestamp="ends", output="ends long, auction long, n long")
def hottest(window):  # type: ignore[no-untyped-def]
    rows = window.get()
    most = max(row.n for row in rows)
    return [(row.ends, row.auction, row.n) for row in rows if row.n == most]


@sliding(
    seconds(10), seconds(5), timestamp="at", key="auction", aggregate={"n": agg.count()}, columnar="arrow",
    output="ends long, auction long, n long",
)  # fmt: skip
def of_auctions(window):  # type: ignore[no-untyped-def]
    found = window.aggregate
    return found.append_column("ends", pa.repeat(window.end_timestamp, len(found)))


@tumbling(seconds(5), timestamp="ends", columnar="arrow", output="ends long, auction long, n long")
def hottest_in_columns(window):  # type: ignore[no-untyped-def]
    rows = window.get()
    return rows.filter(pc.equal(rows["n"], pc.max(rows["n"])))


def q5(count: Any = of_auction, hottest: Any = hottest) -> Topology:
    """Return the auctions with most bids in the last ten seconds, every five seconds."""
    builder = TopologyBuilder("q5")
    builder.set_spout("bids", InputSpout(BIDS_DDL))
    builder.set_bolt("count", count, 2).fields_grouping("bids", "auction")
    builder.set_bolt("hottest", hottest).global_grouping("count")
    return builder.build()


def q5_by_hand(rows: Mapping[str, Rows]) -> Found:
    """Count the bids in each of the two windows that contain them, and keep the largest count of each window."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for auction, _, _, at in rows["bids"]:
        for end in (end_of(at, 5_000), end_of(at, 5_000) + 5_000):
            counts[end][auction] += 1
    return sorted((end, a, n) for end, found in counts.items() for a, n in found.items() if n == max(found.values()))


@tumbling(seconds(10), timestamp="at", output="ends long, price long, auction long, bidder long")
def highest(window):  # type: ignore[no-untyped-def]
    return window.end_timestamp, *max((row.price, row.auction, row.bidder) for row in window)


@tumbling(
    seconds(10), timestamp="at", columnar="arrow", output="ends long, price long, auction long, bidder long"
)  # fmt: skip
def highest_in_columns(window):  # type: ignore[no-untyped-def]
    rows = window.get()
    best = rows.filter(pc.equal(rows["price"], pc.max(rows["price"]))).select(["price", "auction", "bidder"])
    return window.end_timestamp, *max(tuple(row.values()) for row in best.to_pylist())


def q7(highest: Any = highest) -> Topology:
    """Return the highest bid of every ten seconds."""
    builder = TopologyBuilder("q7")
    builder.set_spout("bids", InputSpout(BIDS_DDL))
    builder.set_bolt("highest", highest).global_grouping("bids")
    return builder.build()


def q7_by_hand(rows: Mapping[str, Rows]) -> Found:
    """Keep the largest (price, auction, bidder) of each end."""
    best: dict[int, tuple[int, int, int]] = {}
    for auction, bidder, price, at in rows["bids"]:
        end = end_of(at, 10_000)
        best[end] = max(best.get(end, (-1, -1, -1)), (price, auction, bidder))
    return sorted((end, *bid) for end, bid in best.items())


@bolt(output="id long, name string, at long")
def members(tuple):  # type: ignore[no-untyped-def]
    return tuple["id"], tuple["name"], tuple["at"]


@bolt(output="id long, name string, at long")
def sellers(tuple):  # type: ignore[no-untyped-def]
    return tuple["seller"], None, tuple["at"]


@tumbling(seconds(10), timestamp="at", key="id", output="ends long, id long, name string")
def joined(window):  # type: ignore[no-untyped-def]
    rows = window.get()
    names = [row.name for row in rows if row.name is not None]
    if names and len(names) < len(rows):
        return window.end_timestamp, window.key, names[0]
    return None


@bolt(output="id long, name string, at long", columnar="arrow")
def members_in_columns(batch):  # type: ignore[no-untyped-def]
    return batch


@bolt(output="id long, name string, at long", columnar="arrow")
def sellers_in_columns(batch):  # type: ignore[no-untyped-def]
    return pa.table({"id": batch["seller"], "name": pa.nulls(len(batch), pa.string()), "at": batch["at"]})


@tumbling(seconds(10), timestamp="at", columnar="arrow", output="ends long, id long, name string")
def joined_in_columns(window):  # type: ignore[no-untyped-def]
    rows = window.get()
    people = rows.filter(pc.is_valid(rows["name"]))
    found = people.filter(pc.is_in(people["id"], rows.filter(pc.is_null(rows["name"]))["id"].combine_chunks()))
    return found.select(["id", "name"]).append_column("ends", pa.repeat(window.end_timestamp, len(found)))


def q8(members: Any = members, sellers: Any = sellers, joined: Any = joined) -> Topology:
    """Return people and auctions, joined in windows of ten seconds."""
    builder = TopologyBuilder("q8")
    builder.set_spout("people", InputSpout(PEOPLE_DDL))
    builder.set_spout("auctions", InputSpout(AUCTIONS_DDL))
    builder.set_bolt("members", members, 2).shuffle_grouping("people")
    builder.set_bolt("sellers", sellers, 2).shuffle_grouping("auctions")
    builder.set_bolt("joined", joined, 2).fields_grouping("members", "id").fields_grouping("sellers", "id")
    return builder.build()


def q8_by_hand(rows: Mapping[str, Rows]) -> Found:
    """Look up the seller among the members of the same end."""
    names = {(end_of(at, 10_000), who): name for who, name, at in rows["people"]}
    opened = {(end_of(at, 10_000), seller) for _, seller, at in rows["auctions"]}
    return sorted((*each, names[each]) for each in opened if each in names)


QUERIES = {
    "yahoo": (
        Query(
            "Yahoo", "views per campaign in 10 s: filter, join, count", {"ads": ADS_DDL}, yahoo,
            lambda: yahoo(views_in_columns, CampaignsInColumns, of_campaigns), "count", yahoo_by_hand,
        ),
    ),
    "nexmark": (
        Query(
            "NEXMark 5", "hot auctions, sliding 10 s/5 s", {"bids": BIDS_DDL}, q5,
            lambda: q5(of_auctions, hottest_in_columns), "hottest", q5_by_hand,
        ),
        Query(
            "NEXMark 7", "highest bid of 10 s", {"bids": BIDS_DDL}, q7,
            lambda: q7(highest_in_columns), "highest", q7_by_hand,
        ),
        Query(
            "NEXMark 8", "members who sell, 10 s", {"people": PEOPLE_DDL, "auctions": AUCTIONS_DDL}, q8,
            lambda: q8(members_in_columns, sellers_in_columns, joined_in_columns), "joined", q8_by_hand,
        ),
    ),
}  # fmt: skip
