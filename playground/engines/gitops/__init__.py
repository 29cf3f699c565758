"""Argo CD and Flux alongside a control plane, and the repository that they apply."""
