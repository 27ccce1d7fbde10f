"""What is found of a loader, as frozen records; `report.py` puts them together."""
