"""Load: arrivals, users, recording; `fleet/` for workers on other machines. Locust runs the users."""
