"""Values for JSON Schemas: `fill` finds one that fits, whatever the schema, within bounds.

fill             values that may fit, made from the keywords and from what the prompt suggests
shapes           a schema without references and combinations: one plain schema for each way to satisfy it
check            whether a value fits a schema
texts, numbers   strings and numbers for a plain schema
regex, matching  patterns, without `re`, which may take forever for some
budget           the steps that may be spent on one schema
"""
