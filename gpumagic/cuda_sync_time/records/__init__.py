"""What is found of a time, as frozen records; `report.py` puts them together."""
