"""What server and client of remote environments say to each other."""
