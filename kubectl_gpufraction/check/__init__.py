"""
`kubectl gpufraction check`: is the cluster fit for gpufraction, and does the installation work?

`reader` reads the cluster with the user's own rights; the rules are pure: facts in, findings out.
"""
