"""Argo CD and Flux alongside a control plane, and the git repository that they apply."""
