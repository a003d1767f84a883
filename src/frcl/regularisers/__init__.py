"""What holds θ while a new task is learned. Each regulariser is a pure function in nats."""
