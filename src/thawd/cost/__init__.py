"""What functions cost on AWS Lambda, and how much memory suits them: ``thawd cost``, ``thawd tune``."""
