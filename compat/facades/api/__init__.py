"""`modules.api` of the reference UI: `models` and `api`."""
