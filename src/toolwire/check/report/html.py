from toolwire.check.run import Report


def as_html(report: Report) -> bytes:
    raise NotImplementedError
