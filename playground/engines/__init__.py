"""Third-party engines, which run their own programs alongside gpufraction on a real control plane."""
