"""From values to text: tables, JSON, YAML and names, and the words in them. Pure."""
