"""An emulated Alibaba Cloud: strict fakes of its services, and machines that boot."""
