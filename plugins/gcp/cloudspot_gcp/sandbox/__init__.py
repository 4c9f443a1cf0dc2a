"""An emulated Google Cloud: strict fakes of its APIs over HTTP. For tests and sandboxes only."""
