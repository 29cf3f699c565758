"""
Authorization and admission: RBAC, built-in plugins, limit ranges, webhooks, admission policies and quota.
"""
