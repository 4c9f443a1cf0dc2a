"""The controller: observe, decide, act. Any number may run at once, and none has to keep running."""
