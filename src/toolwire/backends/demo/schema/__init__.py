"""Values for JSON Schemas: `fill` finds one that fits, whatever the schema, within bounds.

fill             values that may fit, made from the keywords and from what the prompt suggests
plain            a schema in one form, without references and combinations
check            whether a value fits a schema
texts, numbers   strings and numbers for a plain schema
regex            patterns, without `re`, which may take forever for some
"""
