"""
Who may write what: RBAC, built-in plugins, limit ranges, webhooks, admission policies and quota.
"""
