"""cloudspot on Alibaba Cloud. Importing this imports no SDK; the service modules do, when used."""
