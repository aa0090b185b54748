"""What the operating system gives everybody: threads that cannot fail a server, and folders with the right modes."""
