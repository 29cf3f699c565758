"""
Faults at every point where one of our programs writes, one by one: Sieve's three patterns (OSDI 2022), enumerated.

| Module | What |
|---|---|
| `writes` | the kinds of writes that our programs have, and the lines that send them |
| `strikes` | the faults that hit one write: its writer crashes, or one of its readers does not see it |
| `references` | fixed runs without a fault that make the programs do every kind of write |
| `points` | learns from a reference run which writes and readers there are, and makes the plans that strike them |
| `campaign` | runs them all and prints the results |
"""
