"""Data made by earlier versions of thawd, and the test that this version takes it over."""
