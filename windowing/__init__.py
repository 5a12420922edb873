"""Storm's windows and Trident's transactions in Python, in one process or on Spark."""
