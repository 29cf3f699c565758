"""
Every tuned constant of the score, and what happens if you change it.

`python -m benchmarks.placement` shows what a change does to the allocation of the published traces, one constant at a
time (`benchmarks.placement.sensitivity`). The modules read these when they need them, so that it can vary them.
"""

from __future__ import annotations

ONE = 1_000_000
"""
The unit of every cost: a whole card's worth. Whole numbers, so that every machine gets the same sums.
"""

# -- what a placement costs ---------------------------------------------------------------------------------------

STEP = ONE // 50
"""
Losses of worth count in steps of 2 % of a card. With finer steps chance would decide: each request would prefer a
different node, which would break up all of them.
"""
STEP_OF_PRESSED = ONE * 15 // 100
"""
The same for the worth that includes CPU: steps of 15 % of a card.
"""
SHARE_OF_PRESSED = 75_000
"""
What a step of `STEP_OF_PRESSED` counts: half of its worth.
"""
ROUNDING_SLACK = 100
"""
Millionths of a card that are added to a loss before it is rounded to the nearest step: prices are whole millionths, so
a loss of half a step may be some millionths short of it.
"""
PER_LEVEL = 1_000
"""
What a level of fragmentation counts: it decides between placements of equal worth. All 51 levels together count less
than three steps of worth, and those that occur less than one.
"""
PER_SCARCE_CARD = 3, 100
"""
What taking a whole card costs where all cards of its kind are requested by name: 3/100 of a card. It keeps rare models
for the requests that name them.
"""
PER_SPARED_NODE = ONE // 5
"""
What it costs to use a node that may later give a waiting pod several whole cards. Other pods then go to smaller nodes.
"""
PER_FREE_CARD = STEP
"""
What each free card of such a node adds, so that nodes with fewer free cards are used first.
"""
SMALLER_SOONER = 2
"""
Bits by which the hash that decides between equal nodes is shifted on nodes with fewer cards than the largest. So small
nodes fill sooner, and requests for whole large nodes find some later.
"""
ROOMY_BELOW = 0.6
"""
Where the demand's CPU per card is less than this part of what the cluster has per card, CPU decides nothing: nodes of
equal cost are taken in the order of best fit. From `PRESSED_FROM` on CPU counts, and best fit would use it up unevenly.
"""
MOST_TIGHT = 0.2
"""
A cluster is not roomy if more than this part of its cards is on nodes with less CPU per card than the demand has.
"""
PRIOR_OF_LARGE = 1 / 3
"""
As long as nobody requests all cards of the largest node, so much of the coming demand is taken to be such requests,
with the CPU per card of the whole cards that were requested. It only decides whether the cluster is roomy.
"""
NAMED_FROM = 0.02
"""
The part of the requests that names models from which on models count as scarce. Then best fit would fill the kinds that
are named with pods that could be anywhere.
"""
TWO_SIDED_FROM = 0.05
"""
The part of the shares that takes more memory than cores, and the part that takes more cores than memory, from which on
shares are priced by both sides. Else one side is the scarcer one of all cards, and a share is as large as its larger.
"""
FREE_STEPS = 8
"""
What is free of a node counts in so many steps per thousandth of a card, so that nodes of eight cards are told apart.
"""
FREE_BITS = 14
"""
Bits by which the hash between equal nodes is shifted to make room for what is free of a node.
"""

# -- what remainders are worth ------------------------------------------------------------------------------------

LEVELS_OF_FRAGMENTATION = 100
"""
Levels of the policy `fragmentation`, as published.
"""
LEVELS_BETWEEN_EQUALS = 51
"""
Levels of fragmentation under `value`. The number is odd, so that no change at all lies inside a level and not on the
edge between two.
"""
COVERED = 0.95
"""
The part of the requests that the fragmentation measure counts, the most frequent classes first, as published.
"""
WEIGHTS = 1 << 20
"""
What the frequencies of all classes add up to: whole numbers, so that every machine gets the same sums.
"""
MOST_CPU_STEPS = 64
"""
Amounts of free CPU between which the tables of fragmentation distinguish, at most. It bounds their size.
"""
CPU_PRICES = (0, 2, 5, 10, 15, 20, 25, 30, 35, 40, 50, 60, 70, 80, 100, 130, 170, 220, 300, 500, 1000)
"""
The prices of CPU at which worth is computed, in thousandths of a card per core, equal to millionths per thousandth of a
core. They are dense where a core costs about what clusters have of cards per core. Each price is a lane of the tables.
"""
PRESSED_FROM, PRESSED_OVER, PRESSED = 0.70, 0.08, 0.1
"""
Where the demand's CPU per card reaches 70 % of what the cluster has per card, CPU begins to count in a share's worth,
and at 78 % it makes a tenth of it. Below, it only led to whole nodes being opened for the sake of CPU.
"""
MOST_SCARCE = 8.0
"""
The next card of a nearly exhausted kind is worth at most this many times its price. More would decide alone.
"""
SCARCITY_STEPS = 3
"""
Scarcity counts in so many steps per price of a card. An exact difference of a tenth would decide every placement: it
would fill the kind that no request names before all others, and requests for its whole nodes would find none.
"""
MOST_SIZES = 64
"""
Sizes of shares among which the cutting-stock problem is solved, at most, so that a dense simplex suffices.
"""
GRIDS = (1, 2, 5, 10, 20)
"""
Thousandths of a card to which sizes are rounded up where there are more than `MOST_SIZES`: the first that suffices.
"""

# -- what is learned, and when ------------------------------------------------------------------------------------

FIRST = 64
"""
Requests before the first tables; then at each doubling, up to every `SELDOM`. Until then pods are placed by best fit.
"""
SELDOM = 8192
"""
Requests between two sets of tables, at most. Making the tables takes up to a second, in a thread of its own.
"""
HALF_LIFE = 32_768
"""
Requests after which one counts half. A few times what a large cluster holds at a time: one unusual day changes little,
and a lasting change of the demand counts after the cluster was filled a few times.
"""
FILLED = 0.1
"""
The part of the cluster that must have been taken or given back before new tables are made because of scarcity.
"""
MOST_CLASSES = 4096
"""
Classes of request that are remembered; those that count least are forgotten first. It bounds memory.
"""
