"""Knative Serving alongside a control plane."""
