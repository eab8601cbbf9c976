"""What comes from a user: values, files, texts and addresses, read into records or refused in one sentence."""
