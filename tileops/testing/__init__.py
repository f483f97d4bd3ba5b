"""The tests that any target has to pass, for packages that bring one:

    pytest --pyargs tileops.testing --tileops-target acme --tileops-device cpu

`test_rows` runs every row of the manifest that the target serves against the operator's reference; `test_calls` puts
each of its operators through the layouts, sizes, dtypes and programs that callers use. Both find the operators by
themselves: a new one joins by existing.
"""
