"""What the machine has (a Driver) and what this process can do (a Runtime)."""
