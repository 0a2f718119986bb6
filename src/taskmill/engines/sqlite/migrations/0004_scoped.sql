-- Order keys, limits by key and shares of a tenant's tasks are the tenant's own. What moves them is in scoping.py: it needs the lanes themselves.
SELECT 1;
