"""The programs with which people start pods, and what each of them does to a pod that waits for a share."""
