"""Private servers for the tests: on free loopback ports, in folders of their own, gone when the tests are."""
