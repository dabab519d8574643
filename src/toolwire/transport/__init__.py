"""What gateway and engine need from the outside world: upstream HTTP, scripts played in process, recordings."""
