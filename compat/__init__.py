"""Extensions that were written for the reference UI: the names that they import, their habits, loading and store."""
