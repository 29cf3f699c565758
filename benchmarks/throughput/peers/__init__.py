"""Other ways to share GPUs, each as one module: how it runs here, and how its bookings are read."""
