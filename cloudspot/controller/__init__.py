"""The controller: observe, decide, act. Any number of them may run at once, and none has to keep running."""
