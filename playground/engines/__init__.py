"""Other people's engines, run beside us by their own programs on a real control plane."""
