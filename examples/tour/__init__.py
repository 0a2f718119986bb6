"""The tour that `make run` gives: an app, a worker, sample tasks of every kind, and a live view of them."""
