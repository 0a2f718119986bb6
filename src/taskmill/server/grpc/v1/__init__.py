"""The messages and stubs of package taskmill.v1, made from proto/taskmill/v1/taskmill.proto by tools/write_stubs.py."""
