"""The bytes that supervisor and workers must agree on: frames, rows, columns and the spool."""
