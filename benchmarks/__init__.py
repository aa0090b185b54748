"""What thawd promises about speed, measured as ratios in one run on one machine; see `README.md`."""
