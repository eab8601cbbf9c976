"""Tables, pictures, HTML pages and verdicts made from summaries. Pure: no input or output."""
