"""Other people's engines, run alongside us by their own programs on a real control plane."""
