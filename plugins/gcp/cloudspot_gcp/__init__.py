"""cloudspot on Google Cloud. Importing this imports no SDK; the service modules do, when used."""
