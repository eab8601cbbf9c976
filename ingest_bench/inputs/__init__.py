"""User input: values, files, texts and addresses, read into records or refused with one sentence."""
