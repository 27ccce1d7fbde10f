"""What is found of memory, as frozen records; `report.py` puts them together."""
