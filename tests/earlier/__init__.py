"""Data made by earlier versions, and the claim that this version takes it over."""
