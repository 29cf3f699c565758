"""
How well the policies place: the published protocol replayed through the engine that production runs.

`trace` reads the public trace and draws the arrivals, `replaying` puts them to the engine, `baselines` are the rules of
others that we measure ourselves against, `report` makes the tables. `python -m benchmarks.placement --trace DIR` prints
them. A development tool: production never imports it.
"""
