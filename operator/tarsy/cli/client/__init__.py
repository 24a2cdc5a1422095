"""What commands share: the cluster through kubectl, the API over HTTP, and output for people and programs."""
