"""CloudWatch: log groups with their events, filters and queries; metrics and their history."""
