"""
Measures how well the policies place pods: replays the published protocol with the production engine.

`trace` reads the public trace and draws the arrivals. `replaying` passes them to the engine. `baselines` has the rules
of other schedulers for comparison. `report` makes the tables. `python -m benchmarks.placement --trace DIR` prints them.
A development tool: production never imports it.
"""
